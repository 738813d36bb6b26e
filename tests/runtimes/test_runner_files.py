"""Artifact files that moved, are missing, cut or changed: our error names the file."""

import os
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import pytest

from tblock.errors import ArtifactError, RuntimeUnavailable
from tblock.manifest import file_digest, read_artifact
from tblock.runtimes import load
from tblock.runtimes.onnx_file import external_files, external_locations
from tblock.runtimes.parity import judge_runner
from tests.runtimes import artifact_edits as edits


def cut(path, size=1000):
    path.write_bytes(path.read_bytes()[:size])


def change(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def x(seq=7):
    return np.random.default_rng(0).standard_normal((2, seq, 60)).astype(np.float16)


def test_moved_folder_loads(odd16, tmp_path):
    before = load(odd16, "onnxruntime")(x())
    moved = edits.copy(odd16, tmp_path / "first").rename(tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "first")
    assert np.array_equal(load(moved, "onnxruntime")(x()), before)


DAMAGE = {
    "weights-missing": ("weights.safetensors", lambda path: path.unlink(), "missing"),
    "weights-cut": ("weights.safetensors", cut, "1000 bytes, the manifest says"),
    "weights-changed": ("weights.safetensors", change, "digest mismatch"),
    "graph-missing": ("model.standard.onnx", lambda path: path.unlink(), "missing"),
    "graph-cut": ("model.standard.onnx", cut, "1000 bytes, the manifest says"),
    "graph-changed": ("model.standard.onnx", change, "digest mismatch"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_file_is_named(odd16, tmp_path, case):
    name, damage, message = DAMAGE[case]
    folder = edits.copy(odd16, tmp_path)
    damage(folder / name)
    with pytest.raises(ArtifactError) as error:
        load(folder, "onnxruntime")
    assert str(error.value).startswith(f"{folder / name}: {message}")


def test_damaged_data_unlooked_for_is_not_named_by_us(odd16, tmp_path, monkeypatch):
    """The broken twin: without reading the graph's locations, cut data reaches ONNX Runtime."""
    folder = edits.copy(odd16, tmp_path)
    cut(folder / "weights.safetensors")
    monkeypatch.setattr("tblock.runtimes.ort.external_files", lambda path: [])
    with pytest.raises(ArtifactError, match="onnxruntime cannot load it"):
        load(folder, "onnxruntime")


@pytest.mark.parametrize(
    ("runtime", "name"), [("eager", "weights.safetensors"), ("aoti", "model.pt2")], ids=["eager", "aoti"]
)
def test_cut_file_of_a_torch_runtime_is_named(odd32, tmp_path, runtime, name):
    folder = edits.copy(odd32, tmp_path)
    cut(folder / name)
    with pytest.raises(ArtifactError) as error:
        load(folder, runtime)
    assert str(error.value).startswith(f"{folder / name}: 1000 bytes, the manifest says")
    edits.reseal(folder)
    with pytest.raises(ArtifactError) as error:
        load(folder, runtime)
    assert str(error.value).startswith(f"{folder / name}: ")


def test_weights_of_another_block_are_named(odd16, tmp_path):
    folder = edits.copy(odd16, tmp_path)
    wider = edits.ODD.replace(ffn_dim=101)
    edits.reseal(folder, lambda manifest: {"configs": (wider,)})
    with pytest.raises(ArtifactError, match=r"weights\.safetensors: ffn\.gate\.weight has shape"):
        load(folder, "eager")


def test_data_outside_the_folder_is_refused(odd16, tmp_path):
    folder = edits.copy(odd16, tmp_path)
    model = folder / "model.standard.onnx"
    evil = b"/etc/x.safetensors!"
    assert len(evil) == len(b"weights.safetensors")
    model.write_bytes(model.read_bytes().replace(b"weights.safetensors", evil))
    edits.reseal(folder)
    with pytest.raises(ArtifactError, match=r"external data '/etc/x\.safetensors!' is not a bare file name"):
        load(folder, "onnxruntime")


def test_bytes_of_a_model_name_what_is_lost(odd16):
    with pytest.raises(ArtifactError, match=r"cannot find the weights beside it; give the path"):
        load((odd16 / "model.standard.onnx").read_bytes(), "onnxruntime")


def test_folder_that_is_no_path_is_named():
    with pytest.raises(ArtifactError, match=r"^folder: got NoneType, wanted the path of an artifact folder$"):
        load(None, "onnxruntime")


def test_file_instead_of_folder_names_the_folder(odd16):
    with pytest.raises(ArtifactError) as error:
        load(odd16 / "model.standard.onnx", "onnxruntime")
    assert str(error.value).endswith(f"give the artifact folder it lies in, {odd16}")


@pytest.mark.parametrize("length", [1, 127, 128, 250])
def test_external_locations_of_any_length_are_found(length, tmp_path):
    import onnx

    name = "w" * length
    tensor = onnx.TensorProto(data_location=onnx.TensorProto.EXTERNAL)
    for key, value in (("location", name), ("offset", "4096"), ("length", "12")):
        tensor.external_data.add(key=key, value=value)
    model = onnx.ModelProto(graph=onnx.GraphProto(initializer=[tensor, tensor]))
    assert external_locations(model.SerializeToString()) == [name]
    (tmp_path / "empty.onnx").touch()
    assert external_files(tmp_path / "empty.onnx") == []


OTHER_BUILDS = {
    "older-torch": ({"torch": "2.12.1+cpu"}, r"model\.pt2: built by torch 2\.12\.1\+cpu, this is torch "),
    "better-cpu": (
        {"cpu": "native", "cpu_flags": ["avx1024"]},
        r"built for x86_64 CPUs of level native, this one has no avx1024; export again here",
    ),
    "other-cpu": ({"architecture": "riscv64"}, r"built for riscv64 CPUs of level x86-64-v3, this one is "),
}


@pytest.mark.parametrize("case", OTHER_BUILDS)
def test_aoti_package_of_another_machine_is_refused_before_loading(odd32, tmp_path, case, monkeypatch):
    changed, message = OTHER_BUILDS[case]
    folder = edits.copy(odd32, tmp_path)
    edits.reseal(folder, lambda m: {"targets": {**m.targets, "aoti": {**m.targets["aoti"], **changed}}})
    monkeypatch.setattr("torch._inductor.aoti_load_package", None)
    with pytest.raises(ArtifactError, match=message):
        load(folder, "aoti")


def test_aoti_package_for_cuda_is_unavailable_without(odd32, tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has what the test needs to be missing")
    folder = edits.copy(odd32, tmp_path)
    edits.reseal(
        folder, lambda m: {"targets": {**m.targets, "aoti": {**m.targets["aoti"], "device": "cuda"}}}
    )
    with pytest.raises(RuntimeUnavailable, match=r"is built for cuda, torch .* sees no CUDA device"):
        load(folder, "aoti")


LEVELS = ("off", "basic", "extended", "layout", "all")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("artifact", ["odd32", "odd16"])
def test_onnxruntime_at_every_optimization_level_passes(request, artifact, level):
    """By the verdict, not bit for bit: fusions reorder sums."""
    folder = request.getfixturevalue(artifact)
    runner = load(folder, "onnxruntime", optimization=level, threads=2)
    row = judge_runner(runner, read_artifact(folder))
    assert row.status == "PASS", row.reason
    assert row.details["optimization"] == level


@pytest.mark.parametrize("level", ["off", "all"])
def test_onnxruntime_with_gate_and_up_swapped_fails_at_every_level(odd32, tmp_path, level):
    """The broken twin."""
    folder = edits.swap_gate_and_up(edits.copy(odd32, tmp_path))
    row = judge_runner(load(folder, "onnxruntime", optimization=level), read_artifact(folder))
    assert row.status == "FAIL"
    assert row.exit_code == 1


LINKS = {
    "hard": lambda path, link, blobs: os.link(path, link),
    "symbolic": lambda path, link, blobs: os.symlink(path, link),
    "blobs": lambda path, link, blobs: os.symlink(shutil.copy(path, blobs / file_digest(path)), link),
}


@pytest.mark.parametrize("kind", LINKS)
@pytest.mark.parametrize("runtime", ["eager", "aoti", "onnxruntime"])
def test_artifact_made_of_links_passes(odd32, tmp_path, runtime, kind):
    """As copies that save space are made, and as hub caches are: links to files named by their digest."""
    folder, blobs = tmp_path / "linked", tmp_path / "blobs"
    folder.mkdir()
    blobs.mkdir()
    for path in odd32.iterdir():
        LINKS[kind](path, folder / path.name, blobs)
    row = judge_runner(load(folder, runtime, threads=1), read_artifact(folder))
    assert row.status == "PASS", row.reason


HOMELESS = """
import pwd, sys

def nobody(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")

pwd.getpwuid = nobody
from tblock.manifest import file_digest, read_artifact
from tblock.runtimes import load
from tblock.runtimes.parity import judge_runner
print(judge_runner(load(sys.argv[1], sys.argv[2], threads=1), read_artifact(sys.argv[1])).status)
"""


@pytest.mark.parametrize(
    "runtime",
    ["onnxruntime", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("eager", "compile"))],
)
def test_user_without_home_and_without_an_entry_in_passwd_can_check(odd16, tmp_path, runtime):
    kept = ("PATH", "PYTHONPATH", "OMP_NUM_THREADS")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    command = [sys.executable, "-c", HOMELESS, str(odd16), runtime]
    done = subprocess.run(
        command, env={**environment, "TMPDIR": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "PASS", done.stderr


def test_unpacked_package_is_gone_once_loaded_and_what_a_killed_process_left_too(
    odd32, tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    old, fresh, other = (tmp_path / f"tblock-aoti-{name}" for name in ("aaaaaaaa", "bbbbbbbb", "notes"))
    for folder in (old, fresh, other):
        (folder / "data").mkdir(parents=True)
    for folder in (old, other):
        os.utime(folder, (0, 0))
    run = load(odd32, "aoti", threads=1)
    assert sorted(p.name for p in tmp_path.iterdir()) == [fresh.name, other.name]
    assert judge_runner(run, read_artifact(odd32)).passed
