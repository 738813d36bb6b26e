"""Fixtures and options that several rooms' tests share."""

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import models
from tests.family_report import FamilyReport

if "PYTEST_XDIST_WORKER" in os.environ:
    # Before torch is loaded: workers share the cores, so each has one thread, and so have its children.
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")


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


Once = Callable[[str, Callable[[Path], object]], Path]
"""`once(name, make)`: the folder or file that `make(path)` wrote, made by one worker and read by all."""


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """What is expensive is made once a session, however many workers there are; nobody may change it."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "once"
    shared.mkdir(exist_ok=True)

    def make(name: str, build: Callable[[Path], object]) -> Path:
        path, done = shared / name, shared / f"{name}.done"
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                build(path)
                done.touch()
        return path

    return make


@pytest.fixture(scope="session")
def family_report(request: pytest.FixtureRequest) -> Iterator[FamilyReport]:
    """Where families tests of every room note their results; written at the end where asked for."""
    report = FamilyReport()
    yield report
    path = request.config.getoption("--family-matrix")
    if path is not None:
        report.write(path)


@pytest.fixture(scope="session")
def plugin_library(once: Once) -> Path:
    """The plugin library as `tblock plugin build` makes it, from the per-user cache when it is there."""
    from tblock.export.plugins import build

    return Path(once("plugin-library", lambda path: path.write_text(str(build()))).read_text())
