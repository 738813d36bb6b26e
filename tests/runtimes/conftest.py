"""Artifacts that the runners' tests share; each is exported once a session, over all workers."""

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Once
from tests.runtimes import artifact_edits


def _export(**options: Any) -> Any:
    from tests.artifacts import export

    return lambda folder: export(artifact_edits.ODD, folder, **artifact_edits.LIMITS, **options)


def make_odd32(once: Once) -> Path:
    """float32, every input, for ONNX Runtime, AOTInductor and TensorRT-RTX."""
    to = ("onnx", "aoti", "tensorrt-rtx")
    return once("odd32", _export(to=to, padding_mask=True, position_ids=True))


@pytest.fixture(scope="session")
def odd32(once: Once) -> Path:
    """See `make_odd32`."""
    return make_odd32(once)


@pytest.fixture(scope="session")
def odd16(once: Once) -> Path:
    """float16, x alone, for ONNX Runtime."""
    return once("odd16", _export(to=("onnx",), dtype="float16"))
