"""Building, finding and describing the library, and what is said when something is missing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tblock.errors import ArtifactError, ConfigError, ExportError, RuntimeUnavailable
from tblock.export.plugins import build, describe, headers, library, library_path, read_table
from tblock.export.plugins.build import ARCHITECTURES, _install, check_tools, compile_library
from tblock.export.plugins.variants import VARIANTS


def test_plugin_import_loads_no_torch_and_no_triton() -> None:
    code = "import sys, tblock.export.plugins; sys.exit(bool({'torch', 'triton'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_plugin_library_needs_only_libc(plugin_library: Path) -> None:
    done = subprocess.run(["ldd", str(plugin_library)], capture_output=True, text=True, check=True)
    names = {line.split()[0].rsplit("/", 1)[-1] for line in done.stdout.splitlines()}
    assert {name.split(".so")[0] for name in names} <= {
        "linux-vdso",
        "libc",
        "libm",
        "libdl",
        "ld-linux-x86-64",
    }


def test_plugin_build_is_cached_and_copied(plugin_library: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    copy = build(tmp_path / "out" / "copy.so", report=lines.append)
    assert lines == [f"cached: {plugin_library}"]
    assert copy.read_bytes() == plugin_library.read_bytes()
    assert [p.name for p in copy.parent.iterdir()] == ["copy.so"]


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking for the tools, which comes before any work, fails the test."""
    module = sys.modules[check_tools.__module__]  # the package's `build` is the function
    monkeypatch.setattr(module, "check_tools", lambda: pytest.fail("work was begun"))


@pytest.mark.usefixtures("no_work")
def test_plugin_build_refuses_an_output_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for output, message in (
        (Path("/proc/x.so"), r"/proc/x\.so: the folder /proc cannot be written \(No such file"),
        (tmp_path / "file" / "x.so", r"file/x\.so: the folder .*file cannot be written \(File exists"),
        (tmp_path, "is a folder, wanted a path for the library"),
    ):
        with pytest.raises(ConfigError, match=message):
            build(output, force=True)


def test_plugin_library_that_cannot_be_installed_is_one_line(tmp_path: Path) -> None:
    source, target = tmp_path / "built.so", tmp_path / "x.so"
    source.touch()
    target.mkdir()  # came while the library was built
    with pytest.raises(ExportError, match=r"x\.so: the plugin library cannot be put there: Is a directory"):
        _install(source, target)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["built.so", "x.so"]


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize(
    ("arch", "message"),
    [(75, "below sm_80, which the kernels need; known: 80, 86, "), (95, "no such architecture; known: 80, ")],
)
def test_plugin_build_refuses_an_architecture_by_name(arch: int, message: str) -> None:
    with pytest.raises(ConfigError, match=f"--cubins {arch}: {message}"):
        build(cubins=(90, arch))


def test_plugin_architectures_are_those_of_the_compiler() -> None:
    pytest.importorskip("triton", reason="triton is not installed (extra: plugins)")
    from tblock.export.plugins import aot

    assert set(ARCHITECTURES) == set(aot._PTX_VERSIONS)
    assert ARCHITECTURES[0] == aot.BASELINE


def test_plugin_library_path_order(
    plugin_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(library.VARIABLE, raising=False)
    assert library_path() == plugin_library
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert library_path() is None
    monkeypatch.setenv(library.VARIABLE, str(plugin_library))
    assert library_path() == plugin_library
    monkeypatch.setenv(library.VARIABLE, str(tmp_path / "none.so"))
    with pytest.raises(ArtifactError, match=r"TBLOCK_PLUGIN_LIBRARY=.*none.so: no such file"):
        library_path()


def test_plugin_describe_lists_every_variant(plugin_library: Path) -> None:
    rows = describe(plugin_library)
    assert len(rows) == 3 * len(VARIANTS)
    sizes = {f"{kind}_bytes" for kind in ("shared", "spill", "stack", "vector")}
    assert set(rows[0]) == {"op", "dtype", "name", "arch", "registers", *sizes}
    table = read_table(plugin_library)
    assert table["cubins"] == [90, 120]
    assert table["ptx"] == 80
    assert table["versions"]["tensorrt_headers"].startswith("10.")


def test_plugin_describe_of_another_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"a\.so: no such plugin library; `tblock plugin build`"):
        describe(tmp_path / "a.so")
    (tmp_path / "b.so").write_bytes(b"\x7fELF nothing")
    with pytest.raises(ArtifactError, match=r"b\.so: not a tblock plugin library"):
        describe(tmp_path / "b.so")


def test_plugin_headers_of_the_user_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(headers.VARIABLE, str(tmp_path))
    with pytest.raises(RuntimeUnavailable, match=r"TBLOCK_TENSORRT_INCLUDE=.*no NvInferRuntime.h"):
        headers.find_headers()
    (tmp_path / "NvInferRuntime.h").touch()
    version = tmp_path / "NvInferVersion.h"
    version.write_text("#define NV_TENSORRT_MAJOR 11 //!< TensorRT\n#define NV_TENSORRT_MINOR 2\n")
    assert headers.find_headers() == (tmp_path, "11.2")
    version.write_text("#define NV_TENSORRT_MAJOR 8\n#define NV_TENSORRT_MINOR 6\n")
    with pytest.raises(RuntimeUnavailable, match=r"TensorRT 8\.6 headers; the plugins need 10\.x or 11\.x"):
        headers.find_headers()
    version.write_text("nothing")
    with pytest.raises(RuntimeUnavailable, match="no version in NvInferVersion"):
        headers.find_headers()


def test_plugin_headers_missing_says_where_it_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(headers.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(RuntimeUnavailable) as caught:
        headers.find_headers()
    for part in ("TBLOCK_TENSORRT_INCLUDE", str(tmp_path), "pip download", "set TBLOCK_TENSORRT_INCLUDE"):
        assert part in str(caught.value)


def test_plugin_headers_of_another_digest_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(headers.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    wheel = tmp_path / "kernel_lens-2.0.1-py3-none-any.whl"
    wheel.write_bytes(b"not that wheel")

    def download(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        Path(command[command.index("--dest") + 1], wheel.name).write_bytes(wheel.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(headers.subprocess, "run", download)
    with pytest.raises(RuntimeUnavailable, match=r"kernel_lens.*SHA-256 .*, wanted "):
        headers.find_headers()


def test_plugin_build_tools_missing_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeUnavailable, match="cmake is not on PATH"):
        check_tools()
    (tmp_path / "cmake").touch(mode=0o755)
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(RuntimeUnavailable, match=r"no C\+\+ compiler: looked for c\+\+ and g\+\+"):
        check_tools()
    monkeypatch.setenv("CXX", "clang-none")
    with pytest.raises(RuntimeUnavailable, match="looked for clang-none"):
        check_tools()


def test_plugin_build_error_is_one_line(generated: Path, tmp_path: Path) -> None:
    source = library.package_folder() / "trt-plugin"
    with pytest.raises(ExportError, match=r"configure failed: CMake Error .*NvInferRuntime\.h") as caught:
        compile_library(source, generated, tmp_path, tmp_path / "work")
    assert "\n" not in str(caught.value)


@pytest.mark.exhaustive
def test_plugin_build_from_nothing_needs_no_nvcc(tmp_path: Path, plugin_library: Path) -> None:
    """A fresh cache and a PATH without nvcc; the result is the same file, whatever folder it was built in."""
    folders = [d for d in os.environ["PATH"].split(os.pathsep) if not Path(d, "nvcc").exists()]
    code = "import pathlib, sys, tblock.export.plugins as p; p.build(pathlib.Path(sys.argv[1]), force=True)"
    environment = os.environ | {
        "PATH": os.pathsep.join(folders),
        "TRITON_CACHE_DIR": str(tmp_path / "triton"),
    }
    built = tmp_path / "fresh.so"
    subprocess.run([sys.executable, "-c", code, str(built)], env=environment, check=True, timeout=300)
    assert built.read_bytes() == plugin_library.read_bytes()
