"""Fixtures and options that several rooms' tests share."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import models
from tests.family_report import FamilyReport


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--family-matrix FILE`: write what the families tests measured, for `tblock list families`."""
    parser.addoption("--family-matrix", type=Path, help="write the families' results to this JSON file")


def _or_skip(find: Callable[[], Path]) -> Path:
    try:
        return find()
    except RuntimeError as error:
        pytest.skip(f"no network and no cached copy: {error}")


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct as a GGUF file."""
    return _or_skip(models.smollm2_gguf)


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """all-MiniLM-L6-v2 as a Hugging Face folder."""
    return _or_skip(models.minilm_folder)


@pytest.fixture(scope="session")
def family_report(request: pytest.FixtureRequest) -> Iterator[FamilyReport]:
    """Where families tests of every room note their results; written at the end where asked for."""
    report = FamilyReport()
    yield report
    path = request.config.getoption("--family-matrix")
    if path is not None:
        report.write(path)


@pytest.fixture(scope="session")
def plugin_library() -> Path:
    """The plugin library as `tblock plugin build` makes it, from the per-user cache when it is there."""
    from tblock.export.plugins import build

    return build()
