"""What the verbs print: JSON on stdout and nothing else there, progress on stderr, tables for people."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tblock
from tblock import preset
from tblock.cli import output
from tblock.cli.export_report import print_verdicts
from tblock.manifest import read_artifact
from tblock.presets import PRESETS
from tblock.ranges import Range
from tblock.runtimes import RUNTIMES
from tests.artifacts import export
from tests.cli.outcome import Outcome, Run


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """One export through a real process, with its verdicts."""
    folder = tmp_path_factory.mktemp("cli") / "a"
    words = ["export", "--preset", "tiny", "--seq", "1:8:16", "--batch", "1:4", "--json", "-o", str(folder)]
    done = subprocess.run(
        [sys.executable, "-c", "from tblock.cli import main; main()", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    return folder, Outcome(done.returncode, done.stdout, done.stderr)


def test_export_json_is_all_of_stdout_and_progress_is_on_stderr(exported: tuple[Path, Outcome]) -> None:
    folder, done = exported
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["folder"] == str(folder)
    assert report["weights_bytes"] == 4 * preset("tiny").parameter_count()
    assert list(report["stages"]) == ["weights", "capture", "golden", "onnx"]
    assert report["targets"]["onnx"]["attention_reason"]
    assert report["verdicts"]["onnxruntime"]["status"] == "PASS"
    assert [line for line in done.err.splitlines() if line.startswith("... ")][:4] == [
        "... loading torch", "... weights", "... capture", "... golden data",
    ]  # fmt: skip


def test_export_wrote_its_verdicts_into_the_manifest(exported: tuple[Path, Outcome]) -> None:
    folder, done = exported
    artifact = read_artifact(folder)
    assert artifact.manifest.verdicts == json.loads(done.out)["verdicts"]
    assert (artifact.manifest.ranges["B"].opt, artifact.manifest.ranges["S"].max) == (4, 16)
    for name in artifact.manifest.files:
        artifact.path(name)


def test_export_report_for_people_names_stages_form_and_verdict(tmp_path: Path, run: Run) -> None:
    done = run(
        "export", "--preset", "tiny", "--seq", "8", "--opset", "18", "--dtype", "fp16", "-o", tmp_path / "a"
    )
    assert done.code == 0
    for text in ("weights", "capture", "golden", "peak memory", "opset: 18", "attention: decomposed",
                 "TblockAddRMSNorm 1", "verdict onnxruntime: PASS error "):  # fmt: skip
        assert text in done.out
    assert read_artifact(tmp_path / "a").manifest.dtype == "float16"


def test_check_json_has_a_row_for_each_runtime_asked(exported: tuple[Path, Outcome], run: Run) -> None:
    done = run("check", exported[0], "--runtimes", "onnxruntime, onnxruntime", "--threads", "1", "--json")
    rows = json.loads(done.out)
    assert [row["runtime"] for row in rows] == ["onnxruntime"]
    assert rows[0]["status"] == "PASS"
    assert 0 < rows[0]["ratio"] < 1
    assert (done.code, done.complaint) == (0, [])
    assert done.err


def test_check_table_names_verdict_and_shapes(exported: tuple[Path, Outcome], run: Run) -> None:
    done = run("check", exported[0], "--runtime", "onnxruntime", "--threads", "1")
    line = next(line for line in done.out.splitlines() if "onnxruntime" in line)
    assert "PASS" in line
    assert "B1S1" in line
    assert "B2S7" in line


def test_bench_json_has_a_row_for_each_shape_with_its_times(exported: tuple[Path, Outcome], run: Run) -> None:
    words = [
        "--runtime",
        "onnxruntime",
        "--shapes",
        "1x1,2x16",
        "--seconds",
        "0.05",
        "--threads",
        "1",
        "--json",
    ]
    done = run("bench", exported[0], *words)
    rows = json.loads(done.out)
    assert done.code == 0, done.err
    assert [row["case"] for row in rows] == ["B1 S1", "B2 S16"]
    for row in rows:
        assert row["status"] == "PASS"
        assert 0 < row["p10_s"] <= row["median_s"] <= row["p90_s"]
        assert row["threads"] == 1
    assert rows[1]["flops"] == preset("tiny").flop_count(batch=2, seq=16)


def test_bench_of_a_runtime_that_fails_its_check_prints_no_time(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tblock.export import onnx_bodies

    broken = onnx_bodies._SWIGLU.replace("Sigmoid (wide_gate)", "Sigmoid (wide_up)")
    monkeypatch.setattr(onnx_bodies, "_SWIGLU", broken)
    run("export", "--preset", "tiny", "--seq", "8", "--no-verify", "-o", tmp_path / "a")
    done = run("bench", tmp_path / "a", "--runtime", "onnxruntime", "--seconds", "0.05", "--json")
    (row,) = json.loads(done.out)
    assert (row["status"], row["median_s"], row["p90_s"]) == ("FAIL", None, None)
    assert done.code == 1


def test_inspect_json_is_the_manifest_and_the_flops(exported: tuple[Path, Outcome], run: Run) -> None:
    done = run("inspect", exported[0], "--json")
    fields = json.loads(done.out)
    assert (done.code, done.err) == (0, "")
    assert fields["parameters"] == preset("tiny").parameter_count()
    flops = preset("tiny").flop_count(batch=4, seq=8)
    assert fields["flops"] == {"B": 4, "S": 8, "count": flops}
    assert fields["targets"]["onnx"]["fused"] == {
        "TblockAddRMSNorm": 1,
        "TblockRMSNorm": 1,
        "TblockSwiGLU": 1,
    }


def test_inspect_for_people_shows_what_the_issue_asks(exported: tuple[Path, Outcome], run: Run) -> None:
    done = run("inspect", exported[0], "--verify")
    flops = preset("tiny").flop_count(batch=4, seq=8)
    expected = [
        "fused: TblockAddRMSNorm 1, TblockRMSNorm 1, TblockSwiGLU 1",
        "attention: attention-23",
        "softmax: float32",
        "softmax reason: the block's own precision",
        "opset: 23",
        "model.onnx (",
        f"parameters: {preset('tiny').parameter_count()} ",
        f"FLOPs at B 4 S 8: {flops} ",
        "input x: float32 [B, S, 64]",
        "ranges: B 1:4:4, S 1:8:16",
        "note: weights are stored once",
    ]
    assert [text for text in expected if text not in done.out] == []
    assert (done.code, done.err) == (0, "")


def test_inspect_names_where_a_config_came_from_and_counts_every_expert(tmp_path: Path, run: Run) -> None:
    config = preset("tiny").replace(num_experts=4, experts_per_token=1)
    (tmp_path / "moe.json").write_text(json.dumps(config.to_dict()))
    words = ["--config", tmp_path / "moe.json", "--seq", "1:8:16", "--no-golden"]
    assert run("export", *words, "-o", tmp_path / "file").code == 0
    export(config, tmp_path / "python", seq=Range(1, 8, 16), golden=False)
    assert read_artifact(tmp_path / "file").manifest.source["kind"] == "config"
    # Per token: q and out 64 x 64, k and v 64 x 32, the router, 4 experts; causal scores over 8 tokens.
    per_token = 2 * 64 * 64 + 2 * 64 * 32 + 64 * 4 + 4 * 3 * 64 * config.ffn_dim
    flops = 2 * (8 * per_token + 2 * 36 * 64)
    for folder, origin in (("file", "config moe.json"), ("python", "a BlockConfig")):
        told = run("inspect", tmp_path / folder).out
        assert told.startswith(f"{tmp_path / folder}: {origin} layers 0:1, float32, ")
        assert f"FLOPs at B 1 S 8: {flops} " in told


@pytest.mark.parametrize(
    ("what", "key", "names"),
    [("presets", "preset", list(PRESETS)), ("runtimes", "runtime", list(RUNTIMES))],
    ids=["presets", "runtimes"],
)
def test_list_json_and_table_hold_the_same_names(what: str, key: str, names: list[str], run: Run) -> None:
    rows = json.loads(run("list", what, "--json").out)
    assert [row[key] for row in rows] == names
    table = run("list", what)
    assert (table.code, table.err) == (0, "")
    assert all(any(line.split()[:1] == [name] for line in table.out.splitlines()) for name in names)


def test_list_families_names_llama_with_its_evidence(run: Run) -> None:
    rows = json.loads(run("list", "families", "--json").out)
    assert "llama" in [row["family"] for row in rows]
    assert all(len(row) == len(rows[0]) > 1 for row in rows)


@pytest.mark.parametrize(("verb", "key"), [("build", "library"), ("path", "library"), ("wheel", "wheel")])
def test_plugin_verbs_say_where_their_file_is(
    verb: str, key: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "made"
    for name in ("build", "library_path", "wheel.build_wheel"):
        monkeypatch.setattr(f"tblock.export.plugins.{name}", lambda *_, **__: file)
    assert json.loads(run("plugin", verb, "--json").out) == {key: str(file)}
    assert run("plugin", verb).out == f"{file}\n"


def test_doctor_says_what_is_there_and_what_brings_the_rest(run: Run) -> None:
    done = run("doctor", "--json")
    rows = {row["what"]: row for row in json.loads(done.out)}
    assert (done.code, done.err) == (0, "")
    assert {
        "python",
        "torch",
        "onnxruntime",
        "tensorrt_rtx",
        "tensorrt",
        "gguf",
        "g++",
        "NVIDIA GPU",
    } <= set(rows)
    for row in rows.values():
        assert bool(row["bring"]) == (row["found"] == "missing"), row
    assert rows["torch"]["found"][0].isdigit()


def test_version_is_the_packages(run: Run) -> None:
    assert run("--version").out == f"tblock {tblock.__version__}\n"


def test_no_verb_prints_the_help_with_2(run: Run) -> None:
    done = run()
    assert done.code == 2
    assert "Usage: tblock" in done.out + done.err


LOADED = """
import contextlib, io, sys
from tblock.cli import main
from tblock.cli.app import VERBS
def loaded(*calls):
    for words in calls:
        sys.argv = ["tblock", *words.split()]
        with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()): main()
    heavy = ("torch", "onnx", "onnxruntime", "numpy", "transformers", "rich.console")
    print([n for n in heavy if n in sys.modules])
loaded("--help", *(f"{verb} --help" for verb in VERBS))
loaded("exprot", "check --colour", "list planets", "export --preset gpt-2 -o x", "check no-such-folder")
"""


def test_help_and_wrong_use_load_no_heavy_package() -> None:
    """A real process: the time a user waits for an answer. Presets and manifests need numpy (0.1 s)."""
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "['numpy']"]


def test_console_script_answers() -> None:
    script = Path(sys.executable).with_name("tblock")
    if not script.exists():
        pytest.skip("no console script beside this python: tblock is not installed here")
    done = subprocess.run(
        [str(script), "list", "presets", "--json"], capture_output=True, text=True, check=True
    )
    assert len(json.loads(done.stdout)) == len(PRESETS)


@pytest.mark.parametrize(
    ("verdict", "line"),
    [
        (("PASS", 1e-7, 2e-7, ""), "verdict r: PASS error 1.00e-07, eager 2.00e-07"),
        (("UNAVAILABLE", None, None, "no GPU"), "verdict r: UNAVAILABLE no GPU"),
        (("REFUSED", 1.0, None, "lost"), "verdict r: REFUSED error 1.00e+00, eager - lost"),
    ],
    ids=["pass", "unavailable", "half-measured"],
)
def test_verdict_line_prints_what_was_measured(verdict: tuple[Any, ...], line: str, capsys: Any) -> None:
    print_verdicts({"r": dict(zip(("status", "error", "eager_error", "reason"), verdict, strict=True))})
    assert capsys.readouterr().out == line + "\n"


def test_table_keeps_brackets_and_long_reasons(capsys: Any) -> None:
    output.print_table(["a", ">b"], [["x[B, S]", "1"], ["[red]" * 5, "2"]], title="folder [1]")
    printed = capsys.readouterr().out
    assert "folder [1]" in printed
    assert "x[B, S]" in printed
    assert "[red]" * 5 in printed


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "unknown"), (0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2.5e12, "2500.0 GB")],
)
def test_size_is_in_decimal_units(count: float | None, text: str) -> None:
    assert output.size(count) == text


@pytest.mark.parametrize(
    ("count", "text"), [(7, "7"), (41088, "41.09 k"), (218_112_000, "218.11 M"), (7 * 10**9, "7.00 G")]
)
def test_number_has_two_decimals(count: int, text: str) -> None:
    assert output.number(count) == text
