"""The AOTInductor package: which CPUs run it, and what a compiler, a disk or a crash that fails it says."""

import errno
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tblock import preset
from tblock.child import ChildFailure
from tblock.errors import ArtifactError, ConfigError, ExportError
from tblock.export import aoti, aoti_compiler
from tblock.export.request import ExportOptions, checked
from tblock.manifest import Artifact, file_digest, read_artifact
from tblock.ranges import Range
from tblock.runtimes.aoti import check_build
from tests.artifacts import export
from tests.conftest import Once
from tests.runtimes.conftest import make_odd32

TINY = preset("tiny")
SHORT = Range(1, 8, 16)
X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="levels are of x86-64")
ABOVE_AVX2 = re.compile(r"%zmm|%[xy]mm(?:1[6-9]|2\d|3[01])\b|%k[0-7]\b")
"""Registers that only AVX512 has."""


def _registers(library: Path) -> set[str]:
    done = subprocess.run(["objdump", "-d", library], capture_output=True, text=True, check=True)
    assert "%ymm" in done.stdout
    return set(ABOVE_AVX2.findall(done.stdout))


def _packaged(once: Once, cpu: str | None) -> Artifact:
    if cpu is None:
        return read_artifact(make_odd32(once))
    folder = once(f"aoti-{cpu}", lambda folder: export(TINY, folder, to=("onnx", "aoti"), seq=SHORT, cpu=cpu))
    return read_artifact(folder)


def _library(artifact: Artifact, folder: Path) -> Path:
    with zipfile.ZipFile(artifact.path("model.pt2")) as package:
        (name,) = [name for name in package.namelist() if name.endswith(".so")]
        return Path(package.extract(name, folder))


@X86
def test_package_holds_nothing_above_the_stated_level(once: Once, tmp_path: Path) -> None:
    artifact = _packaged(once, None)
    entry = artifact.manifest.targets["aoti"]
    assert (entry["cpu"], entry["architecture"]) == ("x86-64-v3", "x86_64")
    assert entry["compiler"] == "-march=x86-64-v3 -mavx2 -mfma -mf16c"
    assert {"avx2", "fma", "bmi2", "f16c", "movbe", "abm", "pni"} <= set(entry["cpu_flags"])
    assert not [flag for flag in entry["cpu_flags"] if flag.startswith(("avx512", "amx"))]
    assert not _registers(_library(artifact, tmp_path))


@X86
def test_instructions_above_the_level_are_seen(tmp_path: Path) -> None:
    """The broken twin of the package: the same look at code compiled for AVX512."""
    source, library = tmp_path / "sum.cpp", tmp_path / "sum.so"
    source.write_text("void add(float *y, const float *x) { for (int i = 0; i < 4096; i++) y[i] += x[i]; }")
    flags = ["-O3", "-march=x86-64-v4", "-mprefer-vector-width=512", "-shared", "-fPIC"]
    subprocess.run(["g++", *flags, source, "-o", library], check=True)
    text = subprocess.run(["objdump", "-d", library], capture_output=True, text=True, check=True).stdout
    assert ABOVE_AVX2.search(text)


@X86
@pytest.mark.exhaustive
@pytest.mark.parametrize("cpu", ["x86-64-v4", "native"])
def test_package_for_a_higher_level_says_what_it_needs(cpu: str, once: Once, tmp_path: Path) -> None:
    if aoti.CPUS["x86-64-v4"] not in aoti.cpu_flags():
        pytest.skip("this CPU has no AVX512")
    artifact = _packaged(once, cpu)
    entry = artifact.manifest.targets["aoti"]
    assert entry["compiler"].startswith(f"-march={cpu} ")
    if cpu == "x86-64-v4":
        assert "avx512_bf16" not in entry["cpu_flags"]
    else:  # -march=native may emit whatever this CPU has, told by name or not
        assert ("avx512_bf16" in entry["cpu_flags"]) == ("avx512_bf16" in aoti.cpu_flags())
    assert {"avx512f", "avx512vl", "avx2"} <= set(entry["cpu_flags"])
    assert _registers(_library(artifact, tmp_path))


@X86
@pytest.mark.exhaustive
def test_load_leaves_no_folder_and_says_nothing_of_the_cpu(
    once: Once, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a fresh process, whose end is a part of it: a whole package, then one whose library is none."""
    artifact = _packaged(once, None)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        shutil.copytree(artifact.folder, folder)
    with zipfile.ZipFile(whole / "model.pt2") as source, zipfile.ZipFile(broken / "model.pt2", "w") as target:
        for entry in source.infolist():
            content = source.read(entry)
            target.writestr(entry.filename, b"no library" if entry.filename.endswith(".so") else content)
    for folder, said in ((whole, "loaded"), (broken, "AOTInductor cannot load it")):
        file = {"size": (folder / "model.pt2").stat().st_size, "sha256": file_digest(folder / "model.pt2")}
        manifest = replace(artifact.manifest, files={**artifact.manifest.files, "model.pt2": file})
        (folder / "manifest.json").write_text(manifest.to_json())
        done = subprocess.run(
            [sys.executable, "-c", LOAD, folder],
            env={**os.environ, "TMPDIR": str(temporary)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert said in done.stdout + done.stderr
        assert "mismatch" not in done.stderr
        left = [path.name for path in temporary.iterdir() if "aoti" in path.name]
        assert not left, done.stderr


LOAD = """
import sys
from tblock.errors import ArtifactError
from tblock.runtimes import load
try:
    runner = load(sys.argv[1], "aoti")
    print("loaded")
except ArtifactError as error:
    print(error)
"""

ENTRY = {"torch": "", "architecture": "x86_64", "cpu": "x86-64-v4", "cpu_flags": ["avx2", "avx512f"]}


@pytest.mark.parametrize(
    ("machine", "flags", "message"),
    [
        ("x86_64", {"avx2"}, "built for x86_64 CPUs of level x86-64-v4, this one has no avx512f; export"),
        ("aarch64", {"asimd"}, "built for x86_64 CPUs of level x86-64-v4, this one is aarch64; export"),
        ("x86_64", {"avx2", "avx512f", "amx"}, None),
    ],
    ids=["lacks", "other", "more"],
)
def test_package_is_refused_where_the_cpu_lacks_what_it_needs(
    machine: str, flags: set[str], message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr("tblock.runtimes.aoti.cpu_flags", lambda: flags)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    target = {**ENTRY, "torch": torch.__version__}
    if message is None:
        check_build("m.pt2", target)
        return
    with pytest.raises(ArtifactError, match=f"^m.pt2: {message}"):
        check_build("m.pt2", target)


def test_package_that_does_not_say_what_it_needs_is_refused() -> None:
    import torch

    with pytest.raises(ArtifactError, match=r"^m\.pt2: its manifest does not say which CPUs run it; export"):
        check_build("m.pt2", {"torch": torch.__version__, "cpu_capability": "AVX2"})


@pytest.mark.parametrize(
    ("options", "flags", "message"),
    [
        ({"cpu": "x86-64-v2"}, {"avx2"}, "--cpu x86-64-v2: unknown; known: native, x86-64-v3, x86-64-v4"),
        ({"cpu": "x86-64-v4"}, {"avx2"}, "--cpu x86-64-v4: this .* CPU has no avx512f; .*; use --cpu native"),
        ({"cpu": "x86-64-v3"}, {"asimd"}, "--cpu x86-64-v3: this .* CPU has no avx2; "),
        (
            {"cpu": "native", "to": ("onnx",)},
            {"avx2"},
            "--cpu native: nothing would read it; needs --to aoti",
        ),
    ],
    ids=["unknown", "above", "none", "unread"],
)
def test_cpu_that_cannot_be_had_is_refused_before_the_work(
    options: dict, flags: set[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aoti, "cpu_flags", lambda: flags)
    with pytest.raises(ConfigError, match=f"^{message}"):
        checked(ExportOptions(**{"to": ("aoti",), **options}), [TINY])


COMPILERS = {
    "words": ("echo 'x.cpp:1: fatal error: nothing.h: No such file' >&2; exit 1", "nothing.h: No such file"),
    "crash": ("kill -ABRT $PPID", "aoti: its process was killed by SIGABRT while compiling for x86-64-v3"),
}


@X86
@pytest.mark.parametrize("case", ["words", pytest.param("crash", marks=pytest.mark.exhaustive)])
def test_failed_compilation_leaves_the_caller_and_what_was_built(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler that fails, and a native crash in the process it is called from."""
    script, message = COMPILERS[case]
    compiler = tmp_path / "g++"
    # Asked for its version or its macros it answers; the first real compilation fails.
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *.cpp*|*.h*) {script};; esac\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "a"
    with pytest.raises(ExportError) as caught:
        export(TINY, folder, to=("onnx", "aoti"), seq=SHORT)
    line = str(caught.value)
    assert message in line
    assert "\n" not in line
    if case == "words":
        assert f"the compiler's files to {tmp_path / 'cache'}" in line
    assert sorted(p.name for p in folder.iterdir()) == [
        "golden.safetensors",
        "manifest.json",
        "model.onnx",
        "model.standard.onnx",
        "weights.safetensors",
    ]
    assert list(read_artifact(folder).manifest.targets) == ["onnx"]
    assert list(json.loads((folder / "manifest.json").read_text())["files"]) == [
        "golden.safetensors",
        "model.onnx",
        "model.standard.onnx",
        "weights.safetensors",
    ]


def test_failure_names_the_disk_the_compilers_first_error_or_inductors_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/big disk/cache")
    folder = Path("/out/.a.tblock")
    full = OSError(errno.ENOSPC, "No space left on device", "/out/x")
    compiler = RuntimeError(
        "C++ compile error\n\nOutput:\nIn file:\n  a.h:3:1: error: no luck\na.h:4: error: b"
    )
    for error, message in (
        (full, "aoti: the disk is full (/out/x); "),
        (compiler, "aoti: the C++ compiler failed: a.h:3:1: error: no luck; "),
        (RuntimeError("the reason\nmore"), "aoti: Inductor failed: the reason; "),
        (AssertionError(), "aoti: Inductor failed: AssertionError; "),
    ):
        line = aoti_compiler.failure(error, folder)
        assert line.startswith(f"{message}the package goes to /out, the compiler's files to /big disk/cache")
        assert line.endswith("set TMPDIR to a path without one")


def test_crash_on_a_full_disk_names_the_disk(
    once: Once, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = read_artifact(once("aoti-none", lambda folder: export(TINY, folder, seq=SHORT)))

    def ask(*_: object, **__: object) -> None:
        raise ChildFailure("aoti: its process was killed by SIGABRT")

    monkeypatch.setattr(aoti, "ask", ask)
    staged = tmp_path / "staged"
    staged.mkdir()
    for free, message in (
        (0, rf"^aoti: the disk is full \({tmp_path}\); aoti: its process"),
        (1 << 30, "^aoti: its"),
    ):
        monkeypatch.setattr(
            aoti.shutil, "disk_usage", lambda path, free=free: type("Use", (), {"free": free})
        )
        with pytest.raises(ExportError, match=message):
            aoti.compile_package(artifact, staged / "model.pt2", "native")
    assert not list(staged.iterdir())
