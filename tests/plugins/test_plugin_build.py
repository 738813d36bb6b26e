"""Building, finding and describing the library, and what is said when something is missing."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tblock.contract import PLUGINS
from tblock.errors import ArtifactError, ConfigError, ExportError, RuntimeUnavailable
from tblock.export.plugins import (
    architectures,
    build,
    cache,
    headers,
    library,
    library_build,
    library_path,
    read_table,
)
from tblock.export.plugins.library_build import check_tools, compile_library
from tests.cli.outcome import Run


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


def test_plugin_build_of_other_architectures_is_not_the_cached_one(plugin_library: Path) -> None:
    """Whatever order they are named in, the same set is the same library."""
    assert library_build.ingredients((90, 120)) == read_table(plugin_library)["ingredients"]
    assert library_build.ingredients((90,)) != read_table(plugin_library)["ingredients"]
    assert build(cubins=(120, 90, 90), report=lambda line: None) == plugin_library


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking for the tools, which comes before any work, fails the test."""
    monkeypatch.setattr(library_build, "check_tools", lambda: pytest.fail("work was begun"))


def _own_headers(folder: Path) -> Path:
    folder.mkdir()
    (folder / "NvInferRuntime.h").write_text("// runtime\n")
    (folder / "NvInferRuntimeBase.h").write_text("// base\n")
    version = "#define NV_TENSORRT_MAJOR 10 //!<\n#define NV_TENSORRT_MINOR 14\n"
    (folder / "NvInferVersion.h").write_text(version)
    return folder


def _with_one_more_byte(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


@pytest.mark.parametrize(
    "changed", ["headers", "kernels", "trt-plugin", "contract", "triton", "cubins", "CXXFLAGS"]
)
def test_plugin_build_with_a_byte_of_an_ingredient_changed_is_not_the_cached_one(
    changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole build, but for the compilers: a stand-in library that says what it was made of."""
    package = shutil.copytree(
        library.package_folder(), tmp_path / "plugins", ignore=shutil.ignore_patterns("__pycache__")
    )
    core = tmp_path / "tblock"
    core.mkdir()
    for name in ("contract.py", "dtypes.py", "__init__.py"):
        shutil.copy(Path(library.tblock.__file__).parent / name, core)
    include = _own_headers(tmp_path / "include")
    monkeypatch.setenv(headers.VARIABLE, str(include))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(library, "package_folder", lambda: package)
    monkeypatch.setattr(library.tblock, "__file__", str(core / "__init__.py"))
    monkeypatch.setattr(library_build, "generate", lambda folder, *_: folder.mkdir())

    def compiled(source: Path, generated: Path, include: Path, work: Path) -> Path:
        work.mkdir()
        table = {
            "ingredients": library_build.ingredients(cubins),
            "creators": [],
            "variants": [],
            "cubins": [],
        }
        (work / "lib.so").write_bytes(b"TBLOCK-PLUGIN-TABLE" + json.dumps(table).encode() + b"\0")
        return work / "lib.so"

    monkeypatch.setattr(library_build, "compile_library", compiled)
    cubins: tuple[int, ...] = (90, 120)
    lines: list[str] = []

    def outcome() -> str:
        lines.clear()
        build(cubins=cubins, report=lines.append)
        return lines[-1].split(":")[0]

    assert [outcome(), outcome()] == ["built", "cached"]
    if changed == "triton":
        version = library_build.importlib.metadata.version
        monkeypatch.setattr(library_build.importlib.metadata, "version", lambda name: version(name) + ".1")
    elif changed == "cubins":
        cubins = (90,)
    elif changed == "CXXFLAGS":
        monkeypatch.setenv("CXXFLAGS", "-O1")
    else:
        _with_one_more_byte(
            {
                "headers": include / "NvInferRuntimeBase.h",
                "kernels": package / "kernels" / "swiglu.py",
                "trt-plugin": package / "trt-plugin" / "plugin.cpp",
                "contract": core / "contract.py",
            }[changed]
        )
    assert [outcome(), outcome()] == ["built", "cached"]


def test_plugin_sources_hold_every_file_that_the_build_loads() -> None:
    """A digest over names in a list says nothing about a file that is not in it."""
    code = (
        "import sys; from tblock.export.plugins import aot, codegen, library_build, library\n"
        "loaded = [m.__file__ for n, m in sys.modules.items() if n.startswith('tblock.export.plugins.')]\n"
        "print(*loaded, sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {Path(line).resolve() for line in done.stdout.splitlines()}
    # Where the library and its headers lie is not what it is made of.
    finders = {library.package_folder() / f"{name}.py" for name in ("cache", "headers", "library")}
    assert loaded - finders <= {path.resolve() for path in library.sources()}
    assert len(loaded - finders) > 8


@pytest.mark.usefixtures("no_work")
def test_plugin_build_refuses_an_output_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("somebody's notes")
    for output, message in (
        (Path("/proc/x.so"), r"-o /proc/x\.so: the folder /proc cannot be written \(No such file"),
        (tmp_path / "file" / "x.so", r"-o .*file/x\.so: the folder .*file cannot be made \(File exists"),
        (tmp_path, "is a folder, wanted a path for a file"),
        (tmp_path / "file", "file: is there and is no plugin library; it is not replaced"),
    ):
        with pytest.raises(ConfigError, match=message):
            build(output, force=True)
    assert (tmp_path / "file").read_text() == "somebody's notes"


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("90,75", "--cubins 75: below sm_80, which the kernels need; known: 80, 86, "),
        ("95", "--cubins 95: no such architecture; known: 80, "),
        ("9_0", "--cubins '9_0': wanted a comma list of numbers"),
        ("\u0669\u0660", "wanted a comma list of numbers"),
        ("-90", "wanted a comma list of numbers"),
        ("hopper", "wanted a comma list of numbers"),
    ],
)
def test_plugin_build_refuses_architectures_by_name(text: str, message: str, run: Run) -> None:
    outcome = run("plugin", "build", "--force", "--cubins", text)
    assert outcome.code == 2
    assert message in outcome.err


def test_plugin_architectures_are_read_as_users_write_them() -> None:
    assert architectures.parse("sm_120, 90,90") == (90, 120)
    assert architectures.parse("") == ()


def test_plugin_library_that_cannot_be_installed_is_one_line(tmp_path: Path) -> None:
    source, target = tmp_path / "built.so", tmp_path / "x.so"
    source.touch()
    target.mkdir()  # came while the library was built
    with pytest.raises(ExportError, match=r"x\.so: Is a directory; nothing was changed"):
        library_build._install(source, target)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["built.so", "x.so"]


def _homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without passwd entry and without HOME, as a container with `--user 12345` has."""
    for name in ("HOME", "XDG_CACHE_HOME", library.VARIABLE):
        monkeypatch.delenv(name, raising=False)
    missing = KeyError("getpwuid(): uid not found: 12345")
    monkeypatch.setattr("pwd.getpwuid", lambda uid: (_ for _ in ()).throw(missing))


def test_plugin_cache_without_a_home_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _homeless(monkeypatch)
    with pytest.raises(ConfigError, match=r"no home folder for user .*: set XDG_CACHE_HOME to a folder"):
        build()
    assert library_path() is None
    monkeypatch.setenv(library.VARIABLE, str(tmp_path / "lib.so"))
    (tmp_path / "lib.so").touch()
    assert library_path() == tmp_path / "lib.so"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_folder("plugins") == tmp_path / "tblock" / "plugins"


@pytest.mark.parametrize("full", ["python", "compiler"])
def test_plugin_build_in_a_full_temporary_folder_says_so(
    full: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(headers.VARIABLE, str(_own_headers(tmp_path / "include")))
    monkeypatch.setattr(library_build.tempfile, "tempdir", str(tmp_path))

    def generate(folder: Path, *_: object) -> None:
        if full == "python":
            raise OSError(errno.ENOSPC, "No space left on device", str(folder / "contract.h"))

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(
            command, 1, "[1/9] c++ ...\nld: final link failed: No space left on device", ""
        )

    monkeypatch.setattr(library_build, "generate", generate)
    monkeypatch.setattr(library_build.subprocess, "run", run)
    with pytest.raises(ExportError) as caught:
        build()
    message = str(caught.value)
    assert "\n" not in message
    assert str(tmp_path / "tblock-plugin-") in message
    assert ("the disk is full" if full == "python" else "failed: No space left on device") in message
    assert "; set TMPDIR to " in message
    assert not list(tmp_path.glob("tblock-plugin-*"))


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
    rows = read_table(plugin_library)["variants"]
    assert {row["arch"] for row in rows} == {80, 90, 120}
    sizes = {f"{kind}_bytes" for kind in ("shared", "spill", "stack", "vector")}
    assert set(rows[0]) == {"op", "dtype", "name", "arch", "registers", *sizes}
    table = read_table(plugin_library)
    assert table["cubins"] == [90, 120]
    assert table["ptx"] == 80
    assert table["versions"]["tensorrt_headers"].startswith("10.")


def test_plugin_list_says_what_the_library_holds(
    plugin_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """Not what the contract would have it hold: a library with another creator."""
    told = [line for line in run("plugin", "list").out.splitlines() if line.startswith("creator ")]
    assert told == [f"creator {row.onnx_name}, namespace tblock, version {row.version}" for row in PLUGINS]
    other = tmp_path / "other.so"
    names = [str(row.onnx_name) for row in PLUGINS]
    renamed = [*names[:-1], names[-1].replace("Tblock", "Teblok")]
    shipped, changed = (f'"name": "{pair[-1]}"'.encode() for pair in (names, renamed))
    other.write_bytes(plugin_library.read_bytes().replace(shipped, changed))
    monkeypatch.setenv(library.VARIABLE, str(other))
    outcome = run("plugin", "list")
    assert f"creator {renamed[-1]}, namespace tblock" in outcome.out
    assert names[-1] not in outcome.out
    table = json.loads(run("plugin", "list", "--json").out)["table"]
    assert [creator["name"] for creator in table["creators"]] == renamed
    other.write_bytes(b"TBLOCK-PLUGIN-TABLE" + b'{"versions": {}}\0')
    outcome = run("plugin", "list")
    assert outcome.code != 0
    assert "or one of another tblock; build it again with `tblock plugin build`" in outcome.err


def test_plugin_describe_of_another_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"a\.so: no such plugin library; `tblock plugin build`"):
        read_table(tmp_path / "a.so")
    (tmp_path / "b.so").write_bytes(b"\x7fELF nothing")
    with pytest.raises(ArtifactError, match=r"b\.so: not a tblock plugin library"):
        read_table(tmp_path / "b.so")


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
    with pytest.raises(RuntimeUnavailable, match=r"no C\+\+ compiler found \(looked for c\+\+ and g\+\+\)"):
        check_tools()
    monkeypatch.setenv("CXX", "clang-none")
    with pytest.raises(RuntimeUnavailable, match="looked for clang-none"):
        check_tools()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(library_build, "generate", lambda *_: pytest.fail("work was begun"))
    with pytest.raises(RuntimeUnavailable, match="looked for clang-none"):
        build()


def test_plugin_build_error_is_one_line_with_the_compilers_first_and_the_folder(tmp_path: Path) -> None:
    """In a folder whose name has a space."""
    source, generated, work = tmp_path / "a source", tmp_path / "generated", tmp_path / "the work"
    shutil.copytree(library.package_folder() / "trt-plugin", source)
    generated.mkdir()
    with pytest.raises(ExportError, match=r"configure failed in .*the work: CMake Error") as caught:
        compile_library(source, generated, tmp_path, work)
    assert "\n" not in str(caught.value)
    (generated / "images.S").touch()
    include = headers.find_headers()[0]
    with pytest.raises(
        ExportError, match=r"compile failed in .*the work: .*error: contract\.h: No such file"
    ):
        compile_library(source, generated, include, work)


@pytest.mark.exhaustive
def test_plugin_build_from_nothing_needs_no_nvcc(tmp_path: Path, plugin_library: Path) -> None:
    """A fresh cache and a PATH without nvcc; the result is the same file, whatever folder it was built in,
    with a space in its name too."""
    folders = [d for d in os.environ["PATH"].split(os.pathsep) if not Path(d, "nvcc").exists()]
    code = "import pathlib, sys, tblock.export.plugins as p; p.build(pathlib.Path(sys.argv[1]), force=True)"
    environment = os.environ | {
        "PATH": os.pathsep.join(folders),
        "TRITON_CACHE_DIR": str(tmp_path / "triton"),
    }
    environment["TMPDIR"] = str(tmp_path / "a folder")
    Path(environment["TMPDIR"]).mkdir()
    built = tmp_path / "fresh.so"
    subprocess.run([sys.executable, "-c", code, str(built)], env=environment, check=True, timeout=300)
    assert built.read_bytes() == plugin_library.read_bytes()
