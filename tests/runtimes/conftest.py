"""Artifacts that the runners' tests share; each is exported once."""

from pathlib import Path

import pytest

from tests.runtimes import artifact_edits


def _export(tmp_path_factory: pytest.TempPathFactory, name: str, **options: object) -> Path:
    from tblock.export import export

    folder = tmp_path_factory.mktemp("artifacts") / name
    export(artifact_edits.ODD, folder, **artifact_edits.LIMITS, **options)
    return folder


@pytest.fixture(scope="session")
def odd32(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """float32, every input, for ONNX Runtime, AOTInductor and TensorRT-RTX."""
    return _export(
        tmp_path_factory,
        "odd32",
        to=("onnx", "aoti", "tensorrt-rtx"),
        padding_mask=True,
        position_ids=True,
    )


@pytest.fixture(scope="session")
def odd16(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """float16, x alone, for ONNX Runtime."""
    return _export(tmp_path_factory, "odd16", to=("onnx",), dtype="float16")
