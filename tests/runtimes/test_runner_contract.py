"""Every runner a CPU can run: right answers, the same refusals, and what they would do unchecked."""

import numpy as np
import pytest
import torch

from tblock.errors import ArtifactError, ExportError
from tblock.manifest import read_artifact
from tblock.runtimes import load
from tblock.runtimes.parity import golden_cases, judge_runner

CPU_RUNTIMES = ("eager", "compile", "aoti", "onnxruntime")
UNCHECKED = ("aoti", "onnxruntime")
"""Runtimes that read memory by pointer, so that strides are the caller's business."""


@pytest.fixture(scope="module")
def runners(odd32):
    loaded = {}

    def get(name):
        if name not in loaded:
            loaded[name] = load(odd32, name, threads=2)
        return loaded[name]

    return get


def inputs(batch=2, seq=7, width=60):
    rng = np.random.default_rng(7)
    return {
        "x": rng.standard_normal((batch, seq, width)).astype(np.float32),
        "padding_mask": np.ones((batch, seq), np.bool_),
        "position_ids": np.tile(np.arange(seq), (batch, 1)),
    }


@pytest.mark.parametrize("runtime", CPU_RUNTIMES)
def test_runner_on_golden_cases_passes(runners, odd32, runtime):
    row = judge_runner(runners(runtime), read_artifact(odd32))
    assert (row.status, row.provider) == ("PASS", "cpu"), row.reason
    optimum = f"B1 S{read_artifact(odd32).manifest.ranges['S'].opt}"
    assert {"B1 S1", "B2 S7", "B1 S32", "B3 S16", optimum} == set(row.shapes)


OUTSIDE = {
    "batch-0": ((0, 7, 60), "B=0: below the declared minimum 1"),
    "seq-0": ((2, 0, 60), "S=0: below the declared minimum 1"),
    "batch-9": ((9, 7, 60), "B=9: above the declared maximum 4"),
    "seq-64": ((1, 64, 60), "S=64: above the declared maximum 32"),
    "width-15": ((2, 7, 15), "axis 2 is 15, wanted 60"),
}


@pytest.mark.parametrize("case", OUTSIDE)
@pytest.mark.parametrize("runtime", CPU_RUNTIMES)
def test_runner_outside_the_contract_refuses(runners, runtime, case):
    shape, message = OUTSIDE[case]
    with pytest.raises(ArtifactError) as error:
        runners(runtime)(**inputs(*shape))
    assert str(error.value).startswith(f"input x: {message}")


@pytest.mark.parametrize("value", [-1, 64], ids=["minus-1", "past-the-table"])
@pytest.mark.parametrize("runtime", CPU_RUNTIMES)
def test_runner_position_outside_the_table_refuses(runners, runtime, value):
    given = inputs()
    given["position_ids"][1, 3] = value
    with pytest.raises(ArtifactError, match=rf"input position_ids: {value} at \[1, 3\]"):
        runners(runtime)(**given)


def test_aoti_without_the_range_check_computes_on(runners, monkeypatch):
    """The broken twin of the refusals: nobody else would have said a word."""
    monkeypatch.setattr("tblock.runtimes.inputs.check_size", lambda *args: None)
    assert runners("aoti")(**inputs(9, 7)).shape == (9, 7, 60)


def strided():
    given = inputs(2, 14)
    return {
        **{name: array[:, ::2] for name, array in given.items()},
        "position_ids": inputs()["position_ids"],
    }


@pytest.mark.parametrize("runtime", CPU_RUNTIMES)
def test_runner_noncontiguous_equals_contiguous(runners, runtime):
    views = strided()
    copies = {name: array.copy() for name, array in views.items()}
    assert np.array_equal(runners(runtime)(**views), runners(runtime)(**copies))


@pytest.mark.parametrize("runtime", UNCHECKED)
def test_runner_noncontiguous_unpacked_is_wrong(runners, runtime, monkeypatch):
    """The broken twin: without the copy these runtimes read the wrong memory."""
    views = strided()
    right = runners(runtime)(**views)
    monkeypatch.setattr("tblock.runtimes.inputs.np.ascontiguousarray", lambda array: array)
    assert not np.array_equal(runners(runtime)(**views), right)


@pytest.mark.parametrize("runtime", CPU_RUNTIMES)
def test_runner_bound_calls_give_what_run_gives(runners, runtime):
    bound = runners(runtime).bind(inputs())
    for _ in range(3):
        bound.execute()
    assert np.array_equal(bound.read()["y"], runners(runtime)(**inputs()))


@pytest.mark.parametrize("runtime", CPU_RUNTIMES)
def test_runner_that_fails_raises_one_of_ours(odd32, runners, runtime, monkeypatch):
    """Each runtime has its own exceptions; this one stands for all of them."""
    runner = runners(runtime)
    bound = runner.bind(inputs())

    def broken(*args, **named):
        raise RuntimeError("no kernel image")

    if runtime == "onnxruntime":
        monkeypatch.setattr(runner, "_session", type("Session", (), {"io_binding": broken})())
        with pytest.raises(ExportError, match=r"^onnxruntime: RuntimeError: no kernel image$"):
            runner.run(inputs())
        return
    monkeypatch.setattr(runner, "_call", broken)
    with pytest.raises(ExportError, match=rf"^{runtime}: RuntimeError: no kernel image$"):
        bound.execute()


def test_compile_over_all_shapes_makes_at_most_two_graphs(runners):
    runner = runners("compile")
    for batch, seq in ((3, 7), (1, 1), (1, 32), (2, 1), (4, 31), (1, 2)):
        runner(**inputs(batch, seq))
    assert 1 <= runner.details["graphs"] <= 2


def test_compile_where_unbacked_sizes_fail_says_so_and_runs(odd32, monkeypatch):
    """Without shared symbols x and padding_mask cannot be seen to be of one length."""
    from tblock.runtimes import compiled

    mark, lookup = compiled.mark_unbacked, torch._dynamo.lookup_backend
    monkeypatch.setattr(compiled, "mark_unbacked", lambda tensor, axis, **rest: mark(tensor, axis))
    monkeypatch.setattr(torch._dynamo, "lookup_backend", lambda name: lookup("eager"))  # quick to compile
    runner = load(odd32, "compile", threads=2)
    assert runner.details["symbols"].startswith("dynamic: unbacked sizes do not compile here (")
    assert runner(**inputs()).shape == (2, 7, 60)


def test_onnxruntime_records_where_nodes_run(runners):
    placement = runners("onnxruntime").details["placement"]
    assert list(placement) == ["cpu"]
    assert placement["cpu"]["MatMul"] >= 7


@pytest.mark.parametrize("artifact", ["odd32", "odd16"])
def test_onnxruntime_with_outputs_in_a_devices_memory_reads_them_back(request, artifact):
    """The way of a GPU provider, with the host's memory in the device's place; not executed on a GPU."""
    folder = request.getfixturevalue(artifact)
    runner = load(folder, "onnxruntime", threads=1)
    runner._on_device = True
    row = judge_runner(runner, read_artifact(folder))
    assert row.status == "PASS", row.reason
    # What was read from one call is not changed by the next.
    (_, case), *_ = golden_cases(runner.artifact)
    first = runner.run(case.inputs)["y"]
    kept = first.copy()
    runner.run({**case.inputs, "x": -case.inputs["x"]})
    assert np.array_equal(first, kept)


def test_onnxruntime_outputs_left_on_the_device_are_not_taken_for_results(odd16, monkeypatch):
    """The broken twin: without the copy back, what is read is memory that nobody wrote."""
    import onnxruntime

    runner = load(odd16, "onnxruntime", threads=1)
    runner._on_device = True
    numpy = onnxruntime.OrtValue.numpy
    monkeypatch.setattr(onnxruntime.OrtValue, "numpy", lambda value: np.zeros_like(numpy(value)))
    assert judge_runner(runner, read_artifact(odd16)).status == "FAIL"
