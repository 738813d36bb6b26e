"""config.json as hubs hold it: sparse, full, wrapped, and with settings that nobody knows."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tblock.checkpoints import Checkpoint, open_checkpoint
from tblock.checkpoints.fields import Fields
from tblock.checkpoints.irrelevant import IRRELEVANT
from tblock.checkpoints.opening import FAMILIES, WRAPPERS
from tblock.checkpoints.probe import LIMITS, measure, probe
from tblock.checkpoints.published import published_defaults
from tblock.config import BlockConfig
from tblock.errors import ConfigError, ParityError
from tests.families.config_defaults import defaults_of, settings_of
from tests.families.family_cases import CASES, randomize, save_model
from tests.families.hub_configs import HUB_CONFIGS

LAYERS = (0, 1, 3, 5)
"""Of the published depth: they differ in window, rotation or experts where a family's layers do."""


def read(family: str, values: dict[str, Any], layer: int) -> BlockConfig:
    row = FAMILIES[family]
    fields = Fields("config.json", values, published_defaults(family))
    config = BlockConfig(**row.config(fields, layer))
    fields.refuse_unread(family, row.known | {row.depth: "read"}, row.scope, row.advice)
    return config


@pytest.mark.parametrize("family", FAMILIES)
def test_defaults_are_those_of_the_published_config_class(family: str) -> None:
    assert published_defaults(family) == defaults_of(family)


@pytest.mark.parametrize("family", FAMILIES)
def test_sparse_config_says_the_same_as_the_full_one(family: str) -> None:
    full = CONFIG_MAPPING[family]().to_dict()
    for layer in LAYERS:
        assert read(family, {"model_type": family}, layer) == read(family, full, layer)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_setting_of_the_config_class_is_read_or_known_to_change_no_layer(family: str) -> None:
    fields = Fields("config.json", {}, published_defaults(family))
    FAMILIES[family].config(fields, 0)
    unread = settings_of(family) - fields.asked - set(FAMILIES[family].known) - {FAMILIES[family].depth}
    assert not unread


def test_broken_twin_of_the_defaults_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A theta that was left out and taken for another: names and shapes fit, and only the numbers differ."""
    assert read("smollm3", {}, 0).rope_base == 2e6
    monkeypatch.setitem(published_defaults("smollm3"), "rope_theta", 1e4)
    assert published_defaults("smollm3") != defaults_of("smollm3")


def test_gemma_3_4b_as_its_hub_holds_it() -> None:
    """The text part of that model's config.json: heads, head width and theta are left to the defaults."""
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    local, full = read("gemma3_text", text, 0), read("gemma3_text", text, 5)
    assert (local.num_heads, local.num_kv_heads, local.head_dim) == (8, 4, 256)
    assert (local.rope_base, local.rope_scaling, local.sliding_window) == (1e4, "none", 1024)
    assert (full.rope_base, full.rope_scaling, full.rope_factor) == (1e6, "linear", 8.0)
    assert full.sliding_window is None


UNKNOWN: dict[str, tuple[str, dict[str, Any], str]] = {
    "flat rope of gemma3": (
        "gemma3",
        {"rope_parameters": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}},
        r"config.json: rope_parameters: rope_type='linear': not known for gemma3_text",
    ),
    "not causal": ("qwen3", {"is_causal": False}, r"is_causal=False: qwen3 is supported with True only"),
    "causal encoder": ("bert", {"is_causal": True}, r"is_causal=True: bert is supported with False only"),
    "clip": ("llama", {"clip_qkv": 8.0}, r"clip_qkv=8.0: not known for llama and may change the layer"),
    "bias of a family without": (
        "mistral",
        {"attention_bias": True},
        r"attention_bias=True: mistral is supported with False only",
    ),
    "both directions": (
        "gemma",
        {"use_bidirectional_attention": True},
        r"use_bidirectional_attention=True: gemma is supported with False only",
    ),
    "theta that gpt_neox does not read": (
        "gpt_neox",
        {"rope_theta": 5e5},
        r"rope_theta=500000.0: gpt_neox is supported with 10000.0 only",
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_setting_that_nobody_reads_is_refused_by_name(name: str, tmp_path: Path) -> None:
    case, change, wanted = UNKNOWN[name]
    save_model(next(c for c in CASES if c.id == case), tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ConfigError, match=wanted):
        open_checkpoint(tmp_path).config(0)


def test_list_without_reasons_would_let_them_through(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Twin: were clip_qkv on the list, the layer would be read as if it were not there."""
    save_model(next(c for c in CASES if c.id == "mistral"), tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"clip_qkv": 8.0}))
    monkeypatch.setitem(IRRELEVANT, "clip_qkv", "said without looking")
    assert isinstance(open_checkpoint(tmp_path).config(0), BlockConfig)


def test_reference_is_built_from_the_file_and_not_from_our_reading(tmp_path: Path) -> None:
    save_model(next(c for c in CASES if c.id == "llama"), tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    before = json.dumps(checkpoint.fields.values)
    assert probe(checkpoint, 1).worst <= LIMITS["float32"]
    assert json.dumps(checkpoint.fields.values) == before
    checkpoint.fields.values["rope_parameters"]["rope_theta"] = 77.0
    with pytest.raises(ParityError, match="layer 1 differs from transformers' llama"):
        probe(checkpoint, 1)


def small_text(model_type: str) -> dict[str, Any]:
    case = next(c for c in CASES if c.model_type == model_type)
    return {**case.settings, "model_type": model_type}


VISION = {"hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 1, "num_attention_heads": 2}
VISION |= {"image_size": 8, "patch_size": 4}


def wrapped_model(wrapper: str) -> Any:
    """A tiny model of that kind, its language model of two layers."""
    settings: dict[str, Any] = {"text_config": small_text(WRAPPERS[wrapper])}
    if wrapper == "qwen2_audio":
        audio = {"d_model": 24, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 20}
        audio |= {
            "hidden_size": 24,
            "intermediate_size": 20,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
        }
        settings["audio_config"] = {**audio, "num_mel_bins": 8}
    else:
        settings["vision_config"] = VISION
    config = CONFIG_MAPPING[wrapper](**settings)
    return transformers.AutoModel.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_language_model_inside_a_wrapper_is_read_as_on_its_own(wrapper: str, tmp_path: Path) -> None:
    model = wrapped_model(wrapper)
    randomize(model, seed=1)
    model.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.family == WRAPPERS[wrapper]
    for layer in (0, 1):
        assert probe(checkpoint, layer).worst <= LIMITS["float32"]
    # Twin: the other layer's weights are not taken for this one's.
    weights = checkpoint.weights(1)
    real = Checkpoint.weights
    try:
        Checkpoint.weights = lambda self, layer: real(self, 1)  # type: ignore[method-assign]
        assert measure(checkpoint, 0).worst > LIMITS["float32"]
    finally:
        Checkpoint.weights = real  # type: ignore[method-assign]
    assert weights.keys() == real(checkpoint, 1).keys()


def test_window_that_the_list_names_counts_without_the_switch(tmp_path: Path) -> None:
    save_model(next(c for c in CASES if c.id == "smollm3"), tmp_path)
    path = tmp_path / "config.json"
    types = ["sliding_attention", "full_attention"]
    given = json.loads(path.read_text()) | {"layer_types": types, "sliding_window": 5}
    path.write_text(json.dumps(given | {"use_sliding_window": False}))
    checkpoint = open_checkpoint(tmp_path)
    assert [checkpoint.config(layer).sliding_window for layer in (0, 1)] == [5, None]
    assert max(probe(checkpoint, layer).worst for layer in (0, 1)) <= LIMITS["float32"]


def test_wrapper_that_was_not_proven_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "paligemma", "text_config": {}}))
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"'paligemma' is not supported: it needs a mask under which"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("model", HUB_CONFIGS)
def test_published_model_is_read_as_transformers_reads_it(model: str) -> None:
    """Nothing of it is refused, and what it says is what transformers takes from the same file."""
    given = HUB_CONFIGS[model]
    theirs = CONFIG_MAPPING[given["model_type"]].from_dict(given)
    for layer in LAYERS[:3]:
        ours = read(given["model_type"], given, layer)
        assert (ours.dim, ours.num_heads) == (theirs.hidden_size, theirs.num_attention_heads)
        rope = getattr(theirs, "rope_parameters", None)
        if ours.rope and rope:
            kind = "full_attention" if ours.sliding_window is None else "sliding_attention"
            rope = rope.get(kind, rope)
            assert ours.rope_base == rope["rope_theta"]
            assert ours.rope_scaling == rope["rope_type"].replace("default", "none")
            assert ours.rope_factor == rope.get("factor", 1.0)
        kinds = getattr(theirs, "layer_types", None)
        window = getattr(theirs, "sliding_window", None)
        slides = kinds[layer] == "sliding_attention" if kinds else window is not None
        assert ours.sliding_window == (window if slides else None)
        kv_heads = getattr(theirs, "num_kv_heads", None) or getattr(theirs, "num_key_value_heads", None)
        shared = getattr(theirs, "multi_query", False) and not theirs.new_decoder_architecture
        assert ours.num_kv_heads == (1 if shared else kv_heads or theirs.num_attention_heads)
