"""Block and Stack against the numpy truth: arrangements, causality, padding, init, tables."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tblock.norm
from tblock import Block, BlockConfig, Stack, ops
from tblock.errors import ConfigError
from tblock.rope import inverse_frequencies
from tblock.rope_table import RopeTable
from tblock.runtimes.verdict import Verdict, judge
from tblock.weights import DTYPES, fill, random_block_weights, to_array
from tests.core import numpy_truth as truth

BASE: dict[str, Any] = {
    "dim": 60,
    "num_heads": 6,
    "num_kv_heads": 3,
    "head_dim": 12,
    "ffn_dim": 100,
    "init_std": 0.2,
}
LAYERNORM: dict[str, Any] = {"norm": "layernorm", "norm_eps": 1e-5}
BIASES: dict[str, Any] = {"q_bias": True, "k_bias": True, "v_bias": True, "out_bias": True, "ffn_bias": True}
ARRANGEMENTS: dict[str, dict[str, Any]] = {
    "pre": {},
    "post": {"norm_position": "post"},
    "sandwich": {"norm_position": "sandwich"},
    "inner-post": {"norm_position": "inner_post"},
    "parallel-one": {"parallel": "one_norm"},
    "parallel-two": {"parallel": "two_norms"},
    "layernorm-pre-biases": {**LAYERNORM, **BIASES},
    "layernorm-post-gelu": {**LAYERNORM, **BIASES, "norm_position": "post", "ffn": "gelu", "rope": False},
    "layernorm-without-bias": {**LAYERNORM, "norm_bias": False},
    "weight-offset": {"norm_weight_offset": 1.0, "norm_position": "sandwich"},
    "bidirectional": {"causal": False},
    "window": {"sliding_window": 3},
    "soft-cap": {"attn_soft_cap": 1.5, "attn_scale": 0.4},
    "qk-norm-head": {"qk_norm": "head"},
    "qk-norm-full": {"qk_norm": "full"},
    "qk-norm-per-head": {"qk_norm": "per_head", "norm_weight_offset": 1.0},
    "qk-norm-per-head-layernorm": {"qk_norm": "per_head", **LAYERNORM},
    "residual-multiplier": {"residual_multiplier": 0.3},
    "residual-multiplier-post": {"residual_multiplier": 0.3, "norm_position": "post"},
    "residual-multiplier-sandwich": {"residual_multiplier": 0.3, "norm_position": "sandwich"},
    "residual-multiplier-inner-post": {"residual_multiplier": 0.3, "norm_position": "inner_post"},
    "residual-multiplier-parallel": {"residual_multiplier": 0.3, "parallel": "two_norms"},
    "rope-interleaved": {"rope_layout": "interleaved"},
    "rope-partial": {"rope_dim": 8},
    "rope-partial-interleaved": {"rope_dim": 8, "rope_layout": "interleaved"},
    "mqa": {"num_kv_heads": 1},
    "geglu": {"ffn": "geglu"},
    "geglu-tanh": {"ffn": "geglu_tanh"},
    "relu2": {"ffn": "relu2"},
}


LOW = (
    "pre",
    "layernorm-post-gelu",
    "sandwich",
    "soft-cap",
    "rope-partial",
    "qk-norm-per-head",
    "residual-multiplier",
)


def config_of(name: str) -> BlockConfig:
    return BlockConfig(**{**BASE, **ARRANGEMENTS[name]})


def filled(config: BlockConfig, dtype: str = "float32") -> Block:
    block = Block(config)
    fill(block, random_block_weights(config, seed=1), dtype=DTYPES[dtype], where="test")
    return block


def states(config: BlockConfig, batch: int, seq: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((batch, seq, config.dim), np.float32)


def judged(block: Block, x: np.ndarray, dtype: str, padding: np.ndarray | None = None) -> Verdict:
    """The block in `dtype` against numpy on its rounded weights; its own float64 run is the perfect eager."""
    rounded = torch.from_numpy(x).to(DTYPES[dtype])
    weights = {name: to_array(p) for name, p in block.named_parameters()}
    mask = None if padding is None else torch.from_numpy(padding)
    reference = truth.block(block.config, weights, to_array(rounded).astype(np.float64), padding)
    output = to_array(block(rounded, mask))
    return judge(
        output=output,
        reference=reference,
        eager=to_array(block(rounded.double(), mask).to(DTYPES[dtype])),
        inputs=to_array(rounded) if block.config.norm_position != "post" else None,
        dtype=dtype,
    )


@pytest.mark.parametrize(("batch", "seq"), [(1, 1), (2, 7)], ids=["B1S1", "B2S7"])
@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_block_in_float32_equals_the_numpy_truth(name: str, batch: int, seq: int) -> None:
    config = config_of(name)
    verdict = judged(filled(config), states(config, batch, seq), "float32")
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_block_in_float64_is_the_reference_itself(name: str) -> None:
    """The float64 run that judges every runtime is itself right, far below what float32 could show."""
    config = config_of(name)
    block, x = filled(config), states(config, 2, 7).astype(np.float64)
    weights = {n: to_array(p) for n, p in block.named_parameters()}
    y, reference = to_array(block(torch.from_numpy(x))), truth.block(config, weights, x)
    assert y.dtype == np.float64
    assert truth.error_in_units(y, reference) <= truth.UNITS


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", LOW)
def test_block_in_low_precision_keeps_its_dtype_and_is_near_the_truth(name: str, dtype: str) -> None:
    config = config_of(name)
    block = filled(config, dtype)
    x = torch.from_numpy(states(config, 3, 33)).to(DTYPES[dtype])
    weights = {n: to_array(p) for n, p in block.named_parameters()}
    reference, y = truth.block(config, weights, to_array(x).astype(np.float64)), block(x)
    assert y.dtype == x.dtype
    verdict = judge(output=to_array(y), reference=reference, eager=to_array(y), inputs=None, dtype=dtype)
    assert verdict.passed, verdict.reason


BREAKERS: dict[str, tuple[str, Callable[[pytest.MonkeyPatch, Block], Any]]] = {
    "attention-removed": (
        "pre",
        lambda m, b: m.setattr(b.attn, "forward", lambda x, *_: torch.zeros_like(x)),
    ),
    "ffn-removed": ("pre", lambda m, b: m.setattr(b.ffn, "forward", torch.zeros_like)),
    "gate-up-swapped": ("pre", lambda m, b: swap(b.ffn)),
    "eps-wrong": ("layernorm-post-gelu", lambda m, b: m.setattr(b.attn_norm, "eps", 0.1)),
    "offset-dropped": ("weight-offset", lambda m, b: m.setattr(b.ffn_out_norm, "weight_offset", 0.0)),
    "heads-share-a-weight": ("qk-norm-per-head", lambda m, b: share_first_row(b.attn.q_norm)),
    "multiplier-ignored": (
        "residual-multiplier",
        lambda m, b: object.__setattr__(b, "config", BlockConfig(**BASE)),
    ),
    "norm-skipped": ("sandwich", lambda m, b: m.setattr(b.attn_out_norm, "forward", lambda x: x)),
    "position-shifted": ("pre", lambda m, b: m.setattr(b.rope, "cos", b.rope.cos.roll(1, 0))),
    "layout-swapped": (
        "rope-interleaved",
        lambda m, b: object.__setattr__(b.attn, "config", BlockConfig(**BASE)),
    ),
    "window-ignored": ("window", lambda m, b: object.__setattr__(b.attn, "config", BlockConfig(**BASE))),
}


def share_first_row(norm: nn.Module) -> None:
    norm.weight = nn.Parameter(norm.weight.detach()[:1].repeat(len(norm.weight), 1))


def swap(ffn: nn.Module) -> None:
    ffn.gate, ffn.up = ffn.up, ffn.gate


@pytest.mark.parametrize("twin", BREAKERS)
def test_broken_twin_of_the_block_fails_the_verdict(twin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, break_it = BREAKERS[twin]
    block = filled(config_of(name))
    x = states(block.config, 2, 7)
    weights = {n: to_array(p) for n, p in block.named_parameters()}
    reference = truth.block(block.config, weights, x.astype(np.float64))
    eager = to_array(block(torch.from_numpy(x)))
    given = {"reference": reference, "eager": eager, "inputs": None, "dtype": "float32"}
    assert judge(output=eager, **given).passed
    break_it(monkeypatch, block)
    assert judge(output=to_array(block(torch.from_numpy(x))), **given).status == "FAIL"


@pytest.mark.parametrize(
    "name", ["pre", "post", "window", "soft-cap", "rope-partial", "layernorm-pre-biases"]
)
def test_causal_block_changing_the_last_token_leaves_earlier_outputs_bit_equal(name: str) -> None:
    block = filled(config_of(name))
    x = torch.from_numpy(states(block.config, 1, 12))
    changed = x.clone()
    changed[:, 11] += 1.0
    before, after = block(x), block(changed)
    assert torch.equal(before[:, :11], after[:, :11])
    assert not torch.equal(before[:, 11], after[:, 11])


def test_bidirectional_block_changing_the_last_token_changes_earlier_outputs() -> None:
    """Twin of the one above: the comparison can see a leak."""
    block = filled(config_of("bidirectional"))
    x = torch.from_numpy(states(block.config, 1, 12))
    changed = x.clone()
    changed[:, 11] += 1.0
    assert not torch.equal(block(x)[:, :11], block(changed)[:, :11])


PADDING = np.array([[True] * 8, [True] * 5 + [False] * 3, [False] * 2 + [True] * 6])
"""[3, 8]: none, three on the right, two on the left (whose causal rows see no key)."""


@pytest.mark.parametrize("name", ["pre", "bidirectional", "window", "soft-cap", "post"])
def test_block_with_padding_equals_the_explicit_and_of_both_masks(name: str) -> None:
    config = config_of(name)
    verdict = judged(filled(config), states(config, 3, 8), "float32", PADDING)
    assert verdict.passed, verdict.reason


def test_padding_not_combined_with_causal_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    block = filled(config_of("pre"))
    original = F.scaled_dot_product_attention

    def only_padding(q: Any, k: Any, v: Any, attn_mask: Any = None, **options: Any) -> Any:
        kept = None if attn_mask is None else attn_mask.any(-2, keepdim=True)
        return original(q, k, v, attn_mask=kept, **options)

    monkeypatch.setattr(ops.F, "scaled_dot_product_attention", only_padding)
    weights = {n: to_array(p) for n, p in block.named_parameters()}
    x = states(block.config, 3, 8)
    reference = truth.block(block.config, weights, x.astype(np.float64), PADDING)
    output = to_array(block(torch.from_numpy(x), torch.from_numpy(PADDING)))
    exact = reference.astype(np.float32)
    assert not judge(output=output, reference=reference, eager=exact, inputs=None, dtype="float32").passed


def test_block_fully_masked_row_is_x_plus_ffn_of_norm() -> None:
    block = filled(config_of("pre"))
    x = torch.from_numpy(states(block.config, 3, 8))
    y = block(x, torch.from_numpy(PADDING))
    alone = x + block.ffn(block.ffn_norm(x))
    assert torch.equal(y[2, :2], alone[2, :2])


def test_layer_norm_of_float16_3000_is_near_float32() -> None:
    """LayerNorm: x of scale 3000, error against float32 at most 2e-3."""
    x = (torch.randn(1, 4, 256, generator=torch.Generator().manual_seed(0)) * 3000).half()
    norm = tblock.norm.LayerNorm(shape=(256,), eps=1e-5)
    wide = norm(x.float())
    assert (norm.half()(x).float() - wide).abs().max() <= 2e-3


@pytest.mark.parametrize("layers", [1, 6, 30])
def test_init_of_residual_outputs_is_smaller_by_the_root_of_2l(layers: int) -> None:
    block = Block(BlockConfig(dim=192, num_heads=3, num_layers=layers, init_std=0.1, **BIASES))
    for name, parameter in block.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any()
        elif parameter.ndim == 2:
            std = 0.1 / math.sqrt(2 * layers) if ".out." in name or ".down." in name else 0.1
            # The standard deviation of n draws is known to 1 / sqrt(2n); five of those.
            assert abs(parameter.std().item() / std - 1) < 5 / math.sqrt(2 * parameter.numel()), name
        else:
            assert torch.equal(parameter, torch.ones_like(parameter))


@pytest.mark.parametrize(("dtype", "limit"), [("float16", 5e-4), ("bfloat16", 4e-3)])
def test_rope_table_after_a_cast_stays_float32(dtype: str, limit: float) -> None:
    """2048 positions, width 32."""
    block = Block(BlockConfig(dim=64, num_heads=2, max_position=2048)).to(DTYPES[dtype])
    assert block.rope is not None
    assert block.rope.cos.dtype == block.rope.sin.dtype == torch.float32
    exact = np.cos(np.outer(np.arange(2048.0), 10000.0 ** (-np.arange(0, 32, 2) / 32)))
    assert np.abs(block.rope.cos.to(DTYPES[dtype]).double().numpy() - exact).max() <= limit
    assert next(block.parameters()).dtype == DTYPES[dtype]


@pytest.mark.parametrize(("dtype", "error"), [("float16", 0.78), ("bfloat16", 2.0)])
def test_rope_table_built_in_half_is_off_by_as_much_as_reported(dtype: str, error: float) -> None:
    """Twin: angles in the low precision, as a table cast first and read by position would have them."""
    angles = np.outer(np.arange(2048.0), 10000.0 ** (-np.arange(0, 32, 2) / 32))
    low = torch.from_numpy(angles).to(DTYPES[dtype]).double().numpy()
    assert np.abs(np.cos(low) - np.cos(angles)).max() > error / 2


@pytest.mark.parametrize(
    ("scaling", "index", "expected"), [("none", 28, "3.211446e-03"), ("llama3", 63, "3.068926e-07")]
)
def test_rope_frequencies_of_llama3_are_the_published_ones(scaling: str, index: int, expected: str) -> None:
    fields: dict[str, Any] = {"rope_scaling": scaling, "rope_factor": 8.0, "rope_original_max_position": 8192}
    config = BlockConfig(
        dim=256, num_heads=2, rope_base=5e5, **(fields if scaling != "none" else {})
    )  # fmt: skip
    assert f"{inverse_frequencies(config)[index]:.6e}" == expected


def test_rope_sequence_above_max_position_is_refused() -> None:
    block = Block(BlockConfig(**{**BASE, "max_position": 16}))
    with pytest.raises(ConfigError, match="S=17: above max_position=16 of the RoPE tables"):
        block(torch.zeros(1, 17, 60))


@pytest.mark.parametrize("rows", [3, 4096], ids=["shorter", "longer"])
def test_rope_table_resized_has_the_same_rows(rows: int) -> None:
    config = BlockConfig(**{**BASE, "max_position": 64})
    table, whole = RopeTable(config), RopeTable(config)
    table.resize(rows)
    assert table.cos.shape == (rows, 6)
    n = min(rows, 64)
    assert torch.equal(table.cos[:n], whole.cos[:n])
    assert torch.equal(table.sin[:n], whole.sin[:n])


def test_position_ids_counting_from_0_equal_none() -> None:
    block = filled(config_of("pre"))
    x = torch.from_numpy(states(block.config, 2, 7))
    positions = torch.arange(7).expand(2, 7)
    assert torch.equal(block(x, None, positions), block(x))
    assert not torch.equal(block(x, None, positions + torch.arange(7)), block(x))


def experts_reference(block: Block, x: torch.Tensor) -> torch.Tensor:
    """Each token by itself through its top experts."""
    c, y = block.config, torch.zeros_like(x)
    for b, s in np.ndindex(*x.shape[:2]):
        scores = (x[b, s] @ block.ffn.router.weight.T).softmax(-1)
        top = scores.argsort(descending=True)[: c.experts_per_token]
        for n in top:
            y[b, s] += scores[n] / scores[top].sum() * block.ffn.experts[n](x[b, s])
    return y


def test_experts_equal_each_token_through_its_own_experts() -> None:
    block = filled(
        BlockConfig(**{**BASE, "num_experts": 4, "experts_per_token": 2, "init_std": 0.5})
    ).double()
    x = torch.from_numpy(states(block.config, 2, 7)).double()
    expected, y = experts_reference(block, x), block.ffn(x)
    exact = to_array(expected.float())
    given = {"reference": to_array(expected), "eager": exact, "inputs": None, "dtype": "float32"}
    assert judge(output=to_array(y.float()), **given).passed
    one = dataclasses.replace(block.config, experts_per_token=1)
    block.ffn.config = one
    assert not judge(output=to_array(block.ffn(x).float()), **given).passed


THREE = BlockConfig(**{**BASE, "num_layers": 3})


@pytest.mark.parametrize(
    ("configs", "count"),
    [(THREE, 3), ([THREE, THREE.replace(sliding_window=3)], 2)],
    ids=["one-config", "two-configs"],
)
def test_stack_equals_its_blocks_one_after_the_other(configs: Any, count: int) -> None:
    stack = Stack(configs).requires_grad_(False)
    assert len(stack.layers) == count
    x = torch.from_numpy(states(stack.layers[0].config, 2, 7))
    mask = torch.from_numpy(PADDING[:2, :7])
    expected = x
    for block in stack.layers:
        expected = block(expected, mask)
    assert torch.equal(stack(x, mask), expected)


def test_stack_of_one_config_holds_one_rope_table() -> None:
    stack = Stack(BlockConfig(**{**BASE, "num_layers": 3}))
    assert len({id(block.rope) for block in stack.layers}) == 1


def test_stack_sharing_a_layer_counts_its_weights_once() -> None:
    config = BlockConfig(**{**BASE, "num_layers": 3})
    stack = Stack(config)
    stack.share([0, 0, 2])
    assert stack.layers[1] is stack.layers[0]
    assert sum(p.numel() for p in stack.parameters()) == 2 * config.parameter_count()


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ([], "configs=[]: a stack needs at least one block"),
        (
            [BlockConfig(**BASE), BlockConfig(**{**BASE, "dim": 64})],
            "dim must be the same in every block, got [60, 64]",
        ),
    ],
    ids=["none", "two-widths"],
)
def test_stack_without_sense_is_refused(configs: list[BlockConfig], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Stack(configs)
    assert message in str(caught.value)
