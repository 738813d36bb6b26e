"""What an export may be asked: refusals before any work, sources, layers, the manifest."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import tblock
from tblock import Block, BlockConfig, Stack, preset
from tblock.checkpoints.safetensors_source import read_header
from tblock.errors import ArtifactError, ConfigError, ExportError, RuntimeUnavailable, TblockError, reason
from tblock.export import request
from tblock.export.block_source import ModuleSource, parse_layers
from tblock.export.golden_cases import golden_shapes, padding_mask
from tblock.export.memory import measured, resident_bytes
from tblock.export.weights_file import write_weights
from tblock.golden import read_golden
from tblock.manifest import GOLDEN, NAME, Artifact, digest, read_artifact
from tblock.ranges import Range
from tblock.runtimes import load
from tblock.runtimes.verdict import judge
from tblock.weights import tied_parameters
from tests.artifacts import export

Exported = Callable[..., Artifact]
TINY = preset("tiny")
TARGETS = "onnx, aoti, tensorrt, tensorrt-rtx"
DTYPES = "float32, fp32, float, float16, fp16, half, bfloat16, bf16"

REFUSED: list[tuple[str, dict[str, Any], type[TblockError], str]] = [
    ("target", {"to": ("onnx", "tflite")}, ConfigError, f"--to tflite: unknown; known: {TARGETS}"),
    ("no-target", {"to": ()}, ConfigError, f"--to: no target; known: {TARGETS}"),
    ("dtype", {"dtype": "float8"}, ConfigError, f"--dtype 'float8': unknown; known: {DTYPES}"),
    ("opset", {"opset": 17}, ConfigError, "--opset 17: unknown; known: 18, 23"),
    ("fusion", {"fusion": "both"}, ConfigError, "--fusion both: unknown; known: plugin, native, auto"),
    ("long", {"seq": Range(1, 8, 4096)}, ConfigError, "--seq 1:8:4096: MAX is above the block's "
        "max_position; give at most 512"),
    (
        "batch-0",
        {"batch": Range(0, 1, 2)},
        ConfigError,
        "--batch 0:1:2 --seq 1:128:512: MIN must be at least 1",
    ),
    (
        "bfloat16",
        {"dtype": "bfloat16"},
        ConfigError,
        "--to onnx --dtype bfloat16: ONNX Runtime on CPU has no bfloat16 MatMul; "
        "use float32 or float16, or --to aoti or tensorrt-rtx",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "error", "message"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_request_without_sense_is_refused_before_anything_is_written(
    asked: dict[str, Any], error: type[TblockError], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error) as caught:
        export(TINY, tmp_path / "deep" / "a", **asked)
    assert str(caught.value) == message
    assert list(tmp_path.iterdir()) == []


def test_bfloat16_for_other_targets_is_not_refused() -> None:
    """Twin of the row above: the gate is about ONNX Runtime, not about the dtype."""
    ranges, inputs, _ = request.checked(request.ExportOptions(to=("aoti",), dtype="bfloat16"), [TINY])
    assert inputs[0].dtype == "bfloat16"
    assert ranges["S"] == Range(1, 128, 512)


@pytest.mark.parametrize("target", ["tensorrt", "tensorrt-rtx"])
def test_target_whose_package_is_missing_names_the_extra(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeUnavailable) as caught:
        request.checked(request.ExportOptions(to=(target,)), [TINY])
    package = target.replace("-", "_")
    assert str(caught.value) == f"--to {target}: {package} is not installed; pip install 'tblock[{target}]'"


@pytest.mark.parametrize(
    "config",
    [TINY.replace(dim=10**6), TINY.replace(max_position=2**31 - 1, head_dim=2**20)],
    ids=["weights", "rope"],
)
def test_block_larger_than_the_machine_is_refused_before_it_is_built(config: BlockConfig) -> None:
    with pytest.raises(ConfigError, match=r"take \d+ GiB, this machine has \d+; export fewer layers"):
        request.checked(request.ExportOptions(), [config])


def test_position_ids_without_rope_are_refused() -> None:
    with pytest.raises(ConfigError, match="position_ids=True: the block has no RoPE"):
        request.checked(request.ExportOptions(position_ids=True), [preset("gpt2")])


@pytest.mark.parametrize(
    ("name", "asked", "expected"),
    [
        ("tiny", {}, ["x"]),
        ("tiny", {"padding_mask": True, "position_ids": True}, ["x", "padding_mask", "position_ids"]),
        ("bert-base", {}, ["x", "padding_mask"]),
        ("bert-base", {"padding_mask": False}, ["x"]),
    ],
    ids=["causal", "all", "bidirectional", "bidirectional-without"],
)
def test_graph_inputs_follow_from_block_and_request(
    name: str, asked: dict[str, Any], expected: list[str]
) -> None:
    _, inputs, outputs = request.checked(request.ExportOptions(**asked), [preset(name)])
    assert [spec.name for spec in inputs] == expected
    assert outputs[0].dims == ("B", "S", preset(name).dim)


@pytest.mark.parametrize(
    ("text", "layer", "expected"),
    [
        (None, None, range(0, 1)),
        (None, 4, range(4, 5)),
        ("all", None, range(0, 6)),
        ("1:3", None, range(1, 3)),
    ],
)
def test_layers_named_are_found(text: str | None, layer: int | None, expected: range) -> None:
    assert parse_layers(text, layer, 6) == expected


@pytest.mark.parametrize(
    ("text", "layer", "message"),
    [
        (None, 6, "--layer 6: the model has layers 0 to 5"),
        (None, -1, "--layer -1: the model has layers 0 to 5"),
        ("0:7", None, "--layers '0:7': wanted A:B with 0 <= A < B <= 6, or all"),
        ("3:3", None, "--layers '3:3': wanted A:B with 0 <= A < B <= 6, or all"),
        ("2", None, "--layers '2': wanted A:B with 0 <= A < B <= 6, or all"),
        ("-1:2", None, "--layers '-1:2': wanted A:B with 0 <= A < B <= 6, or all"),
        ("a:b", None, "--layers 'a:b': wanted A:B with 0 <= A < B <= 6, or all"),
        ("0:2", 1, "--layer 1 and --layers 0:2: give one of them"),
    ],
)
def test_layers_out_of_range_are_refused(text: str | None, layer: int | None, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_layers(text, layer, 6)
    assert str(caught.value) == message


def test_manifest_of_an_export_fits_the_published_schema(exported: Exported) -> None:
    schema = json.loads((Path(tblock.__file__).parent / "manifest.schema.json").read_text())
    for kwargs in ({}, {"options": {"opset": 18, "dtype": "float16", "golden": False, "padding_mask": True}}):
        body = json.loads((exported(**kwargs).folder / NAME).read_text())
        jsonschema.validate(body, schema)
        del body["targets"]["onnx"]["opset"]
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(body, schema)


def test_manifest_of_an_export_lists_every_file_with_its_digest(exported: Exported) -> None:
    artifact = exported()
    assert read_artifact(artifact.folder).manifest == artifact.manifest
    files = {p.name for p in artifact.folder.iterdir()} - {NAME}
    assert (
        files
        == set(artifact.manifest.files)
        == {"model.standard.onnx", "model.onnx", "weights.safetensors", "golden.safetensors"}
    )
    for name in files:
        assert artifact.path(name).stat().st_size == artifact.manifest.files[name]["size"]


def test_golden_data_is_left_out_on_request(tmp_path: Path) -> None:
    artifact = export(TINY, tmp_path / "a", golden=False, seq=Range(1, 8, 16))
    assert GOLDEN not in artifact.manifest.files


def test_golden_cases_lie_in_the_declared_ranges(exported: Exported) -> None:
    artifact = exported(options={"batch": Range(2, 2, 2), "seq": Range(3, 3, 10)})
    cases = read_golden(artifact.path(GOLDEN))
    assert [c.inputs["x"].shape[:2] for c in cases] == [(2, 3), (2, 7), (2, 10)]
    assert all(c.reference["y"].dtype == np.float64 and c.eager["y"].dtype == np.float32 for c in cases)


@pytest.mark.parametrize(
    ("batch", "seq", "expected"),
    [
        (Range(1, 1, 8), Range(1, 128, 2048), [(1, 1), (2, 7), (1, 33), (3, 16), (1, 128)]),
        (Range(1, 1, 1), Range(1, 1, 1), [(1, 1)]),
        (Range(4, 4, 4), Range(100, 128, 200), [(4, 100), (4, 128)]),
    ],
    ids=["wide", "one", "narrow"],
)
def test_golden_shapes_are_moved_into_the_ranges(
    batch: Range, seq: Range, expected: list[tuple[int, int]]
) -> None:
    assert golden_shapes({"B": batch, "S": seq}, [preset("tiny")]) == expected


def test_golden_padding_mask_pads_both_sides() -> None:
    mask = padding_mask(3, 12)
    assert mask[0].tolist() == [False] * 3 + [True] * 9
    assert mask[1].all()
    assert mask[2].tolist() == [True] * 8 + [False] * 4


def test_float16_that_overflows_is_refused_with_the_token(tmp_path: Path) -> None:
    block = Block(TINY)
    with torch.no_grad():
        block.ffn.down.weight.fill_(6e4)
        block.ffn.up.weight.fill_(50.0)
    with pytest.raises(
        ExportError, match=r"^float16 overflows in this block: output y of sequence 0, token 0 "
    ) as caught:
        export(block, tmp_path / "a", dtype="float16", seq=Range(1, 8, 16))
    assert str(caught.value).endswith("is not finite in eager; export in bfloat16 or float32")
    assert list(tmp_path.iterdir()) == []


def test_module_of_the_caller_keeps_its_weights_and_itself(tmp_path: Path) -> None:
    block = Block(TINY)
    before = {name: p.detach().clone() for name, p in block.named_parameters()}
    rows = block.rope.cos.shape[0]
    artifact = export(block, tmp_path / "a", seq=Range(1, 8, 16), golden=False)
    weights = load_file(artifact.path("weights.safetensors"))
    for name, parameter in block.named_parameters():
        assert torch.equal(parameter, before[name])
        assert parameter.requires_grad
        assert np.array_equal(weights[name], parameter.detach().numpy())
    assert block.rope.cos.shape[0] == rows
    assert artifact.manifest.source == {"kind": "module", "name": "Block", "layers": [0, 1]}


@pytest.mark.parametrize("count", [1, 2])
def test_stack_of_the_caller_is_exported_with_its_weights(count: int) -> None:
    stack = Stack([TINY] * count)
    module = ModuleSource(stack).module(torch.float32)
    x = torch.randn(1, 5, 64)
    assert torch.equal(module(x), stack(x))


def test_shared_layer_of_the_callers_stack_is_shared_in_the_export() -> None:
    stack = Stack([TINY] * 3)
    stack.layers[2] = stack.layers[0]
    source = ModuleSource(stack)
    module = source.module(torch.float32)
    assert tied_parameters(module) == tied_parameters(stack) == source.description["tied"]
    assert {name.split(".")[1] for name in source.description["tied"]} == {"2"}
    x = torch.randn(1, 5, 64)
    assert torch.equal(module(x), stack(x))


def test_parameters_tied_inside_and_across_blocks_are_stored_once_and_right(tmp_path: Path) -> None:
    stack = Stack([TINY.replace(num_kv_heads=4)] * 2)
    first, second = stack.layers
    first.attn.k.weight = first.attn.q.weight
    second.ffn.up.weight = first.ffn.up.weight
    artifact = export(stack, tmp_path / "a", seq=Range(1, 8, 16))
    tied = {
        "layers.0.attn.k.weight": "layers.0.attn.q.weight",
        "layers.1.ffn.up.weight": "layers.0.ffn.up.weight",
    }
    assert artifact.manifest.source["tied"] == tied
    assert artifact.manifest.parameters == sum(p.numel() for p in stack.parameters())
    assert not tied.keys() & load_file(artifact.path("weights.safetensors")).keys()
    x = torch.randn(1, 5, 64)
    wanted = stack.double()(x.double()).detach().numpy()
    eager = stack.float()(x).detach().numpy()
    for runtime in ("eager", "onnxruntime"):
        y = load(artifact.folder, runtime)(x.numpy())
        verdict = judge(output=y, reference=wanted, eager=eager, inputs=x.numpy(), dtype="float32")
        assert verdict.passed, verdict
    # The twin: the same artifact, its ties forgotten, is not taken for a whole one.
    path = artifact.folder / NAME
    body = json.loads(path.read_text())
    del body["source"]["tied"], body["digest"]
    path.write_text(json.dumps({**body, "digest": digest(body)}))
    with pytest.raises(
        ArtifactError, match=r"missing layers\.0\.attn\.k\.weight, layers\.1\.ffn\.up\.weight"
    ):
        load(artifact.folder, "eager")


def test_weights_of_two_names_are_written_once(tmp_path: Path) -> None:
    one, two = torch.randn(3, 5), torch.randn(7)
    slices = write_weights({"a": one, "b": two, "c": one}, tmp_path / "w")
    assert set(read_header(tmp_path / "w")) == {"a", "b"}
    assert slices["c"] == slices["a"] != slices["b"]
    data = (tmp_path / "w").read_bytes()
    for name, tensor in (("a", one), ("b", two)):
        part = slices[name]
        assert data[part.offset : part.offset + part.length] == tensor.numpy().tobytes()


def test_artifact_of_a_whole_model_runs_its_layers_in_order(tmp_path: Path) -> None:
    artifact = export(TINY, tmp_path / "a", layers="all", seq=Range(1, 8, 16))
    case = read_golden(artifact.path(GOLDEN))[1]
    assert artifact.manifest.source == {"kind": "config", "name": "", "layers": [0, 2]}
    second = export(TINY, tmp_path / "b", layer=1, seq=Range(1, 8, 16))
    first = export(TINY, tmp_path / "c", layer=0, seq=Range(1, 8, 16))
    step = load(first.folder, "onnxruntime", threads=1)(case.inputs["x"])
    given = {"reference": case.reference["y"], "eager": case.eager["y"], "inputs": None, "dtype": "float32"}
    assert judge(output=load(artifact.folder, "onnxruntime", threads=1)(case.inputs["x"]), **given).passed
    assert judge(output=load(second.folder, "onnxruntime", threads=1)(step), **given).passed
    assert judge(output=load(first.folder, "onnxruntime", threads=1)(step), **given).status == "FAIL"


def test_artifact_that_moved_loads(exported: Exported, tmp_path: Path) -> None:
    shutil.copytree(exported().folder, tmp_path / "copy")
    (tmp_path / "copy").rename(tmp_path / "moved away")
    case = read_golden(tmp_path / "moved away" / GOLDEN)[0]
    y = load(tmp_path / "moved away", "onnxruntime", threads=1)(case.inputs["x"])
    assert y.shape == case.eager["y"].shape


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: p.unlink(), "weights.safetensors: missing; copy the whole artifact folder"),
        (
            lambda p: p.write_bytes(p.read_bytes()[:1000]),
            "weights.safetensors: 1000 bytes, the manifest says",
        ),
    ],
    ids=["without-data", "data-cut"],
)
def test_artifact_with_damaged_weights_names_the_file(
    damage: Any, message: str, exported: Exported, tmp_path: Path
) -> None:
    folder = shutil.copytree(exported().folder, tmp_path / "copy")
    damage(folder / "weights.safetensors")
    with pytest.raises(ArtifactError) as caught:
        load(folder, "onnxruntime", threads=1)
    assert message in str(caught.value)


def test_progress_names_every_stage_once(tmp_path: Path) -> None:
    lines: list[str] = []
    export(TINY, tmp_path / "a", seq=Range(1, 8, 16), progress=lines.append)
    assert lines == ["weights", "capture", "golden data", "onnx"]


def test_aoti_without_a_compiler_names_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tblock.machine.cxx_compiler", lambda *names: None)
    with pytest.raises(RuntimeUnavailable, match=r"^--to aoti: no C\+\+ compiler found .*; install g\+\+ "):
        export(TINY, tmp_path / "a", to=("aoti",), seq=Range(1, 8, 16))
    assert list(tmp_path.iterdir()) == []


def test_reason_is_the_innermost_causes_first_line() -> None:
    wrapped = RuntimeError("wrapped")
    wrapped.__cause__ = ValueError("\n the cause\nand more")
    assert reason(wrapped) == "the cause"
    assert reason(KeyError()) == "KeyError"


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from Linux's /proc")
@pytest.mark.parametrize(
    ("output", "said"),
    [
        (
            "a.cpp:3:1: warning: unused\na.cpp:9:2: error: no   type named x\nmore",
            "a.cpp:9:2: error: no type named x",
        ),
        ("as: /tmp/cc.s: No space left on device", "as: /tmp/cc.s: No space left on device"),
        ("cat: unrecognized option '-shared'\nTry", "cat: unrecognized option '-shared'"),
    ],
    ids=["error", "disk", "other"],
)
def test_reason_of_a_failed_compilation_is_what_the_compiler_said(output: str, said: str) -> None:
    error = RuntimeError(f"C++ compile error\n\nCommand:\ng++ a.cpp\n\nOutput:\n{output}")
    assert reason(error) == said


def test_memory_of_a_stage_is_its_peak_above_the_baseline() -> None:
    with measured(resident_bytes()) as quiet:
        pass
    with measured(resident_bytes()) as busy:
        block = np.ones(64_000_000 // 8)
        del block
    if quiet.peak_bytes is None:
        pytest.skip("the kernel does not let the peak be reset here")
    assert quiet.peak_bytes < 32_000_000 < 60_000_000 < busy.peak_bytes < 96_000_000


@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from Linux's /proc")
def test_peak_memory_of_an_export_is_at_most_two_and_a_half_times_the_weights(tmp_path: Path) -> None:
    """In a fresh process: one block of llama-3.2-1b, 243 MB in float32."""
    words = ["export", "--preset", "llama-3.2-1b", "--no-verify", "--json", "-o", str(tmp_path / "a")]
    command = [sys.executable, "-c", "from tblock.cli import main; main()", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["weights_bytes"] == 4 * preset("llama-3.2-1b").parameter_count()
    peaks = {name: stage["peak_bytes"] for name, stage in report["stages"].items()}
    if peaks["weights"] is None:
        pytest.skip("the kernel does not let the peak be reset here")
    assert set(peaks) == {"weights", "capture", "onnx", "golden"}
    bound = 2.5 * report["weights_bytes"]
    assert all(peaks[name] <= bound for name in ("weights", "capture", "onnx")), peaks
    assert peaks["golden"] > 0
    assert all(stage["seconds"] > 0 for stage in report["stages"].values())


def test_manifest_of_an_export_names_no_path_of_the_machine(exported: Exported) -> None:
    text = (exported().folder / NAME).read_text()
    assert str(exported().folder) not in text
    assert str(Path(tblock.__file__).parent) not in text


def test_export_of_a_config_is_the_same_twice(tmp_path: Path) -> None:
    config = BlockConfig(dim=60, num_heads=3, ffn_dim=100, max_position=64)
    one, two = (export(config, tmp_path / n, seq=Range(1, 8, 16)) for n in ("a", "b"))
    assert one.manifest.files == two.manifest.files
