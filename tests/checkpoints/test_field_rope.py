"""RoPE layouts and tables, each with its broken twin."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tblock.rope_table
from tblock import Block, BlockConfig
from tblock.checkpoints.rope_layout import to_layout
from tblock.export.request import OPSETS
from tblock.rope import inverse_frequencies, rope_tables
from tblock.weights import fill, random_block_weights
from tests.checkpoints.field_runners import IN_ONNX, LIMIT, RUNNERS, lowered, rows_off

ROTATED = {
    "half": [-1.984111, 1.959901, 2.462378, 4.019800],
    "interleaved": [-1.142640, 1.922076, 2.959851, 4.029799],
}
"""x = [1, 2, 3, 4] at position 1, base 10000."""


class RopeOp(nn.Module):
    """The op in one layout."""

    def __init__(self, layout: str) -> None:
        super().__init__()
        self.interleaved = int(layout == "interleaved")

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return torch.ops.tblock.rope(x, cos, sin, interleaved=self.interleaved)


@pytest.mark.parametrize("layout", ROTATED)
@pytest.mark.parametrize("runner", RUNNERS)
def test_layouts_rotate_their_own_pairs(runner: str, layout: str) -> None:
    config = BlockConfig(dim=4, num_heads=1, ffn_dim=4, rope_layout=layout, max_position=2)
    cos, sin = (torch.from_numpy(t).float()[1:] for t in rope_tables(config, 2))
    x = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 1, 1, 4)
    y = RUNNERS[runner](RopeOp(layout), (x, cos, sin))(x, cos, sin)
    np.testing.assert_allclose(y.flatten().numpy(), ROTATED[layout], atol=1e-6)


def scores(config: BlockConfig, weights: dict, x_BSD: Tensor) -> Tensor:
    """q k^T of the block's attention, [B, H, S, S]."""
    block = Block(config)
    fill(block, weights, dtype=torch.float32, where="scores")
    seen: list[Tensor] = []
    real = torch.ops.tblock.attention

    def spy(q, k, v, mask, **attributes):
        seen.append(q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(-1, -2))
        return real(q, k, v, mask, **attributes)

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(torch.ops.tblock, "attention", spy)
        block(x_BSD)
    return seen[0]


@pytest.mark.parametrize("more", [{}, {"rope_dim": 8}, {"qk_norm": "head"}, {"qk_norm": "full"}], ids=str)
def test_half_split_checkpoint_in_an_interleaved_block(more: dict) -> None:
    config = BlockConfig(
        dim=64, num_heads=4, num_kv_heads=2, ffn_dim=256, q_bias=True, k_bias=True, init_std=0.2, **more
    )
    weights = random_block_weights(config, seed=0)
    x_BSD = torch.randn(1, 7, 64, generator=torch.Generator().manual_seed(0))
    wanted = scores(config, weights, x_BSD)
    other = config.replace(rope_layout="interleaved")
    turned = ("attn.q.", "attn.k.", "attn.q_norm.", "attn.k_norm.")
    moved = {
        n: to_layout(a, config, "interleaved") if n.startswith(turned) else a for n, a in weights.items()
    }
    assert rows_off(scores(other, moved, x_BSD), wanted).max() <= LIMIT
    unmoved = (scores(other, weights, x_BSD) - wanted).abs()
    assert unmoved[..., 0, 0].max() <= LIMIT * wanted.abs().max()
    assert unmoved[..., 1:, 0].amax(dim=1).min() > (0.0 if more.get("qk_norm") else 1.0)
    back = moved | {n: to_layout(moved[n], config, "half") for n in moved if n.startswith(turned)}
    assert all(np.array_equal(back[name], weights[name]) for name in weights)


WIDTH32 = {"dim": 64, "num_heads": 2, "ffn_dim": 64, "max_position": 2048}
TABLE_LIMITS = {torch.float16: 5e-4, torch.bfloat16: 4e-3}
"""Largest error of cos over 2048 positions after the block is cast."""


def cos_error(dtype: torch.dtype) -> float:
    config = BlockConfig(**WIDTH32)
    block = Block(config).to(dtype)
    cos, _ = block.rope(torch.zeros(1, 2048, 64, dtype=dtype), None)
    return float((cos.double() - torch.from_numpy(rope_tables(config, 2048)[0])).abs().max())


@pytest.mark.parametrize("dtype", TABLE_LIMITS, ids=str)
def test_tables_survive_casting_the_block(dtype: torch.dtype) -> None:
    assert cos_error(dtype) <= TABLE_LIMITS[dtype]


def low_tables(dtype: torch.dtype, config: BlockConfig, positions: int) -> tuple[np.ndarray, np.ndarray]:
    """Tables computed in a low precision."""
    frequencies = torch.from_numpy(inverse_frequencies(config)).to(dtype)
    angles = torch.arange(positions).to(dtype)[:, None] * frequencies
    return angles.cos().double().numpy(), angles.sin().double().numpy()


@pytest.mark.parametrize("dtype", TABLE_LIMITS, ids=str)
def test_twin_tables_built_in_low_precision_are_caught(dtype: torch.dtype, monkeypatch) -> None:
    monkeypatch.setattr(tblock.rope_table, "rope_tables", partial(low_tables, dtype))
    assert cos_error(dtype) > 100 * TABLE_LIMITS[dtype]


@pytest.mark.parametrize("dtype", TABLE_LIMITS, ids=str)
def test_q_and_k_keep_the_blocks_dtype(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    real, seen = torch.ops.tblock.attention, []
    monkeypatch.setattr(
        torch.ops.tblock,
        "attention",
        lambda q, k, v, mask, **a: seen.extend((q, k, v)) or real(q, k, v, mask, **a),
    )
    with torch.no_grad():
        y_BSD = Block(BlockConfig(**WIDTH32)).to(dtype)(torch.randn(1, 5, 64, dtype=dtype))
    assert {t.dtype for t in [*seen, y_BSD]} == {dtype}


def cos_error_in_onnx(dtype: torch.dtype, opset: int) -> tuple[float, set[str]]:
    """Error of the cos table in the ONNX file, and the element types of rotated q and k."""
    config = BlockConfig(**WIDTH32)
    graph = lowered(Block(config).to(dtype), (torch.zeros(1, 3, 64, dtype=dtype),), opset).model.graph
    table = graph.initializers["rope.cos"].const_value.numpy()
    rotated = {v.name: str(v.dtype) for node in graph for v in node.outputs if v.name in ("rope", "rope_1")}
    assert len(rotated) == 2
    return float(np.abs(table.astype(np.float64) - rope_tables(config, 2048)[0]).max()), set(rotated.values())


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("dtype", TABLE_LIMITS, ids=str)
def test_onnx_file_holds_float32_tables_and_rotates_to_the_blocks_dtype(
    dtype: torch.dtype, opset: int
) -> None:
    error, types = cos_error_in_onnx(dtype, opset)
    assert error <= np.finfo(np.float32).eps
    assert types == {str(dtype).removeprefix("torch.").upper()}


def test_twin_low_tables_in_the_onnx_file_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tblock.rope_table, "rope_tables", partial(low_tables, torch.float16))
    assert cos_error_in_onnx(torch.float16, 23)[0] > 100 * TABLE_LIMITS[torch.float16]


@pytest.mark.parametrize("runner", IN_ONNX)
def test_last_of_2048_positions_rotates_right_in_float16(runner: str) -> None:
    """One rounding of the output, nothing of the angles."""
    wide = [torch.from_numpy(t)[-1:] for t in rope_tables(BlockConfig(**WIDTH32), 2048)]
    x = torch.randn(1, 2, 1, 32, generator=torch.Generator().manual_seed(0)).half()
    inputs = (x, *(t.float() for t in wide))
    y = RUNNERS[runner](RopeOp("half"), inputs)(*inputs)
    wanted = RopeOp("half")(x.double(), *wide)
    assert y.dtype == torch.float16
    assert (y.double() - wanted).abs().max() <= torch.finfo(torch.float16).eps * wanted.abs().max()


def test_llama3_scaling_has_the_published_frequencies() -> None:
    config = BlockConfig(
        dim=256,
        num_heads=2,
        rope_base=5e5,
        rope_scaling="llama3",
        rope_factor=8.0,
        rope_original_max_position=8192,
    )
    frequencies = inverse_frequencies(config)
    unscaled = config.replace(rope_scaling="none", rope_factor=1.0, rope_original_max_position=None)
    plain = inverse_frequencies(unscaled)
    assert frequencies[28] == plain[28] == pytest.approx(3.211446e-3, rel=1e-6)
    assert frequencies[63] == pytest.approx(3.068926e-7, rel=1e-6)


SCALINGS = {
    "linear": {"factor": 2.5},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 4096},
    "yarn-deepseek": {
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
    },
}


@pytest.mark.parametrize("name", SCALINGS)
def test_scaled_frequencies_equal_transformers(name: str) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    from tblock.checkpoints.fields import Fields
    from tblock.checkpoints.rope_fields import rope_fields

    parameters = {"rope_type": name.partition("-")[0], "rope_theta": 5e5, **SCALINGS[name]}
    theirs = LlamaConfig(
        hidden_size=256, num_attention_heads=2, max_position_embeddings=65536, rope_parameters=parameters
    )
    wanted, gain = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](theirs)
    fields = rope_fields(Fields("test", {"rope_parameters": parameters}, {"rope_theta": 1e4}), head_dim=128)
    config = BlockConfig(dim=256, num_heads=2, max_position=65536, **fields)
    np.testing.assert_allclose(inverse_frequencies(config), wanted.numpy(), rtol=1e-5)
    assert config.rope_attention_factor == pytest.approx(gain, rel=1e-6)
