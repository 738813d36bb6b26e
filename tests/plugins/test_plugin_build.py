"""Building the library: what it depends on, where it goes, and what is said when something is missing."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tblock.errors import ConfigError, ExportError, RuntimeUnavailable
from tblock.export.plugins import (
    architectures,
    build,
    cache_folder,
    headers,
    library,
    library_builder,
    library_path,
    read_table,
)
from tblock.export.plugins.library_builder import check_tools, compile_library
from tests.cli.outcome import Run


def test_plugin_build_is_cached_and_copied(plugin_library: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    copy = build(tmp_path / "out" / "copy.so", report=lines.append)
    assert lines == [f"cached: {plugin_library}"]
    assert copy.read_bytes() == plugin_library.read_bytes()
    assert [p.name for p in copy.parent.iterdir()] == ["copy.so"]


def test_plugin_build_of_other_architectures_is_not_the_cached_one(plugin_library: Path) -> None:
    """Whatever order they are named in, the same set is the same library."""
    assert library_builder.ingredients((90, 120)) == read_table(plugin_library)["ingredients"]
    assert library_builder.ingredients((90,)) != read_table(plugin_library)["ingredients"]
    assert build(cubins=(120, 90, 90), report=lambda line: None) == plugin_library


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking for the tools, which comes before any work, fails the test."""
    monkeypatch.setattr(library_builder, "check_tools", lambda: pytest.fail("work was begun"))


def _own_headers(folder: Path) -> Path:
    folder.mkdir()
    (folder / "NvInferRuntime.h").write_text("// runtime\n")
    (folder / "NvInferRuntimeBase.h").write_text("// base\n")
    version = "#define NV_TENSORRT_MAJOR 10 //!<\n#define NV_TENSORRT_MINOR 14\n"
    (folder / "NvInferVersion.h").write_text(version)
    return folder


class _Workshop:
    """The build but for the compilers, on copies that may be changed: its library only says what it is of."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.patch, self.cubins = patch, (90, 120)
        ignore = shutil.ignore_patterns("__pycache__")
        self.package = shutil.copytree(library.package_folder(), folder / "plugins", ignore=ignore)
        self.core = folder / "tblock"
        self.core.mkdir()
        for name in ("contract.py", "dtypes.py", "__init__.py"):
            shutil.copy(Path(library.tblock.__file__).parent / name, self.core)
        self.include = _own_headers(folder / "include")
        patch.setenv(headers.VARIABLE, str(self.include))
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setattr(library, "package_folder", lambda: self.package)
        patch.setattr(library.tblock, "__file__", str(self.core / "__init__.py"))
        patch.setattr(library_builder, "generate", lambda folder, *_: folder.mkdir())
        patch.setattr(library_builder, "compile_library", self._compile)

    def _compile(self, source: Path, generated: Path, include: Path, work: Path) -> Path:
        work.mkdir()
        table = {"ingredients": library_builder.ingredients(self.cubins), "creators": [], "variants": []}
        (work / "lib.so").write_bytes(b"TBLOCK-PLUGIN-TABLE" + json.dumps(table).encode() + b"\0")
        return work / "lib.so"

    def build(self) -> str:
        """`built` or `cached`."""
        lines: list[str] = []
        build(cubins=self.cubins, report=lines.append)
        return lines[-1].split(":")[0]

    def change(self, what: str) -> None:
        """One byte of an ingredient."""
        if what == "triton":
            version = library_builder.importlib.metadata.version
            self.patch.setattr(
                library_builder.importlib.metadata, "version", lambda name: version(name) + "1"
            )
        elif what == "cubins":
            self.cubins = (90,)
        elif what == "CXXFLAGS":
            self.patch.setenv("CXXFLAGS", "-O1")
        else:
            path = {
                "headers": self.include / "NvInferRuntimeBase.h",
                "kernels": self.package / "kernels" / "swiglu.py",
                "trt-plugin": self.package / "trt-plugin" / "plugin.cpp",
                "contract": self.core / "contract.py",
            }[what]
            path.write_bytes(path.read_bytes() + b"\n")


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Workshop:
    """A build that has been done once."""
    shop = _Workshop(tmp_path, monkeypatch)
    assert [shop.build(), shop.build()] == ["built", "cached"]
    return shop


@pytest.mark.parametrize(
    "what", ["headers", "kernels", "trt-plugin", "contract", "triton", "cubins", "CXXFLAGS"]
)
def test_plugin_build_with_a_byte_of_an_ingredient_changed_is_not_the_cached_one(
    what: str, workshop: _Workshop
) -> None:
    workshop.change(what)
    assert [workshop.build(), workshop.build()] == ["built", "cached"]


@pytest.mark.parametrize(
    ("what", "module", "function"),
    [("headers", headers, "identity"), ("kernels", library, "sources"), ("trt-plugin", library, "sources")],
)
def test_plugin_build_twin_that_leaves_an_ingredient_out_is_caught(
    what: str, module: ModuleType, function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, function, lambda: [] if function == "sources" else "")
    shop = _Workshop(tmp_path, monkeypatch)
    assert shop.build() == "built"
    shop.change(what)
    assert shop.build() != "built"


def test_plugin_sources_hold_every_file_that_the_build_loads() -> None:
    """A digest over names in a list says nothing about a file that is not in it."""
    code = (
        "import sys; from tblock.export.plugins import aot, codegen, library_builder, library\n"
        "loaded = [m.__file__ for n, m in sys.modules.items() if n.startswith('tblock.export.plugins.')]\n"
        "print(*loaded, sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {Path(line).resolve() for line in done.stdout.splitlines()}
    # Where the library and its headers lie is not what it is made of.
    finders = {library.package_folder() / f"{name}.py" for name in ("cache_folder", "headers", "library")}
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
        library_builder._install(source, target)
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
    assert cache_folder.cache_folder("plugins") == tmp_path / "tblock" / "plugins"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "lib.so"))
    with pytest.raises(ConfigError, match=r"cannot be made \(Not a directory\); set XDG_CACHE_HOME"):
        build()


@pytest.mark.parametrize("full", ["python", "compiler"])
def test_plugin_build_in_a_full_temporary_folder_says_so(
    full: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(headers.VARIABLE, str(_own_headers(tmp_path / "include")))
    monkeypatch.setattr(library_builder.tempfile, "tempdir", str(tmp_path))

    def generate(folder: Path, *_: object) -> None:
        if full == "python":
            raise OSError(errno.ENOSPC, "No space left on device", str(folder / "contract.h"))

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(
            command, 1, "[1/9] c++ ...\nld: final link failed: No space left on device", ""
        )

    monkeypatch.setattr(library_builder, "generate", generate)
    monkeypatch.setattr(library_builder.subprocess, "run", run)
    with pytest.raises(ExportError) as caught:
        build()
    message = str(caught.value)
    assert "\n" not in message
    assert str(tmp_path / "tblock-plugin-") in message
    assert ("the disk is full" if full == "python" else "failed: No space left on device") in message
    assert "; set TMPDIR to " in message
    assert not list(tmp_path.glob("tblock-plugin-*"))


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
    monkeypatch.setattr(library_builder, "generate", lambda *_: pytest.fail("work was begun"))
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
