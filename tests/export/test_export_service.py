"""The one way of an export, for command line and Python: what was built is run, judged and recorded."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

import tblock.export
from tblock import Block, Stack, preset
from tblock.errors import ConfigError, ExportError, ParityError, TblockError
from tblock.export import exporter, onnx_bodies
from tblock.export.block_source import ModuleSource, parse_layers
from tblock.export.request import ExportOptions, checked
from tblock.manifest import Artifact, read_artifact
from tblock.ranges import Range
from tblock.runtimes import RUNTIMES, CheckRow
from tblock.runtimes.statuses import EXIT_CODES, Status

TINY = preset("tiny")
SHORT = Range(1, 8, 16)


def test_export_from_python_runs_what_it_built_and_records_the_verdict(tmp_path: Path) -> None:
    artifact = tblock.export.export(TINY, tmp_path / "a", seq=SHORT)
    assert artifact.manifest.verdicts["onnxruntime"]["status"] == "PASS"
    assert read_artifact(tmp_path / "a").manifest == artifact.manifest


def test_export_from_python_that_misses_parity_raises_and_keeps_the_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broken twin: gate and up swapped in the graph's body."""
    broken = onnx_bodies._SWIGLU.replace("Sigmoid (wide_gate)", "Sigmoid (wide_up)")
    monkeypatch.setattr(onnx_bodies, "_SWIGLU", broken)
    with pytest.raises(ParityError, match=r"a: onnxruntime FAIL: .*; the artifact is there$"):
        tblock.export.export(TINY, tmp_path / "a", seq=SHORT)
    assert read_artifact(tmp_path / "a").manifest.verdicts["onnxruntime"]["status"] == "FAIL"


def test_scores_past_float16_name_the_way_out(tmp_path: Path) -> None:
    """ONNX Runtime's Attention keeps float16 scores; the decomposed form is right on this block."""
    block = Block(TINY).requires_grad_(False)
    block.reset_parameters(torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(0)
    for linear in (block.attn.q, block.attn.k):
        linear.weight.normal_(std=20.0, generator=generator)
    half: dict[str, Any] = {"dtype": "float16", "seq": SHORT}
    with pytest.raises(
        ParityError, match=r"is not finite .*; where attention's scores pass 65504, --opset 18"
    ):
        tblock.export.export(block, tmp_path / "a", **half)
    assert tblock.export.export(block, tmp_path / "b", **half, opset=18).manifest.verdicts["onnxruntime"]


def result(*statuses: Status, failed: dict[str, str] | None = None) -> exporter.ExportResult:
    rows = [CheckRow.without_cases(f"r{n}", status, "why") for n, status in enumerate(statuses)]
    return exporter.ExportResult(Artifact(Path("a"), None), failed=failed or {}, rows=rows)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("made", "kind", "words"),
    [
        (result("PASS", "UNAVAILABLE"), None, ""),
        (result("UNAVAILABLE"), None, ""),
        (result("PASS", "ERROR"), ExportError, "r1 ERROR: why"),
        (result("ERROR", "FAIL"), ParityError, "r1 FAIL: why"),
        (result("AMBIGUOUS"), ParityError, "r0 AMBIGUOUS: why"),
        (result("PASS", failed={"aoti": "no room"}), ExportError, "written without aoti: no room"),
    ],
    ids=["missing-runtime", "nothing-ran", "crash", "wrong-and-crash", "ambiguous", "not-built"],
)
def test_outcome_of_an_export_is_one_error_of_its_kind(
    made: exporter.ExportResult, kind: type[TblockError] | None, words: str
) -> None:
    """A crash while verifying is no missed parity (exit 4, not 1); a runtime that is not here is neither."""
    error = made.error()
    assert type(error) is (kind or type(None))
    assert words in str(error)
    assert EXIT_CODES["ERROR"] == ExportError.exit_code != ParityError.exit_code


@pytest.mark.parametrize("fusion", ["native", "plugin"])
def test_every_runtime_of_a_target_is_asked_and_plugin_engines_get_their_library(
    fusion: str, exported: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    artifact = exported()
    targets = {"onnx": {"files": []}, "tensorrt": {"files": [], "fusion": fusion}}
    manifest = dataclasses.replace(artifact.manifest, targets=targets)
    monkeypatch.setitem(RUNTIMES, "second", RUNTIMES["onnxruntime"])
    monkeypatch.setattr("tblock.export.plugins.library_path", lambda: tmp_path / "lib.so")
    (tmp_path / "lib.so").touch()
    asked: dict[str, Any] = {}

    def check(folder: Path, runtimes: list[str], **options: Any) -> list[CheckRow]:
        asked.update(options, runtimes=runtimes)
        return [CheckRow.without_cases(name, "PASS", "") for name in runtimes]

    monkeypatch.setattr("tblock.runtimes.check", check)
    monkeypatch.setattr(exporter, "record_verdicts", lambda artifact, verdicts: verdicts)
    made = exporter.ExportResult(Artifact(artifact.folder, manifest))
    exporter._judge(made, lambda line: None)
    assert asked["runtimes"] == ["onnxruntime", "tensorrt", "second"]
    assert asked["plugin_library"] == (str(tmp_path / "lib.so") if fusion == "plugin" else None)
    assert list(made.artifact) == asked["runtimes"]  # type: ignore[call-overload]


def broken_aoti(monkeypatch: pytest.MonkeyPatch) -> None:
    run_stage = exporter.run_stage

    def stage(name: str, job: Any) -> dict[str, Any]:
        if name == "aoti":
            raise ExportError("aoti: the compiler's own words")
        return run_stage(name, job)

    monkeypatch.setattr(exporter, "run_stage", stage)


def test_target_that_fails_leaves_those_built_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_aoti(monkeypatch)
    with pytest.raises(ExportError, match=r"a: written without aoti: aoti: the compiler's own words$"):
        tblock.export.export(TINY, tmp_path / "a", to=("onnx", "aoti"), seq=SHORT, verify=False)
    artifact = read_artifact(tmp_path / "a")
    assert list(artifact.manifest.targets) == ["onnx"]
    assert any("aoti was asked for and could not be built" in note for note in artifact.manifest.notes)
    before = (tmp_path / "a" / "manifest.json").read_bytes()
    with pytest.raises(ExportError, match=r"^aoti: the compiler's own words$"):
        tblock.export.export(
            TINY, tmp_path / "a", to=("onnx", "aoti"), seq=SHORT, verify=False, force=True, dtype="float16"
        )
    assert (tmp_path / "a" / "manifest.json").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [({}, [0, 3]), ({"layer": 1}, [1, 2]), ({"layers": "1:3"}, [1, 3]), ({"layers": "all"}, [0, 3])],
    ids=["all", "layer", "layers", "all-by-name"],
)
def test_layers_of_the_callers_stack_are_those_named(asked: dict[str, Any], expected: list[int]) -> None:
    stack = Stack([TINY] * 3)
    source = ModuleSource(stack, **asked)
    assert source.description["layers"] == expected
    y = x = torch.randn(1, 5, 64)
    for block in stack.layers[expected[0] : expected[1]]:
        y = block(y)
    assert torch.equal(source.module(torch.float32)(x), y)


def test_targets_and_ranges_may_be_texts() -> None:
    options = ExportOptions(to="onnx, aoti,onnx", dtype="fp16", batch="1:4", seq="8")  # type: ignore[arg-type]
    assert (options.to, options.dtype) == (("onnx", "aoti"), "float16")
    assert (options.batch, options.seq) == (Range(1, 4, 4), Range(8, 8, 8))
    options = ExportOptions(dtype=torch.float16, batch=3, seq=(1, 16, 64))  # type: ignore[arg-type]
    assert (options.dtype, options.batch, options.seq) == ("float16", Range(3, 3, 3), Range(1, 16, 64))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"opste": 18}, r"^export\(opste=\.\.\.\): unknown option; known: to, dtype, batch, seq, opset, "),
        ({"to": None}, "^to=None: wanted names of targets; known: onnx"),
        ({"batch": None}, "^--batch 'None': wanted MIN:OPT:MAX"),
        ({"seq": (1, 2, 3, 4)}, "^--seq '1:2:3:4': wanted MIN:OPT:MAX"),
        ({"dtype": None}, "^--dtype 'None': unknown; known: float32"),
        ({"layer": "1"}, "^layer='1', layers=None: wanted a number, or a text such as 0:2"),
        ({"layers": 2}, "^layer=None, layers=2: wanted a number, or a text such as 0:2"),
    ],
    ids=["name", "to", "batch", "seq", "dtype", "layer", "layers"],
)
def test_argument_of_another_type_is_one_line(asked: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        tblock.export.export(TINY, tmp_path / "a", **asked)


@pytest.mark.parametrize("source", [torch.nn.Linear(2, 3), None, {}], ids=["linear", "none", "dict"])
def test_source_of_another_type_says_what_is_taken(source: Any, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=f"^source: got a {type(source).__name__}, wanted a BlockConfig, Bl"
    ):
        tblock.export.export(source, tmp_path / "a")
    with pytest.raises(ConfigError, match=r"^configs: got a Linear, wanted BlockConfigs"):
        Stack([torch.nn.Linear(2, 3)])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"opset": 18}, "--opset 18: nothing would read it; needs --to onnx or tensorrt or tensorrt-rtx"),
        ({"fusion": "native"}, "--fusion native: nothing would read it; needs --to tensorrt or tensorrt-rtx"),
        ({"tf32": True}, "--tf32 True: nothing would read it; needs --to tensorrt or tensorrt-rtx"),
    ],
    ids=["opset", "fusion", "tf32"],
)
def test_option_that_nothing_would_read_is_refused(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked(ExportOptions(to=("aoti",), **asked), [TINY])
    assert str(caught.value) == message
    checked(ExportOptions(to=("onnx", "tensorrt-rtx"), **asked), [TINY])


@pytest.mark.parametrize("text", ["²:3", "٠:٢", "0:２"])
def test_digits_of_other_scripts_are_no_layers(text: str) -> None:
    with pytest.raises(ConfigError, match=r"wanted A:B with 0 <= A < B <= 6, or all$"):
        parse_layers(text, None, 6)


def test_notes_name_the_graph_only_where_there_is_one(tmp_path: Path) -> None:
    without = exporter._notes(tmp_path, {"aoti": {}}, {})
    (tmp_path / "model.onnx").touch()
    beside = exporter._notes(tmp_path, {"onnx": {}}, {})
    assert ["the ONNX graph points into it" in notes[0] for notes in (without, beside)] == [False, True]
    assert any("aoti: the package holds a second copy" in note for note in without)
