"""Every feature of a block on every runtime that runs here: the table that a new feature or runtime joins.

A default run takes mixtures of features that together touch every field of BlockConfig; `exhaustive` takes
each feature by itself, and compiles all of them.
"""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tblock import BlockConfig
from tblock.errors import ArtifactError, TblockError
from tblock.export import export
from tblock.manifest import read_artifact
from tblock.ranges import Range
from tblock.runtimes import check, load
from tblock.runtimes.eager import EagerRunner
from tblock.runtimes.parity import golden_cases, judge_outputs, judge_runner
from tests.conftest import Once
from tests.runtimes import artifact_edits as edits

BASE = BlockConfig(dim=48, num_heads=4, num_kv_heads=2, head_dim=16, ffn_dim=80, max_position=64)
LIMITS = {"batch": Range(1, 2, 3), "seq": Range(1, 12, 24)}

FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "all-heads-keys": {"num_kv_heads": 4},
    "window": {"sliding_window": 3},
    "soft-cap": {"attn_soft_cap": 0.5},
    "scale": {"attn_scale": 0.6},
    "bidirectional": {"causal": False},
    "qk-norm-head": {"qk_norm": "head"},
    "qk-norm-full": {"qk_norm": "full"},
    "qk-norm-per-head": {"qk_norm": "per_head"},
    "residual-multiplier": {"residual_multiplier": 0.4},
    "post": {"norm_position": "post"},
    "sandwich": {"norm_position": "sandwich"},
    "inner-post": {"norm_position": "inner_post"},
    "parallel-one": {"parallel": "one_norm"},
    "parallel-two": {"parallel": "two_norms"},
    "layernorm": {"norm": "layernorm", "norm_bias": True},
    "layernorm-without-bias": {"norm": "layernorm", "norm_bias": False},
    "weight-offset": {"norm_weight_offset": 1.0},
    "eps": {"norm_eps": 1e-2},
    "no-rope": {"rope": False, "rope_dim": 0},
    "partial-rope": {"rope_dim": 8, "rope_base": 500.0},
    "interleaved": {"rope_layout": "interleaved"},
    "linear": {"rope_scaling": "linear", "rope_factor": 4.0},
    "llama3": {
        "rope_scaling": "llama3",
        "rope_factor": 8.0,
        "rope_original_max_position": 32,
        "rope_low_freq_factor": 1.0,
        "rope_high_freq_factor": 2.0,
    },
    "yarn": {
        "rope_scaling": "yarn",
        "rope_factor": 4.0,
        "rope_original_max_position": 16,
        "rope_beta_fast": 16.0,
        "rope_beta_slow": 2.0,
        "rope_attention_factor": 1.3,
    },
    "biases": {f"{name}_bias": True for name in ("q", "k", "v", "out", "ffn")},
    "geglu": {"ffn": "geglu"},
    "geglu-tanh": {"ffn": "geglu_tanh"},
    "gelu": {"ffn": "gelu"},
    "gelu-tanh": {"ffn": "gelu_tanh"},
    "relu": {"ffn": "relu"},
    "relu2": {"ffn": "relu2"},
    "experts": {"num_experts": 4, "experts_per_token": 2},
    "experts-shared": {
        "num_experts": 3,
        "experts_per_token": 1,
        "router": "sigmoid",
        "router_normalized": False,
        "shared_ffn_dim": 32,
    },
    "padding-mask": {},
    "position-ids": {},
}
"""Feature to what it changes in BASE; the last two are inputs of the graph."""

MIXTURES = {
    "gemma-like": "soft-cap window scale qk-norm-head sandwich weight-offset geglu-tanh linear padding-mask",
    "phi-like": "layernorm biases parallel-two partial-rope interleaved gelu position-ids all-heads-keys",
    "experts-like": "experts qk-norm-full inner-post llama3 eps residual-multiplier",
    "bert-like": "post bidirectional no-rope relu2 layernorm-without-bias qk-norm-per-head",
    "shared-like": "experts-shared parallel-one yarn",
}

EACH_MIXTURE = [
    pytest.param(name, marks=[pytest.mark.exhaustive] if name in ("phi-like", "shared-like") else [])
    for name in MIXTURES
]

SIZES = {"dim", "num_heads", "head_dim", "num_layers", "max_position", "ffn_dim", "init_std"}
"""Fields of BlockConfig that are no features: sizes and the initialisation."""


def config_of(features: str) -> BlockConfig:
    changes: dict[str, Any] = {}
    for name in features.split():
        changes |= FEATURES[name]
    return BASE.replace(**changes)


def made(once: Once, name: str, features: str, *, aoti: bool = False) -> Path:
    """The artifact of some features, for every target that builds here."""
    words = features.split()
    to = ("onnx", "tensorrt-rtx", "aoti") if aoti else ("onnx", "tensorrt-rtx")

    def build(folder: Path) -> object:
        return export(
            config_of(features),
            folder,
            to=to,
            padding_mask="padding-mask" in words or None,
            position_ids="position-ids" in words,
            **LIMITS,
        )

    return once(f"features-{name}-{'aoti' if aoti else 'onnx'}", build)


def judged(folder: Path, runtime: str) -> None:
    row = judge_runner(load(folder, runtime, threads=1), read_artifact(folder))
    assert row.status == "PASS", row.reason


def test_every_field_of_a_block_is_a_feature_in_some_mixture() -> None:
    mixed = {name for features in MIXTURES.values() for name in features.split()}
    changed = {field for name in mixed for field in FEATURES[name]}
    assert changed == {f.name for f in dataclasses.fields(BlockConfig)} - SIZES
    assert {"padding-mask", "position-ids"} <= mixed


@pytest.mark.parametrize("mixture", EACH_MIXTURE)
@pytest.mark.parametrize("runtime", ["eager", "onnxruntime"])
def test_mixture_passes(once: Once, mixture: str, runtime: str) -> None:
    judged(made(once, mixture, MIXTURES[mixture]), runtime)


@pytest.mark.parametrize("mixture", EACH_MIXTURE)
def test_mixture_is_built_as_an_engine(once: Once, mixture: str) -> None:
    """The engine is there and is what the runner wants, up to the GPU that a machine may lack."""
    folder = made(once, mixture, MIXTURES[mixture])
    assert read_artifact(folder).path("model.rtx.engine").stat().st_size > 0
    (row,) = check(folder, ["tensorrt-rtx"])
    assert row.status == "PASS" or (row.status == "UNAVAILABLE" and "GPU" in row.reason), row


def test_mixture_with_a_soft_cap_compiles(once: Once) -> None:
    """Sizes without a known value do not compile with it: the runner must find another way by itself."""
    folder = made(once, "gemma-like", MIXTURES["gemma-like"])
    runner = load(folder, "compile", threads=1)
    assert runner.details["symbols"].startswith("dynamic: unbacked sizes do not compile here (")
    cases = dict(golden_cases(runner.artifact))
    # The other shapes have a size of 1, which is a graph of its own each.
    (verdict,) = judge_outputs(runner.artifact, cases["B2 S7"], runner.run(cases["B2 S7"].inputs))
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize("mixture", EACH_MIXTURE)
def test_block_that_lacks_one_feature_of_a_mixture_fails(once: Once, mixture: str, tmp_path: Path) -> None:
    """The broken twins: eager builds the block without the feature, from the same weights where they fit."""
    folder = edits.copy(made(once, mixture, MIXTURES[mixture]), tmp_path)
    words = MIXTURES[mixture].split()
    for left_out in (name for name in words if FEATURES[name]):
        config = config_of(" ".join(name for name in words if name != left_out))
        edits.reseal(folder, lambda manifest, config=config: {"configs": (config,)})
        artifact = read_artifact(folder)
        try:
            status = judge_runner(EagerRunner(artifact, threads=1), artifact).status
        except ArtifactError:  # other weights than the block has
            status = "FAIL"
        assert status == "FAIL", left_out


def load_error(folder: Path) -> str:
    try:
        load(folder, "compile", threads=1)
    except TblockError as error:
        return str(error)
    return ""


def test_many_blocks_compile_in_one_process(once: Once, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo counts recompilations per code object, at most 8; all blocks share one where nobody looks."""
    import torch

    from tblock.runtimes import compiled

    lookup = torch._dynamo.lookup_backend
    monkeypatch.setattr(torch._dynamo, "lookup_backend", lambda name: lookup("eager"))  # quick to compile
    folder = made(once, "bert-like", MIXTURES["bert-like"])
    torch._dynamo.reset()
    for _ in range(9):
        load(folder, "compile", threads=1)
    # The broken twin: the module itself is compiled.
    monkeypatch.setattr(compiled, "_own_code", lambda module: module)
    torch._dynamo.reset()
    ended = [load_error(folder) for _ in range(9)]
    assert ended[:4] == [""] * 4
    assert "recompile limit" in ended[-1], ended


@pytest.mark.exhaustive
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("runtime", ["eager", "onnxruntime"])
def test_feature_passes(once: Once, feature: str, runtime: str) -> None:
    judged(made(once, feature, feature), runtime)


@pytest.mark.exhaustive
@pytest.mark.parametrize("mixture", MIXTURES)
@pytest.mark.parametrize("runtime", ["compile", "aoti"])
def test_mixture_passes_compiled(once: Once, mixture: str, runtime: str) -> None:
    judged(made(once, mixture, MIXTURES[mixture], aoti=runtime == "aoti"), runtime)
