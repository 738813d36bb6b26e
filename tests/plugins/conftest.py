"""Fixtures of the plugin tests, each made once a session over all workers: library, C++ harness, cases."""

import shutil
from pathlib import Path

import pytest

from tblock.export.plugins.wheel import build_pure
from tests.cli.conftest import run as run
from tests.conftest import Once
from tests.plugins.plugin_harness import Harness, Interpreted, build_harness, harness_of, interpret

TRITON = "triton is not installed (extra: plugins)"


@pytest.fixture(scope="session")
def generated(once: Once) -> Path:
    """Generated C++ sources and compiled kernels."""
    pytest.importorskip("triton", reason=TRITON)
    from tblock.export.plugins.headers import find_headers
    from tblock.export.plugins.library_builder import check_tools, generate

    check_tools()
    return once("plugin-generated", lambda folder: generate(folder, find_headers()[1]))


@pytest.fixture(scope="session")
def contract_folder(once: Once) -> Path:
    """A folder with the contract's generated C++ header, all that the harness needs."""
    pytest.importorskip("triton", reason=TRITON)
    from tblock.export.plugins import codegen

    def write(folder: Path) -> None:
        folder.mkdir()
        (folder / "contract.h").write_text(codegen.contract_header())

    return once("plugin-contract", write)


@pytest.fixture(scope="session")
def cases_file(once: Once) -> Path:
    """What the harness runs, with inputs and float64 outputs."""
    pytest.importorskip("triton", reason=TRITON)
    from tblock.export.plugins import case_file

    return once("plugin-cases", case_file.write)


@pytest.fixture(scope="session")
def harness(contract_folder: Path, cases_file: Path, once: Once) -> Harness:
    """The harness, built for speed."""
    return harness_of(once("plugin-harness", lambda work: build_harness(contract_folder, work)), cases_file)


@pytest.fixture(scope="session")
def interpreted(once: Once) -> Interpreted:
    """Results of the shipped kernels and of their broken twins."""
    pytest.importorskip("triton", reason=TRITON)
    return Interpreted.read(once("plugin-interpreted", interpret))


@pytest.fixture(scope="session")
def pure_wheel(once: Once) -> Path:
    """The wheel setuptools makes of a copy of this tree in which an older build left a module."""
    project = Path(__file__).parents[2]

    def make(folder: Path) -> None:
        copy = folder / "project"
        shutil.copytree(
            project, copy, symlinks=True, ignore=shutil.ignore_patterns(".*", "build", "tests", "*.so")
        )
        (copy / "build" / "lib" / "tblock").mkdir(parents=True)
        (copy / "build" / "lib" / "tblock" / "left_over.py").touch()
        (folder / "wheel").mkdir()
        build_pure(copy, folder / "wheel")

    return next((once("pure-wheel", make) / "wheel").glob("*.whl"))
