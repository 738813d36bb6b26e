"""What a user can get wrong on the command line: one line on stderr, nothing on stdout, the exit code."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tblock import preset
from tblock.ranges import Range
from tests.cli.outcome import Run

PRESETS = "tiny, transformer-2017, gpt2, bert-base, smollm2-135m, llama-3.2-1b, llama-3-8b"
RUNTIMES = "eager, compile, aoti, onnxruntime, tensorrt, tensorrt-rtx"
TARGETS = "onnx, aoti, tensorrt, tensorrt-rtx"
DTYPES = "float32, fp32, float, float16, fp16, half, bfloat16, bf16"


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.artifacts import export

    folder = tmp_path_factory.mktemp("cli") / "a"
    export(preset("tiny"), folder, seq=Range(1, 8, 16))
    return folder


# Words with {out}: a folder that is not there; {artifact}: a good one; {file}: a file. Exit code, the line.
WRONG: list[tuple[str, str, int, str]] = [
    (
        "verb",
        "exprot",
        2,
        "'exprot' is not a verb of tblock; known: demo, export, build, check, bench, inspect, list,",
    ),
    (
        "preset",
        "export --preset gpt-2 -o {out}",
        2,
        f"preset 'gpt-2': unknown; did you mean gpt2? known: {PRESETS}",
    ),
    ("demo-preset", "demo --preset zzz -o {out}", 2, f"preset 'zzz': unknown; known: {PRESETS}"),
    ("no-source", "export -o {out}", 2, "got no source; give one of --preset, --config, --checkpoint"),
    (
        "two-sources",
        "export --preset tiny --config c.json -o {out}",
        2,
        "got --preset and --config; give one of --preset, --config, --checkpoint",
    ),
    ("dtype", "export --preset tiny --dtype fp8 -o {out}", 2, f"--dtype 'fp8': unknown; known: {DTYPES}"),
    (
        "target",
        "export --preset tiny --to onnx,tflite -o {out}",
        2,
        f"--to tflite: unknown; known: {TARGETS}",
    ),
    ("no-target", "export --preset tiny --to , -o {out}", 2, f"--to: no target; known: {TARGETS}"),
    ("opset", "export --preset tiny --opset 17 -o {out}", 2, "--opset 17: unknown; known: 18, 23"),
    (
        "fusion",
        "export --preset tiny --fusion x -o {out}",
        2,
        "--fusion x: unknown; known: plugin, native, auto",
    ),
    ("batch", "export --preset tiny --batch 0 -o {out}", 2, "--batch '0': MIN must be at least 1"),
    ("seq", "export --preset tiny --seq 8:4 -o {out}", 2, "--seq '8:4': wanted MIN <= OPT <= MAX"),
    (
        "long",
        "export --preset tiny --seq 999 -o {out}",
        2,
        "--seq 999:999:999: MAX is above the block's max_position; give at most 512",
    ),
    ("layer", "export --preset tiny --layer 2 -o {out}", 2, "--layer 2: the model has layers 0 to 1"),
    (
        "layers",
        "export --preset tiny --layers 1:5 -o {out}",
        2,
        "--layers '1:5': wanted A:B with 0 <= A < B <= 2, or all",
    ),
    (
        "both-layers",
        "export --preset tiny --layer 0 --layers all -o {out}",
        2,
        "--layer 0 and --layers all: give one of them",
    ),
    (
        "no-config",
        "export --config {out} -o {out}",
        2,
        "config {out}: No such file or directory; give a JSON file",
    ),
    ("bad-config", "export --config {file} -o {out}", 2, "config {file}: not JSON"),
    (
        "no-checkpoint",
        "export --checkpoint {out} -o {out}",
        2,
        "{out}: no such file or folder; give a checkpoint",
    ),
    (
        "bad-checkpoint",
        "export --checkpoint {file} -o {out}",
        2,
        "{file}: not a checkpoint; give a Hugging Face folder",
    ),
    ("pipe", "export --checkpoint {pipe} -o {out}", 2, "{pipe}: not a regular file; give a checkpoint"),
    (
        "long-path",
        "export --checkpoint " + "x" * 5000 + " -o {out}",
        2,
        "x: File name too long; give a checkpoint",
    ),
    (
        "huge-batch",
        "export --preset tiny --batch 1:1:99999999999999999999 -o {out}",
        2,
        "MAX must be at most 2147483647",
    ),
    ("endless", "bench {artifact} --seconds inf", 2, "--seconds inf: must be above 0 and finite"),
    (
        "threads",
        "check {artifact} --threads 100000",
        2,
        "threads=100000: must be at least 1 and at most 1024",
    ),
    (
        "bfloat16",
        "export --preset tiny --dtype bf16 -o {out}",
        2,
        "--to onnx --dtype bfloat16: ONNX Runtime on CPU has no bfloat16 MatMul; use float32 or float16, or "
        "--to aoti",
    ),
    (
        "output-exists",
        "export --preset tiny -o {artifact}",
        2,
        "--output {artifact}: exists; give another folder, or --force (force=True) to replace it",
    ),
    (
        "output-no-artifact",
        "export --preset tiny --force -o {folder}",
        2,
        "--output {folder}: has no manifest.json; --force replaces only artifact folders",
    ),
    (
        "demo-output",
        "demo --preset tiny -o {folder}",
        2,
        "--output {folder}: has no manifest.json; --force replaces only artifact folders",
    ),
    (
        "check-nothing",
        "check {out}",
        2,
        "{out}: no such folder; make an artifact with `tblock export ... -o {out}`",
    ),
    ("bench-nothing", "bench {folder}", 2, "{folder}: no manifest.json in it; make an artifact with"),
    ("inspect-nothing", "inspect {out}", 2, "{out}: no such folder; make an artifact with"),
    ("check-runtime", "check {artifact} --runtime ort", 2, f"runtime 'ort': unknown; known: {RUNTIMES}"),
    (
        "near-runtime",
        "check {artifact} --runtime onxruntime",
        2,
        "runtime 'onxruntime': unknown; did you mean onnxruntime?",
    ),
    ("bench-runtime", "bench {artifact} --runtime trt", 2, "runtime 'trt': unknown; "),
    ("bench-shape", "bench {artifact} --shapes 1,2", 2, "--shapes '1': wanted BxS, such as 1x128"),
    (
        "bench-range",
        "bench {artifact} --shapes 1x99 --runtime onnxruntime",
        2,
        "S=99: above the declared maximum 16",
    ),
    (
        "build-runtime",
        "build {artifact} --runtime onnxruntime",
        2,
        "--runtime onnxruntime: cannot be built; known: tensorrt,",
    ),
]


@pytest.mark.parametrize(("words", "code", "line"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_wrong_use_is_one_line_with_its_exit_code(
    words: str, code: int, line: str, artifact: Path, tmp_path: Path, run: Run
) -> None:
    places = {
        "out": tmp_path / "out",
        "artifact": artifact,
        "file": tmp_path / "file",
        "folder": tmp_path / "folder",
        "pipe": tmp_path / "pipe",
    }
    os.mkfifo(places["pipe"])
    places["file"].write_text("hello")
    places["folder"].mkdir()
    (places["folder"] / "thesis.tex").write_text("years of work")
    done = run(*words.format(**places).split())
    assert done.code == code
    assert len(done.complaint) == 1, done.err
    assert done.complaint[0].startswith("tblock: ")
    assert line.format(**places) in done.complaint[0]
    assert done.out == ""
    assert not places["out"].exists()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("export --preset tiny", "Missing option '-o' / '--output'."),
        ("check", "Missing argument 'folder'."),
        ("check x --colour", "No such option: --colour"),
        ("export --preset tiny -o x --layer one", "Invalid value for '--layer'"),
        ("plugin find", "'find' is not a verb of tblock plugin; known: build, list, path, wheel"),
        ("list planets", "'planets' is not one of 'presets', 'families', 'runtimes'"),
    ],
    ids=["missing-option", "missing-argument", "unknown-option", "not-a-number", "verb-of-plugin", "choice"],
)
def test_misspelt_options_are_answered_by_the_parser_with_2(words: str, what: str, run: Run) -> None:
    done = run(*words.split())
    assert (done.code, done.out) == (2, "")
    assert len(done.complaint) == 1
    assert done.complaint[0].startswith("tblock: ")
    assert what.rstrip(".") in done.complaint[0]


@pytest.mark.parametrize(
    ("damage", "verb", "line"),
    [
        (
            lambda f: (f / "weights.safetensors").write_bytes(b"x" * 10),
            "inspect",
            "weights.safetensors: 10 bytes, the manifest says",
        ),
        (
            lambda f: flip(f / "model.onnx"),
            "inspect",
            "model.onnx: digest mismatch, the file was changed or damaged",
        ),
        (
            lambda f: (f / "golden.safetensors").unlink(),
            "check",
            "golden.safetensors: missing; copy the whole artifact folder",
        ),
        (
            lambda f: flip(f / "golden.safetensors"),
            "check",
            "golden.safetensors: digest mismatch, the file was changed",
        ),
        (
            lambda f: swap(f / "manifest.json", "float32", "float64"),
            "check",
            "manifest.json: digest mismatch, the manifest was",
        ),
        (lambda f: (f / "manifest.json").write_text("{"), "bench", "manifest.json: cannot be read as JSON"),
        (
            lambda f: swap(f / "manifest.json", '"1.1"', '"2.0"'),
            "inspect",
            "manifest.json: format 2.0, this tblock reads 1.1",
        ),
    ],
    ids=["cut", "flipped", "golden-missing", "golden-flipped", "manifest-edited", "manifest-cut", "newer"],
)
def test_damaged_artifact_is_named_with_2(
    damage: Any, verb: str, line: str, artifact: Path, tmp_path: Path, run: Run
) -> None:
    folder = shutil.copytree(artifact, tmp_path / "copy")
    damage(folder)
    done = run(verb, folder, *(["--verify"] if verb == "inspect" else []))
    assert (done.code, done.out) == (2, "")
    assert len(done.complaint) == 1
    assert line in done.complaint[0]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def swap(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_damaged_weights_are_an_error_row_of_each_runtime(artifact: Path, tmp_path: Path, run: Run) -> None:
    folder = shutil.copytree(artifact, tmp_path / "copy")
    flip(folder / "weights.safetensors")
    done = run("check", folder, "--runtime", "onnxruntime")
    assert done.code == 2
    assert "weights.safetensors: digest mismatch" in done.out.replace("\n", "")


def test_parity_missed_exits_1(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken twin of a whole export: its last step finds the error, and so does `check`."""
    from tblock.export import onnx_bodies

    broken = onnx_bodies._SWIGLU.replace("Sigmoid (wide_gate)", "Sigmoid (wide_up)")
    monkeypatch.setattr(onnx_bodies, "_SWIGLU", broken)
    done = run("export", "--preset", "tiny", "--seq", "1:8:16", "-o", tmp_path / "a")
    assert done.code == 1
    assert "verdict onnxruntime: FAIL" in done.out
    again = run("check", tmp_path / "a", "--runtime", "onnxruntime", "--json")
    assert again.code == 1
    assert '"FAIL"' in again.out


def test_runtime_that_was_not_built_counts_only_where_it_is_asked_for(artifact: Path, run: Run) -> None:
    asked = run("check", artifact, "--runtime", "aoti")
    assert asked.code == 2
    assert "artifact has no aoti target; export with --to aoti" in " ".join(asked.out.split())
    assert run("bench", artifact, "--runtime", "aoti").code == 2


def test_disk_that_fills_up_exits_4(artifact: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tblock.export.onnx_model.ir.save", full)
    before = {p.name: p.read_bytes() for p in artifact.iterdir()}
    done = run("export", "--preset", "tiny", "--force", "-o", artifact)
    assert done.complaint == [f"tblock: --output {artifact}: the disk is full; the old artifact is intact"]
    assert (done.code, done.out) == (4, "")
    assert {p.name: p.read_bytes() for p in artifact.iterdir()} == before


def test_disk_that_fills_up_while_verdicts_are_written_exits_4(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Path.write_text

    def full(self: Path, *words: Any, **options: Any) -> int:
        if self.name.endswith(".part"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, *words, **options)

    monkeypatch.setattr(Path, "write_text", full)
    done = run("export", "--preset", "tiny", "--seq", "1:8:16", "-o", tmp_path / "a")
    assert done.complaint == [
        f"tblock: {tmp_path / 'a' / 'manifest.json'}: the disk is full; nothing was changed"
    ]
    assert done.code == 4
    assert run("inspect", tmp_path / "a", "--verify").code == 0


BLOCKER = "import os, sys\nfor name in os.environ['BLOCKED'].split(','): sys.modules[name] = None\n"


def without(packages: str, tmp_path: Path, *words: Any) -> subprocess.CompletedProcess[str]:
    """A real process, and its children, in which some packages cannot be imported."""
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    environment = {**os.environ, "BLOCKED": packages, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", "from tblock.cli import main; main()", *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path, check=False)


@pytest.mark.parametrize(
    ("package", "line"),
    [
        ("torch", "torch is not installed; pip install 'tblock[export]'"),
        pytest.param(
            "onnx", "onnx is not installed; pip install 'tblock[export]'", marks=pytest.mark.exhaustive
        ),
        pytest.param(
            "onnxscript",
            "onnxscript is not installed; pip install 'tblock[export]'",
            marks=pytest.mark.exhaustive,
        ),
        (
            "tensorrt_rtx",
            "--to tensorrt-rtx: tensorrt_rtx is not installed; pip install 'tblock[tensorrt-rtx]'",
        ),
    ],
)
def test_export_without_a_package_names_the_extra_and_exits_3(
    package: str, line: str, tmp_path: Path
) -> None:
    to = "tensorrt-rtx" if package == "tensorrt_rtx" else "onnx"
    done = without(package, tmp_path, "export", "--preset", "tiny", "--to", to, "-o", "out")
    lines = [text for text in done.stderr.splitlines() if not text.startswith("... ")]
    assert lines == [f"tblock: {line}"]
    assert (done.returncode, done.stdout) == (3, "")
    assert not (tmp_path / "out").exists()


def test_gguf_checkpoint_without_the_package_names_the_extra_and_exits_3(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + bytes(100))
    done = without("gguf", tmp_path, "export", "--checkpoint", "m.gguf", "-o", "out")
    lines = [text for text in done.stderr.splitlines() if not text.startswith("... ")]
    assert len(lines) == 1
    assert "pip install 'tblock[checkpoints]'" in lines[0]
    assert done.returncode == 3


def test_check_without_onnxruntime_names_the_extra_and_exits_3(artifact: Path, tmp_path: Path) -> None:
    done = without("onnxruntime", tmp_path, "check", artifact, "--runtime", "onnxruntime")
    assert done.returncode == 3
    assert "UNAVAILABLE" in done.stdout
    assert "pip install 'tblock[onnxruntime]'" in " ".join(done.stdout.split())


def test_verbs_that_need_no_torch_work_without_it(artifact: Path, tmp_path: Path) -> None:
    blocked = "torch,onnx,onnxscript,onnx_ir,gguf,transformers"
    for words in (
        ["inspect", artifact],
        ["list", "presets"],
        ["doctor"],
        ["check", artifact, "--runtime", "onnxruntime"],
    ):
        done = without(blocked, tmp_path, *words)
        assert done.returncode == 0, done.stderr
