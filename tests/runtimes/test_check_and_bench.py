"""check and bench through real child processes: their rows, and what a wrong runtime gets instead."""

import json
import threading
import time

import numpy as np
import pytest

from tblock.errors import ArtifactError
from tblock.golden import GoldenCase, read_golden, write_golden
from tblock.machine import gpu_or_none
from tblock.manifest import GOLDEN, read_artifact
from tblock.runtimes import RUNTIMES, BenchRow, CheckRow, bench, check, exit_code, load
from tblock.runtimes.jobs import chosen_runtimes
from tblock.runtimes.latency import _rows, disturbances, full_sizes, time_runner, work
from tblock.runtimes.parity import golden_cases, judge_runner
from tblock.runtimes.runner import Bound
from tests.runtimes import artifact_edits as edits


def rewrite_golden(folder, change):
    write_golden(folder / GOLDEN, [change(case) for case in read_golden(folder / GOLDEN)])
    return edits.reseal(folder)


@pytest.mark.exhaustive
def test_check_gives_one_row_for_each_runtime(odd32):
    lines = []
    # compile is in test_runner_contract: compiling twice takes longer than all the rest.
    names = ["eager", "aoti", "onnxruntime", "tensorrt", "tensorrt-rtx"]
    rows = {row.runtime: row for row in check(odd32, names, threads=2, progress=lines.append)}
    assert list(rows) == names
    for name in ("eager", "aoti", "onnxruntime"):
        row = rows[name]
        assert (row.status, row.exit_code, row.reason) == ("PASS", 0, ""), row
        assert 0 < row.ratio <= 1
        assert row.error > 0
        assert len(row.cases) == 5
    assert (rows["tensorrt"].status, rows["tensorrt"].exit_code) == ("NOT BUILT", 2)
    assert rows["tensorrt"].reason == "artifact has no tensorrt target; export with --to tensorrt"
    assert [line for line in lines if line.endswith(": loading")] == [
        f"{name}: loading" for name in rows if name != "tensorrt"
    ]
    for row in rows.values():
        assert CheckRow.from_dict(json.loads(json.dumps(row.to_dict(), allow_nan=False))) == row


def test_check_wrong_graph_fails_where_it_is_wrong(odd32, tmp_path):
    folder = edits.swap_gate_and_up(edits.copy(odd32, tmp_path))
    eager, ort = check(folder, ["eager", "onnxruntime"], threads=2)
    assert eager.status == "PASS"
    assert (ort.status, ort.exit_code) == ("FAIL", 1)
    assert ort.ratio > 1
    assert ort.where.startswith("B")
    assert "allowance" in ort.reason


def test_check_eager_is_judged_by_the_golden_data_too(odd16, tmp_path):
    """Twin: golden data of another block; without it eager would be its own judge."""

    def negate(case):
        return GoldenCase(case.inputs, {"y": -case.reference["y"]}, {"y": -case.eager["y"]})

    folder = rewrite_golden(edits.copy(odd16, tmp_path), negate)
    row = judge_runner(load(folder, "eager", threads=1), read_artifact(folder))
    assert (row.status, row.exit_code) == ("FAIL", 1)


def test_check_golden_outside_the_manifest_is_an_error(odd16, tmp_path):
    def widen(case):
        double = {name: np.concatenate([array] * 5) for name, array in case.inputs.items()}
        return GoldenCase(double, case.reference, case.eager)

    folder = rewrite_golden(edits.copy(odd16, tmp_path), widen)
    (row,) = check(folder, ["onnxruntime"])
    assert (row.status, row.exit_code) == ("ERROR", 2)
    assert row.reason.startswith("input x: B=5: above the declared maximum 4")


def test_check_damaged_runtime_file_is_its_row(odd32, tmp_path):
    folder = edits.copy(odd32, tmp_path)
    (folder / "model.standard.onnx").write_bytes(b"")
    (row,) = check(folder, ["onnxruntime"])
    assert (row.status, row.exit_code) == ("ERROR", 2)
    assert row.reason.startswith(f"{folder / 'model.standard.onnx'}: 0 bytes, the manifest says")


IMPORTS = {
    "preset": ({"kind": "preset"}, False),
    "unknown": ({"kind": "checkpoint"}, True),
    "not-compared": ({"kind": "checkpoint", "import_verified": None}, True),
    "compared": ({"kind": "checkpoint", "import_verified": {"error": 1e-7}}, False),
}


@pytest.mark.parametrize("case", IMPORTS)
def test_check_says_where_an_import_was_not_verified(odd16, tmp_path, case):
    source, noted = IMPORTS[case]
    source = {"name": "", "layers": [0, 1], **source}
    folder = edits.reseal(edits.copy(odd16, tmp_path), lambda manifest: {"source": source})
    (row,) = check(folder)
    assert row.status == "PASS"
    assert [note.partition(":")[0] for note in row.notes] == ["import not verified"] * noted


def test_check_by_default_asks_the_runtimes_of_the_targets(odd32, odd16, tmp_path):
    def chosen(folder, names, *, torch_too):
        return chosen_runtimes(read_artifact(folder), names, torch_too=torch_too)

    assert chosen(odd32, None, torch_too=False) == ["aoti", "onnxruntime", "tensorrt-rtx"]
    assert chosen(odd16, None, torch_too=False) == ["onnxruntime"]
    assert chosen(odd16, None, torch_too=True) == ["eager", "compile", "onnxruntime"]
    assert chosen(odd16, ["all"], torch_too=False) == list(RUNTIMES)
    bare = edits.reseal(edits.copy(odd16, tmp_path), lambda manifest: {"targets": {}})
    assert chosen(bare, None, torch_too=False) == ["eager", "compile"]


def test_bench_by_default_times_the_runtimes_of_the_targets(odd16):
    rows = bench(odd16, shapes=[{"B": 1, "S": 1}], threads=1, seconds=0.01)
    assert [(row.runtime, row.status) for row in rows] == [("onnxruntime", "PASS")]


@pytest.mark.parametrize("verb", [check, bench])
def test_runtimes_of_the_targets_that_are_all_missing_exit_3(odd32, tmp_path, verb):
    if gpu_or_none() is not None:
        pytest.skip("there is a GPU here")

    def engine_only(manifest):
        return {"targets": {"tensorrt-rtx": manifest.targets["tensorrt-rtx"]}}

    rows = verb(edits.reseal(edits.copy(odd32, tmp_path), engine_only))
    assert [(row.runtime, row.status) for row in rows] == [("tensorrt-rtx", "UNAVAILABLE")]
    assert exit_code(rows, asked=False) == 3


@pytest.mark.parametrize("verb", [check, bench])
def test_threads_below_1_are_refused_before_any_process(odd16, verb):
    with pytest.raises(ArtifactError, match=r"^threads=0: must be at least 1 and at most 1024$"):
        verb(odd16, ["onnxruntime"], threads=0)


@pytest.mark.parametrize("verb", [check, bench])
def test_option_that_no_runtime_takes_is_named(odd16, verb):
    with pytest.raises(ArtifactError, match=r"^treads=2: no runtime has such an option; known: .*threads"):
        verb(odd16, treads=2)


GOLDEN_DAMAGE = {
    "missing": (lambda path: path.unlink(), "golden.safetensors: missing"),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:1000]), "golden.safetensors: 1000 bytes"),
}


@pytest.mark.parametrize("case", GOLDEN_DAMAGE)
@pytest.mark.parametrize("verb", [check, bench])
def test_damaged_golden_data_stops_everything(odd16, tmp_path, verb, case):
    damage, message = GOLDEN_DAMAGE[case]
    folder = edits.copy(odd16, tmp_path)
    damage(folder / GOLDEN)
    with pytest.raises(ArtifactError, match=message):
        verb(folder, ["onnxruntime"])


def test_check_without_golden_data_says_so(odd16, tmp_path):
    folder = edits.copy(odd16, tmp_path)
    (folder / GOLDEN).unlink()
    edits.reseal(folder)
    with pytest.raises(ArtifactError, match="exported without golden data"):
        check(folder, ["onnxruntime"])


def test_cases_of_the_same_shape_are_numbered(odd16, tmp_path):
    folder = edits.copy(odd16, tmp_path)
    cases = read_golden(folder / GOLDEN)
    write_golden(folder / GOLDEN, [cases[0], cases[1], cases[0]])
    edits.reseal(folder)
    labels = [label for label, _ in golden_cases(read_artifact(folder))]
    assert labels == ["B1 S1 #1", "B2 S7", "B1 S1 #2"]


def test_bench_times_each_runtime_and_shape(odd16):
    shapes = [{"B": 1, "S": 1}, {"S": 7}]
    rows = bench(odd16, ["eager", "onnxruntime"], shapes=shapes, threads=1, seconds=0.05)
    assert [(row.runtime, row.case) for row in rows] == [
        (runtime, case) for runtime in ("eager", "onnxruntime") for case in ("B1 S1", "B2 S7")
    ]
    for row in rows:
        assert (row.status, row.reason, row.dtype, row.threads) == ("PASS", "", "float16", 1)
        assert 0 < row.p10_s <= row.median_s <= row.p90_s
        assert row.iterations >= 10
        assert row.device
        assert {"python", "tblock", "numpy"} < set(row.versions)
        assert BenchRow.from_dict(json.loads(json.dumps(row.to_dict(), allow_nan=False))) == row
    assert "torch" in rows[0].versions
    assert "onnxruntime" in rows[2].versions
    assert "torch" not in rows[2].versions


def test_bench_of_a_wrong_runtime_prints_no_time(odd32, tmp_path):
    folder = edits.swap_gate_and_up(edits.copy(odd32, tmp_path))
    rows = bench(folder, ["onnxruntime", "tensorrt"], seconds=0.05)
    assert [(row.status, row.median_s, row.iterations) for row in rows] == [
        ("FAIL", None, 0),
        ("NOT BUILT", None, 0),
    ]
    assert "allowance" in rows[0].reason


def test_bench_default_shape_is_the_optimum_and_work_follows(odd16):
    manifest = read_artifact(odd16).manifest
    sizes = full_sizes(manifest, {})
    assert sizes == {"B": 2, "S": 16}
    flops, moved = work(manifest, sizes)
    assert flops == edits.ODD.flop_count(batch=2, seq=16)
    assert moved == 2 * (edits.ODD.parameter_count() + 2 * 2 * 16 * 60)


QUIET = [1.0] * 90 + [1.1] * 10
DISTURBED = {
    "quiet": (QUIET, 2, 1.0, None, None),
    "on-a-gpu": (QUIET, None, None, 0.5, None),
    "no-cpu": (QUIET, 2, 0.47, None, "had a CPU for 47% of the time"),
    "spread": ([1.0] * 80 + [2.5] * 20, 2, 1.0, None, "p90 is 2.5 times p10"),
    "quota": (QUIET, 4, 1.0, 1.5, "CPU quota of 1.5 for 4 threads: give --threads 1"),
    "quota-enough": (QUIET, 2, 1.0, 2.0, None),
}


@pytest.mark.parametrize("case", DISTURBED)
def test_busy_machine_is_noted(case, monkeypatch):
    times, threads, share, quota, note = DISTURBED[case]
    monkeypatch.setattr("tblock.machine.cpu_quota", lambda: quota)
    notes = disturbances(times, threads, share)
    assert len(notes) == (note is not None), notes
    assert note is None or note in notes[0]


def test_row_of_a_runner_that_waits_says_that_the_machine_was_busy(odd16, monkeypatch):
    """The twin of quiet: calls that take ten times the CPU time they use."""
    runner = load(odd16, "onnxruntime", threads=1)
    bind = runner.bind

    def slow(inputs):
        bound, idle = bind(inputs), threading.Event()

        def execute():
            start = time.perf_counter()
            bound.execute()
            idle.wait(10 * (time.perf_counter() - start))

        return Bound(execute, bound.read)

    monkeypatch.setattr(runner, "bind", slow)
    (found,) = time_runner(runner, [{"B": 1, "S": 1}], seconds=0.05)["shapes"]
    assert found["status"] == "PASS"
    assert disturbances(found["calls"], 1, found["share"])[0].startswith("the machine is busy")


TIMED = {
    "golden": ({"B": 2, "S": 7}, "float64, golden case B2 S7"),
    "other": ({"B": 2, "S": 9}, "run, which"),
}


@pytest.mark.parametrize("case", TIMED)
@pytest.mark.parametrize("runtime", ["eager", "onnxruntime"])
def test_what_is_timed_is_judged_and_a_bind_that_computes_something_else_gets_no_time(
    odd16, runtime, case, monkeypatch
):
    sizes, judged_by = TIMED[case]
    runner = load(odd16, runtime, threads=1)
    check = judge_runner(runner, runner.artifact)
    assert check.passed

    def row():
        measured = time_runner(runner, [sizes], seconds=0.01)
        (found,) = measured["shapes"]
        assert found["judged_by"].startswith(judged_by)
        return _rows(runner.artifact.manifest, check, [sizes], measured, 1)[0]

    sound = row()
    assert (sound.status, sound.exit_code) == ("PASS", 0)
    assert sound.median_s > 0
    assert sound.covers == (
        "one call until its outputs are complete, inputs and outputs in host memory, no copies"
    )
    # The broken twin: the shipped bind, whose calls after the first leave out what comes after the input.
    bind = type(runner)._bind

    def broken(self, arrays, sizes):
        bound, calls = bind(self, arrays, sizes), []
        return Bound(
            lambda: (calls.append(0), bound.execute())[1],
            lambda: bound.read() if len(calls) == 1 else {"y": arrays["x"].copy()},
        )

    monkeypatch.setattr(type(runner), "_bind", broken)
    refused = row()
    assert (refused.status, refused.median_s, refused.exit_code) == ("FAIL", None, 1)
    assert refused.reason.startswith("what was timed is not what was judged: y")
