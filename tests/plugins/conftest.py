"""Fixtures of the plugin tests: the library, its sources, the C++ harness, the interpreter's results."""

from pathlib import Path

import pytest

from tblock.export.plugins import library
from tblock.export.plugins.build import check_tools, compile_library, generate
from tblock.export.plugins.headers import find_headers
from tblock.export.plugins.selfcheck import Result
from tests.plugins.plugin_harness import Harness, build_harness, interpret


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generated C++ sources and compiled kernels."""
    check_tools()
    folder = tmp_path_factory.mktemp("plugin") / "generated"
    generate(folder, find_headers()[1])
    return folder


@pytest.fixture(scope="session")
def harness(generated: Path, tmp_path_factory: pytest.TempPathFactory) -> Harness:
    """The harness, built for speed."""
    return build_harness(generated, tmp_path_factory.mktemp("plugin-harness"), sanitize=False)


@pytest.fixture(scope="session")
def sanitized(generated: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Harness, Path]:
    """Harness and library with AddressSanitizer and UBSan."""
    work = tmp_path_factory.mktemp("plugin-sanitized")
    source = library.package_folder() / "trt-plugin"
    headers = find_headers()[0]
    built = compile_library(
        source, generated, headers, work / "library", build_type="RelWithDebInfo", sanitize=True
    )
    return build_harness(generated, work / "harness", sanitize=True), built


@pytest.fixture(scope="session")
def interpreted() -> dict[str, Result]:
    """Result by case id, of the shipped kernels."""
    pytest.importorskip("triton", reason="triton is not installed (extra: plugins)")
    return {result.id: result for result in interpret()}


@pytest.fixture(scope="session")
def kernel_source() -> str:
    """Text of the shipped kernel file, for broken twins."""
    return (library.package_folder() / "kernels.py").read_text()
