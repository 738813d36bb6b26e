"""Older and composite spellings of one checkpoint: config keys, tensor names and prefixes of hub files."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tblock.checkpoints import open_checkpoint
from tblock.checkpoints.probe import probe
from tblock.errors import ConfigError
from tests.families.family_cases import CASES, save_model


def saved(name: str, folder: Path) -> Path:
    """The case of that id, saved."""
    save_model(next(c for c in CASES if c.id == name), folder)
    return folder


def edit_config(folder: Path, drop: tuple[str, ...], **add) -> None:
    config = json.loads((folder / "config.json").read_text())
    config = {k: v for k, v in config.items() if k not in drop} | add
    (folder / "config.json").write_text(json.dumps(config))


def rename(folder: Path, old: str, new: str) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({k.replace(old, new): v for k, v in tensors.items()}, folder / "model.safetensors")


_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3 |= {"original_max_position_embeddings": 32}
_NEW = ("rope_parameters",)
OLD_KEYS = {
    "llama": {"rope_theta": 10000.0},
    "llama-linear": {"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 2.5}},
    "llama-llama3rope": {"rope_theta": 5e5, "rope_scaling": _LLAMA3},
    "gemma3": {
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "phi": {"rope_theta": 10000.0, "partial_rotary_factor": 0.4},
    "gpt_neox": {"rotary_emb_base": 10000, "rotary_pct": 0.25},
}


@pytest.mark.parametrize("name", OLD_KEYS)
def test_old_rope_keys_mean_the_same_and_pass_the_probe(tmp_path: Path, name: str) -> None:
    new = open_checkpoint(saved(name, tmp_path / "new"))
    old_folder = saved(name, tmp_path / "old")
    edit_config(old_folder, _NEW, **OLD_KEYS[name])
    old = open_checkpoint(old_folder)
    for layer in (0, 1):
        assert old.config(layer) == new.config(layer)
        probe(old, layer)


def test_roberta_ends_where_its_position_table_does(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(saved("roberta", tmp_path))
    longest = checkpoint.config(0).max_position
    assert longest == 66 - 2
    assert checkpoint.embed([5] * longest).shape[0] == longest
    with pytest.raises(ConfigError, match=r"row 66 of embeddings.position_embeddings.weight is out of range"):
        checkpoint.embed([5] * (longest + 1))


def test_nan_in_berts_embedding_norm_names_the_tensor(tmp_path: Path) -> None:
    tensors = load_file(saved("bert", tmp_path) / "model.safetensors")
    tensors["embeddings.LayerNorm.weight"][3] = np.nan
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"tensor embeddings.LayerNorm.weight: NaN or Inf in 1 of"):
        open_checkpoint(tmp_path).embed([5])


def test_absent_keys_take_the_familys_defaults(tmp_path: Path) -> None:
    folder = saved("mistral", tmp_path)
    edit_config(folder, ("sliding_window", "rms_norm_eps", "hidden_act", "rope_parameters"))
    config = open_checkpoint(folder).config(0)
    assert (config.sliding_window, config.norm_eps, config.ffn, config.rope_base) == (
        4096,
        1e-6,
        "swiglu",
        1e4,
    )
    edit_config(folder, (), sliding_window=None)
    assert open_checkpoint(folder).config(0).sliding_window is None


def test_gemma_says_gelu_and_means_tanh(tmp_path: Path) -> None:
    folder = saved("gemma", tmp_path)
    edit_config(folder, (), hidden_act="gelu")
    checkpoint = open_checkpoint(folder)
    assert checkpoint.config(0).ffn == "geglu_tanh"
    probe(checkpoint, 0)


def test_old_layernorm_names_of_bert(tmp_path: Path) -> None:
    wanted = open_checkpoint(saved("bert", tmp_path / "new"))
    folder = saved("bert", tmp_path / "old")
    rename(folder, "LayerNorm.weight", "LayerNorm.gamma")
    rename(folder, "LayerNorm.bias", "LayerNorm.beta")
    old = open_checkpoint(folder)
    assert all(np.array_equal(a, wanted.weights(1)[name]) for name, a in old.weights(1).items())
    assert np.array_equal(old.embed([3, 4, 5]), wanted.embed([3, 4, 5]))


@pytest.mark.parametrize("prefix", ["model.", "language_model.model.", "model.language_model."])
def test_text_part_of_a_composite_gemma3(tmp_path: Path, prefix: str) -> None:
    wanted = open_checkpoint(saved("gemma3", tmp_path / "text"))
    folder = saved("gemma3", tmp_path / "composite")
    text = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    tensors = load_file(folder / "model.safetensors")
    vision = {"vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight": np.ones((2, 2), np.float32)}
    save_file({f"{prefix}{k}": v for k, v in tensors.items()} | vision, folder / "model.safetensors")
    composite = open_checkpoint(folder)
    for layer in (0, 1):
        assert composite.config(layer) == wanted.config(layer)
        assert all(np.array_equal(a, wanted.weights(layer)[k]) for k, a in composite.weights(layer).items())
        probe(composite, layer)


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "falcon", "gpt_neox"])
def test_checkpoint_saved_with_a_head_has_a_prefix(tmp_path: Path, name: str) -> None:
    prefix = {"llama": "model", "gpt2": "transformer", "falcon": "transformer"}.get(name, name)
    wanted = open_checkpoint(saved(name, tmp_path / "base"))
    folder = saved(name, tmp_path / "head")
    tensors = load_file(folder / "model.safetensors")
    head = {"lm_head.weight": np.ones((2, 2), np.float32)}
    save_file({f"{prefix}.{k}": v for k, v in tensors.items()} | head, folder / "model.safetensors")
    other = open_checkpoint(folder)
    assert all(np.array_equal(a, wanted.weights(1)[k]) for k, a in other.weights(1).items())
    assert np.array_equal(other.embed([1, 2]), wanted.embed([1, 2]))
    probe(other, 1)
