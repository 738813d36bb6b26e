"""The engine runners: what they say without a GPU, which files they refuse, their logic on stand-ins.

The half behind the driver check runs against tests/runtimes/fake_gpu.py only; it was not executed on a GPU.
"""

import sys
from types import ModuleType

import numpy as np
import pytest

from tblock.errors import ArtifactError, RuntimeUnavailable, TblockError
from tblock.machine import Gpu, gpu_or_none
from tblock.manifest import read_artifact
from tblock.runtimes import load, parity
from tblock.runtimes.engine_file import check_architecture, check_bytes, check_version
from tblock.runtimes.trt import KEPT_PLANS
from tblock.runtimes.verdict import Verdict
from tests.runtimes import artifact_edits as edits
from tests.runtimes.fake_gpu import FakeCudaRuntime, FakeEngine, FakeTensorRt, expected

ENGINE = "model.rtx.engine"
SOUND = Verdict(status="PASS", ratio=0.5, error=1.0, eager_error=1.0, measure="y", token=(), reason="")


def retarget(folder, **changes):
    """Reseal with other words about the engine."""
    entry = lambda m: {**m.targets["tensorrt-rtx"], **changes}  # noqa: E731
    return edits.reseal(folder, lambda m: {"targets": {**m.targets, "tensorrt-rtx": entry(m)}})


@pytest.fixture
def no_gpu():
    if gpu_or_none() is not None:
        pytest.skip("this machine has what the test needs to be missing")


def test_engine_without_driver_says_so_in_one_line(odd32, no_gpu):
    with pytest.raises(RuntimeUnavailable) as error:
        load(odd32, "tensorrt-rtx")
    assert str(error.value) == (
        "tensorrt-rtx: no NVIDIA driver found (libcuda.so.1); the engine is built, running it needs a GPU"
    )
    assert error.value.exit_code == 3


def flip(data):
    return bytes([data[0] ^ 0xFF]) + data[1:]


BYTES = {
    "first-byte-flipped": (flip, r"starts with b'\x89trt', a TensorRT-RTX engine with b'vtrt': damaged"),
    "cut-to-100": (lambda data: data[:100], "cut, 100 of "),
    "cut-to-10": (lambda data: data[:10], "cut, 10 of 64 bytes"),
    "empty": (lambda data: b"", "empty; build the engine again"),
    "plain-tensorrt": (lambda data: b"ftrt" + data[4:], "an engine of tensorrt, not of tensorrt-rtx"),
}


@pytest.mark.parametrize("case", BYTES)
def test_engine_bytes_wrong_say_which(odd32, tmp_path, case):
    change, message = BYTES[case]
    folder = edits.copy(odd32, tmp_path)
    path = folder / ENGINE
    path.write_bytes(change(path.read_bytes()))
    for sealed in (False, True):
        if sealed:
            edits.reseal(folder)
        with pytest.raises(ArtifactError) as error:
            load(folder, "tensorrt-rtx")
        assert str(error.value).startswith(f"{path}: {message}")


def test_onnx_file_in_the_engines_place_is_recognised(odd32, tmp_path):
    folder = edits.copy(odd32, tmp_path)
    (folder / ENGINE).write_bytes((folder / "model.onnx").read_bytes())
    with pytest.raises(ArtifactError, match="an ONNX model, not an engine; build one with tblock build"):
        load(edits.reseal(folder), "tensorrt-rtx")


def test_engine_changed_inside_is_found_by_its_digest(odd32, tmp_path):
    folder = edits.copy(odd32, tmp_path)
    data = bytearray((folder / ENGINE).read_bytes())
    data[-1] ^= 1
    (folder / ENGINE).write_bytes(bytes(data))
    with pytest.raises(ArtifactError, match=r"model\.rtx\.engine: digest mismatch"):
        load(folder, "tensorrt-rtx")


def test_engine_missing_is_named(odd32, tmp_path):
    folder = edits.copy(odd32, tmp_path)
    (folder / ENGINE).unlink()
    with pytest.raises(ArtifactError, match=r"model\.rtx\.engine: missing"):
        load(folder, "tensorrt-rtx")


def test_engine_bytes_unlooked_at_reach_the_driver_check(odd32, tmp_path, monkeypatch, no_gpu):
    """The broken twin: a sealed wrong file would only be found by TensorRT."""
    folder = edits.copy(odd32, tmp_path)
    path = folder / ENGINE
    path.write_bytes(flip(path.read_bytes()))
    monkeypatch.setattr("tblock.runtimes.trt.check_bytes", lambda *args: None)
    with pytest.raises(RuntimeUnavailable):
        load(edits.reseal(folder), "tensorrt-rtx")


def test_engine_of_another_version_is_refused_before_the_driver(odd32, tmp_path):
    folder = retarget(edits.copy(odd32, tmp_path), builder="1.4.0.76")
    with pytest.raises(ArtifactError, match=r"built by version 1\.4\.0\.76, version 1\.\S+ is installed"):
        load(folder, "tensorrt-rtx")


def test_plain_tensorrt_engines_of_unknown_layout_are_left_to_the_digest(tmp_path):
    path = tmp_path / "model.trt.engine"
    path.write_bytes(b"whatever 11.x writes" * 10)
    check_bytes(path, "tensorrt")


VERSIONS = {
    "same": ("10.14.1.48", "10.14.1.48", {}, True),
    "other-build-number": ("10.14.1.48", "10.14.1.50", {}, True),
    "other-patch": ("10.14.1", "10.14.2", {}, False),
    "later-compatible": ("10.13.0", "10.14.1", {"version_compatible": True}, True),
    "earlier-compatible": ("10.14.1", "10.13.0", {"version_compatible": True}, False),
    "other-major-compatible": ("10.14.1", "11.0.0", {"version_compatible": True}, False),
    "unknown": ("unknown", "10.14.1", {}, False),
}


@pytest.mark.parametrize("case", VERSIONS)
def test_engine_version_is_compared(tmp_path, case):
    built, installed, more, fits = VERSIONS[case]
    if fits:
        check_version(tmp_path, {"builder": built, **more}, installed)
        return
    with pytest.raises(ArtifactError, match=built):
        check_version(tmp_path, {"builder": built, **more}, installed)


H200 = Gpu("NVIDIA H200", "9.0", "13.0")
BUILT_ON_B200 = "NVIDIA B200, compute capability 10.0, driver CUDA 13.0"
ARCHITECTURES = {
    "listed": ({"compute_capability": "compute capability 8.6, 9.0"}, True),
    "not-listed": ({"compute_capability": "portable default (compute capability 8.6, 8.9, 12.0)"}, False),
    "builder-same": (
        {
            "compute_capability": "the builder's GPU model",
            "device": "NVIDIA H100, compute capability 9.0, driver CUDA 12.8",
        },
        True,
    ),
    "builder-other": ({"compute_capability": "the builder's GPU model", "device": BUILT_ON_B200}, False),
    "ampere-plus": (
        {"compute_capability": "hardware compatible: ampere_plus", "device": BUILT_ON_B200},
        True,
    ),
    "same-capability": (
        {"compute_capability": "hardware compatible: same_compute_capability", "device": BUILT_ON_B200},
        False,
    ),
}


@pytest.mark.parametrize("case", ARCHITECTURES)
def test_engine_architecture_is_compared(tmp_path, case):
    target, fits = ARCHITECTURES[case]
    if fits:
        check_architecture(tmp_path, target, H200)
        return
    with pytest.raises(ArtifactError, match=r"built for compute capability .*, this NVIDIA H200 has 9\.0"):
        check_architecture(tmp_path, target, H200)


class Machine:
    """A machine with a GPU, TensorRT and cuda-python, all of them stand-ins."""

    def __init__(self, monkeypatch, folder, gpu=None, profiles=None, version="1.7.1.116"):
        self.cuda = FakeCudaRuntime()
        whole = [((1, 1), (2, 16), (4, 32))]
        self.engine = FakeEngine(self.cuda, profiles or whole)
        self.trt = FakeTensorRt(version, self.engine)
        self.folder = retarget(folder, builder=version, compute_capability="compute capability 9.0")
        bindings = ModuleType("cuda.bindings")
        bindings.runtime = self.cuda
        for name, module in {
            "tensorrt_rtx": self.trt,
            "cuda": ModuleType("cuda"),
            "cuda.bindings": bindings,
            "cuda.bindings.runtime": self.cuda,
        }.items():
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr("tblock.runtimes.trt.find_gpu", lambda: gpu or H200)

    def load(self, **options):
        return load(self.folder, "tensorrt-rtx", **options)


@pytest.fixture
def machine(monkeypatch, odd32, tmp_path):
    return lambda **options: Machine(monkeypatch, edits.copy(odd32, tmp_path), **options)


def inputs(batch=2, seq=7, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "x": rng.standard_normal((batch, seq, 60)).astype(np.float32),
        "padding_mask": rng.random((batch, seq)) < 0.8,
        "position_ids": rng.integers(0, 64, (batch, seq)),
    }


@pytest.mark.parametrize("graph", [False, True], ids=["launches", "cuda-graph"])
def test_fake_engine_runs_every_shape(machine, graph):
    here = machine()
    runner = here.load(cuda_graph=graph)
    for seed, (batch, seq) in enumerate([(2, 7), (1, 1), (2, 7), (4, 32), (2, 7)]):
        given = inputs(batch, seq, seed)
        assert np.array_equal(runner(**given), expected(*given.values()))
    assert len(here.engine.contexts) == 3
    assert here.cuda.calls.count("cudaGraphLaunch") == (2 if graph else 0)
    assert (runner.provider, runner.device) == ("cuda", "NVIDIA H200")


def test_fake_engine_without_waiting_gives_garbage(machine, monkeypatch):
    """The broken twin: the stand-ins notice a missing synchronise."""
    runner = machine().load()
    monkeypatch.setattr("tblock.runtimes.cuda.Cuda.synchronize", lambda *args: None)
    given = inputs()
    assert not np.array_equal(runner(**given), expected(*given.values()))


def test_fake_engine_bound_call_waits_and_its_outputs_can_be_read(machine):
    here = machine()
    runner, given = here.load(), inputs()
    bound = runner.bind(given)
    here.cuda.calls.clear()
    bound.execute()
    assert not here.cuda.queue
    assert here.cuda.calls == ["cudaStreamSynchronize"]  # no copy in what is timed
    assert np.array_equal(bound.read()["y"], expected(*given.values()))
    assert "cuda device memory" in runner.covers


def test_fake_engine_results_do_not_share_memory(machine):
    runner = machine().load()
    first = runner(**inputs(seed=1))
    kept = first.copy()
    runner(**inputs(seed=2))
    assert np.array_equal(first, kept)


def test_fake_engine_keeps_few_plans_and_frees_the_rest(machine):
    here = machine()
    runner = here.load(cuda_graph=True)
    for seq in range(1, KEPT_PLANS + 4):
        runner(**inputs(1, seq))
    assert len(here.cuda.memory) == 4 * KEPT_PLANS
    assert here.cuda.calls.count("cudaGraphExecDestroy") == 3


def test_fake_engine_uses_the_nearest_profile(machine):
    small, large = ((1, 1), (1, 1), (4, 8)), ((1, 1), (2, 16), (4, 32))
    runner = machine(profiles=[large, small]).load()
    for seq, profile in ((1, 1), (32, 0), (8, 1)):
        runner(**inputs(1, seq))
        assert runner.details["profile"] == profile


def test_fake_engine_without_a_profile_for_the_shape_lists_them(machine):
    runner = machine(profiles=[((1, 1), (1, 8), (1, 8)), ((2, 1), (2, 8), (2, 8))]).load()
    with pytest.raises(ArtifactError) as error:
        runner(**inputs(3, 8))
    assert "no optimization profile of the engine takes it; profile 0: x [1, 1, 60] .. [1, 8, 60]" in str(
        error.value
    )


@pytest.mark.parametrize("batch", [0, 9])
def test_fake_engine_outside_the_contract_refuses(machine, batch):
    here = machine()
    runner = here.load()
    here.cuda.calls.clear()
    with pytest.raises(ArtifactError, match=f"input x: B={batch}: "):
        runner(**inputs(batch))
    assert here.cuda.calls == []


def test_fake_engine_of_another_architecture_is_not_deserialised(machine):
    here = machine(gpu=Gpu("NVIDIA A10", "8.6", "13.0"))
    with pytest.raises(ArtifactError, match=r"built for compute capability 9\.0, this NVIDIA A10 has 8\.6"):
        here.load()
    assert here.trt.deserialised == []


def test_fake_engine_refused_by_tensorrt_gives_its_reason(machine):
    here = machine()
    here.trt.engine = None
    with pytest.raises(ArtifactError, match=r"tensorrt_rtx cannot deserialise it: Magic tag does not match$"):
        here.load()


def test_fake_engine_with_other_tensors_is_refused(machine):
    here = machine()
    here.engine.names[3] = "output_0"
    with pytest.raises(ArtifactError, match="has tensors x, padding_mask, position_ids, output_0"):
        here.load()


def test_fake_engine_with_another_dtype_is_refused(machine):
    here = machine()
    here.engine.dtype = "HALF"
    with pytest.raises(ArtifactError, match="x is float16, the manifest says float32"):
        here.load()


@pytest.mark.parametrize(
    "call", ["cudaMalloc", "cudaMemcpyAsync", "cudaStreamSynchronize", "cudaGraphLaunch"]
)
def test_cuda_failure_names_the_call(machine, call):
    here = machine()
    runner = here.load(cuda_graph=True)
    if call == "cudaGraphLaunch":
        runner(**inputs())
    here.cuda.fail = call
    with pytest.raises(TblockError) as error:
        runner(**inputs())
    assert str(error.value) == f"{call}: out of memory (cudaError 2)"


def test_launch_refused_by_tensorrt_is_an_error(machine):
    runner = (here := machine()).load()
    here.engine.names.append("hidden")
    with pytest.raises(TblockError, match="execute_async_v3: no reason given"):
        runner(**inputs())


def test_cuda_python_missing_names_the_extra(machine, monkeypatch):
    here = machine()
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(RuntimeUnavailable, match=r"cuda-python is not installed .*tblock\[tensorrt-rtx\]"):
        here.load()


def test_package_missing_names_the_extra(machine, monkeypatch):
    here = machine()
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    with pytest.raises(RuntimeUnavailable, match=r"tensorrt_rtx is not usable .*tblock\[tensorrt-rtx\]"):
        here.load()


def test_engine_with_plugins_needs_the_library(odd32, tmp_path, machine, monkeypatch):
    here = machine()
    monkeypatch.setitem(sys.modules, "tensorrt", here.trt)
    entry = {"files": [ENGINE], "graph": "model.onnx", "builder": "1.7.1.116", "fusion": "plugin"}
    edits.reseal(here.folder, lambda m: {"targets": {**m.targets, "tensorrt": entry}})
    path = here.folder / ENGINE
    path.write_bytes(b"ftrt" + path.read_bytes()[4:])
    edits.reseal(here.folder)
    with pytest.raises(ArtifactError, match="has plugin layers; give plugin_library"):
        load(here.folder, "tensorrt")
    load(here.folder, "tensorrt", plugin_library="lib.so")
    assert here.trt.loaded == ["lib.so"]
    # A version-compatible engine carries its plugins.
    entry["version_compatible"] = True
    edits.reseal(here.folder, lambda m: {"targets": {**m.targets, "tensorrt": entry}})
    load(here.folder, "tensorrt")
    assert here.trt.loaded == ["lib.so"]


PROFILES = {
    "all": ([[(1, 1), (2, 16), (4, 32)]], 5, ""),
    "two": ([[(1, 1), (1, 1), (2, 8)], [(1, 32), (1, 32), (4, 32)]], 3, "B3 S16, B1 S16"),
    "short": ([[(1, 1), (1, 1), (2, 8)]], 2, "B1 S32, B3 S16, B1 S16"),
    "none": ([[(4, 1), (4, 1), (4, 8)]], 0, "B1 S1, B2 S7, B1 S32, B3 S16, B1 S16"),
}


@pytest.mark.parametrize("case", PROFILES)
def test_engine_is_judged_inside_its_own_profiles(machine, monkeypatch, case):
    """A narrow engine must not fail on golden cases that it was never built for."""
    profiles, judged, outside = PROFILES[case]
    here = machine(profiles=profiles)
    names = {"x": (60,), "padding_mask": (), "position_ids": ()}
    recorded = [
        {name: [[*ends, *rest] for ends in profile] for name, rest in names.items()} for profile in profiles
    ]
    retarget(here.folder, profiles=recorded)
    runner = here.load()
    # The stand-in computes no block; which cases reach it is what counts here.
    monkeypatch.setattr(parity, "judge_outputs", lambda artifact, case, outputs: [SOUND])
    row = parity.judge_runner(runner, read_artifact(here.folder))
    assert (row.status, len(row.cases)) == ("PASS" if judged else "REFUSED", judged)
    assert ("no golden case lies inside" in row.reason) == (judged == 0)
    noted = f"not judged, outside the profiles the engine was built with: {outside}"
    assert row.notes == ((noted,) if outside else ())
    # The broken twin: asked for all of them, the engine refuses and its own check fails.
    if outside:
        monkeypatch.setattr(parity, "takes", lambda target, inputs: True)
        with pytest.raises(ArtifactError, match="no optimization profile of the engine takes it"):
            parity.judge_runner(runner, read_artifact(here.folder))
