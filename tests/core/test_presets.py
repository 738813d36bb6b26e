"""Presets, and parameter and FLOP counts against the built block, torch's counter and a count by hand."""

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tblock import Block, BlockConfig, preset
from tblock.errors import ConfigError
from tblock.presets import PRESETS

BASE: dict[str, Any] = {"dim": 60, "num_heads": 6, "num_kv_heads": 3, "head_dim": 12, "ffn_dim": 100}
VARIANTS: dict[str, dict[str, Any]] = {
    "mqa": {"num_kv_heads": 1},
    "biases": {"q_bias": True, "k_bias": True, "v_bias": True, "out_bias": True, "ffn_bias": True},
    "mlp-biases": {"ffn": "gelu", "ffn_bias": True},
    "layernorm": {"norm": "layernorm"},
    "layernorm-without-bias": {"norm": "layernorm", "norm_bias": False},
    "qk-norm-head": {"qk_norm": "head"},
    "qk-norm-full": {"qk_norm": "full", "norm": "layernorm"},
    "post": {"norm_position": "post"},
    "sandwich": {"norm_position": "sandwich"},
    "inner-post": {"norm_position": "inner_post"},
    "parallel-one": {"parallel": "one_norm"},
    "parallel-two": {"parallel": "two_norms"},
    "experts": {"num_experts": 5, "experts_per_token": 2},
    "experts-shared": {"num_experts": 5, "experts_per_token": 2, "shared_ffn_dim": 44},
}


def test_presets_of_the_issue_are_all_there() -> None:
    wanted = ("tiny", "transformer-2017", "gpt2", "bert-base", "smollm2-135m", "llama-3.2-1b", "llama-3-8b")
    assert set(wanted) <= set(PRESETS)


@pytest.mark.parametrize(
    ("name", "hint"), [("gpt-2", "did you mean gpt2? "), ("zzz", "unknown; known: ")], ids=["near", "far"]
)
def test_unknown_preset_lists_the_known_ones(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"^preset '{name}': unknown; ") as caught:
        preset(name)
    assert hint in str(caught.value)
    assert str(caught.value).endswith(f"known: {', '.join(PRESETS)}")


CONFIGS = {**PRESETS, **{name: BlockConfig(**{**BASE, **fields}) for name, fields in VARIANTS.items()}}


@pytest.mark.parametrize("name", CONFIGS)
def test_parameter_count_equals_that_of_the_built_block(name: str) -> None:
    config = CONFIGS[name]
    with torch.device("meta"):
        block = Block(config)
    assert config.parameter_count() == sum(p.numel() for p in block.parameters())


@pytest.mark.parametrize(
    ("name", "published", "rest"),
    [
        # Whole model minus blocks: token embedding (tied), learned positions, final norm.
        ("gpt2", 124_439_808, 50257 * 768 + 1024 * 768 + 2 * 768),
        ("smollm2-135m", 134_515_008, 49152 * 576 + 576),
        ("llama-3.2-1b", 1_235_814_400, 128256 * 2048 + 2048),
        ("llama-3-8b", 8_030_261_248, 2 * 128256 * 4096 + 4096),
    ],
    ids=["gpt2", "smollm2", "llama-1b", "llama-8b"],
)
def test_parameter_count_of_all_layers_is_the_published_one(name: str, published: int, rest: int) -> None:
    assert preset(name).parameter_count() * preset(name).num_layers == published - rest


def test_active_parameters_count_only_the_chosen_experts() -> None:
    dense = BlockConfig(**BASE)
    sparse = dense.replace(num_experts=7, experts_per_token=2)
    one_expert = 3 * 60 * 100
    assert sparse.parameter_count(active=True) == dense.parameter_count() + one_expert + 7 * 60
    assert sparse.parameter_count() == dense.parameter_count() + 6 * one_expert + 7 * 60


@pytest.mark.parametrize(
    "name", ["tiny", "bert-base", "mqa", "mlp-biases", "sandwich", "experts", "experts-shared"]
)
@pytest.mark.parametrize(("batch", "seq"), [(1, 1), (2, 7), (3, 33)], ids=["B1S1", "B2S7", "B3S33"])
def test_flop_count_of_full_attention_equals_torchs_counter(name: str, batch: int, seq: int) -> None:
    config = CONFIGS[name].replace(causal=False)
    block = Block(config).requires_grad_(False)
    # The counter knows no CPU flash attention; the math path is matrix products it can see.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        block(torch.zeros(batch, seq, config.dim))
    assert config.flop_count(batch=batch, seq=seq) == counter.get_total_flops()


def test_flop_count_of_causal_attention_equals_a_count_by_hand() -> None:
    config = BlockConfig(**BASE)
    projections = 60 * 72 + 2 * 60 * 36 + 72 * 60 + 3 * 60 * 100
    pairs = sum(1 for i in range(7) for j in range(5 + 7) if j <= 5 + i)
    by_hand = 2 * 2 * (7 * projections + pairs * 72 * 2)
    assert config.flop_count(batch=2, seq=7, past=5) == by_hand


def test_flop_count_of_a_window_counts_only_the_keys_in_it() -> None:
    config, window = BlockConfig(**BASE), 3
    pairs = sum(1 for i in range(9) for j in range(9) if i - window < j <= i)
    rest = config.flop_count(batch=1, seq=9) - 2 * 2 * 72 * sum(range(1, 10))
    assert config.replace(sliding_window=window).flop_count(batch=1, seq=9) == rest + 2 * 2 * 72 * pairs
