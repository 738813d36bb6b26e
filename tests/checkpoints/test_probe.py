"""The probe catches planted faults and passes random sound models (tests/families/probe_faults.py: more)."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tblock.checkpoints import Checkpoint, open_checkpoint
from tblock.checkpoints import probe as probe_module
from tblock.checkpoints.probe import LIMITS, measure, probe
from tblock.errors import ConfigError, ParityError
from tests.families.family_cases import CASES, save_model
from tests.families.faults import FAULTS, Fault
from tests.families.random_models import random_case

_CASE_OF = {
    "QK norm after RoPE": "qwen3",
    "no unit offset": "gemma2",
    "soft cap before the scale": "gemma2",
    "soft cap after the mask": "gemma2",
    "window one too wide": "mistral",
    "window one too wide in the config": "mistral",
    "router normalised otherwise": "mixtral",
    "residual multiplier dropped": "granite",
    "rotation where the layer has none": "smollm3",
    "heads share the first one's norm weight": "cohere",
    "pre norm for post": "bert",
}
"""Where a fault cannot show in the first family."""


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.id)
def test_planted_fault_is_caught(tmp_path: Path, fault: Fault) -> None:
    case = next(c for c in CASES if c.id == _CASE_OF.get(fault.id, "llama"))
    save_model(case, tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    layer = next(n for n in case.layers if fault.applies(checkpoint.config(n)))
    wanted = rf"layer {layer} differs from transformers' {checkpoint.family} by"
    with fault.plant(), pytest.raises(ParityError, match=wanted):
        probe(checkpoint, layer)
    probe(checkpoint, layer)


@pytest.mark.parametrize("seed", range(1000, 1020))
def test_random_sound_model_raises_no_alarm(tmp_path: Path, seed: int) -> None:
    save_model(random_case(seed), tmp_path, seed)
    assert measure(open_checkpoint(tmp_path), seed % 2).worst <= LIMITS["float32"]


def test_layer_that_float32_blurs_is_weighed_by_one_rounding_of_its_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Near-equal scores of hundreds, off by up to 2e-5 by luck: sound; a fault among them is caught."""
    save_model(next(c for c in CASES if c.id == "llama"), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    for name in weights:
        if "q_proj.weight" in name or "k_proj.weight" in name:
            weights[name] = weights[name] * np.float32(20)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    checkpoint = open_checkpoint(tmp_path)
    found = [probe(checkpoint, 0, seed=seed) for seed in range(8)]
    assert all(result.worst < result.limit < 1e-3 for result in found)
    assert max(result.worst for result in found) > LIMITS["float32"]
    fault = next(f for f in FAULTS if f.id == "RoPE interleaved")
    with fault.plant(), pytest.raises(ParityError, match="differs from transformers' llama by"):
        probe(checkpoint, 0)
    monkeypatch.setattr(probe_module, "ROUNDINGS", 0.0)
    with pytest.raises(ParityError):
        probe(checkpoint, 0, seed=max(range(8), key=lambda seed: found[seed].worst))


def test_nan_never_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(CASES[0], tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    real = Checkpoint.weights

    def broken(self, layer):
        weights = real(self, layer)
        weights["attn_norm.weight"] = weights["attn_norm.weight"] * np.float32(1e38)
        return weights

    monkeypatch.setattr(Checkpoint, "weights", broken)
    with pytest.raises(ParityError, match="by inf"):
        probe(checkpoint, 0)


def test_tensor_that_does_not_fit_is_named(tmp_path: Path) -> None:
    """An expert that is too short: transformers, which stacks the experts, only points to its log."""
    save_model(next(c for c in CASES if c.id == "mixtral"), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    name = "layers.0.block_sparse_moe.experts.1.w1.weight"
    weights[name] = weights[name][:-1].copy()
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=rf"tensor {name} has shape \[76, 60\], the config wants "):
        probe(open_checkpoint(tmp_path), 0)


def test_familys_own_code_that_breaks_when_it_runs_is_one_line(tmp_path: Path) -> None:
    """A window that is null under layers that slide: transformers takes it and stumbles over its mask."""
    save_model(next(c for c in CASES if c.id == "qwen2"), tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"sliding_window": None}))
    with pytest.raises(
        ConfigError, match=r"transformers cannot read this checkpoint \(TypeError: .*--no-verify"
    ):
        probe(open_checkpoint(tmp_path), 1)
