"""Fully masked rows, padding with causality, grouped heads. Each with its broken twin."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tblock.ops
from tblock import Block, BlockConfig
from tblock.errors import ConfigError
from tblock.export import attention_form
from tests.checkpoints.field_runners import IN_ONNX, IN_TORCH, LIMIT, PLAIN, RUNNERS, rows_off

RANDOM = torch.Generator().manual_seed(0)


class AttentionOp(nn.Module):
    """The op with its attributes fixed."""

    def __init__(self, *, causal: int = 0, soft_cap: float = 0.0) -> None:
        super().__init__()
        self.config = PLAIN.replace(attn_soft_cap=soft_cap or None)
        self.attributes = {"scale": 0.25, "causal": causal, "window": 0, "soft_cap": soft_cap}

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return torch.ops.tblock.attention(q, k, v, mask, **self.attributes)


def plain_attention(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, soft_cap: float = 0.0) -> Tensor:
    """The formula in float64: head h uses KV head h // (H / K), a row that sees nothing is 0."""
    q, k, v = (t.double() for t in (q, k, v))
    group = q.shape[1] // k.shape[1]
    out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=torch.float64)
    for h in range(q.shape[1]):
        scores = 0.25 * q[:, h] @ k[:, h // group].transpose(-1, -2)
        scores = soft_cap * torch.tanh(scores / soft_cap) if soft_cap else scores
        weights = torch.exp(scores - scores.amax(-1, keepdim=True)) * seen[:, 0].double()
        total = weights.sum(-1, keepdim=True)
        out[:, h] = torch.where(total > 0, weights / total, 0.0) @ v[:, h // group]
    return out


def masked_case() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v [2, 4, 8, 16]; query 0 of sequence 0 sees no key."""
    q, k, v = (torch.randn(2, 4, 8, 16, generator=RANDOM) for _ in range(3))
    mask = torch.ones(2, 1, 8, 8, dtype=torch.bool)
    mask[0, 0, 0, :] = False
    return q, k, v, mask


def check_masked_row(runner: str, soft_cap: float) -> None:
    q, k, v, mask = masked_case()
    y = RUNNERS[runner](AttentionOp(soft_cap=soft_cap), (q, k, v, mask))(q, k, v, mask)
    assert not y.isnan().any()
    assert torch.equal(y[0, :, 0], torch.zeros(4, 16))
    assert rows_off(y, plain_attention(q, k, v, mask, soft_cap)).max() <= LIMIT


@pytest.mark.parametrize("soft_cap", [0.0, 5.0], ids=["plain", "soft_cap"])
@pytest.mark.parametrize("runner", RUNNERS)
def test_fully_masked_row_is_zero(runner: str, soft_cap: float) -> None:
    check_masked_row(runner, soft_cap)


def test_additive_mask_gives_the_same() -> None:
    q, k, v, mask = masked_case()
    additive = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    y = AttentionOp()(q, k, v, additive)
    assert torch.equal(y[0, :, 0], torch.zeros(4, 16))
    assert rows_off(y, plain_attention(q, k, v, mask)).max() <= LIMIT


def test_twin_finite_mask_value_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = F.scaled_dot_product_attention

    def finite(q, k, v, attn_mask=None, **more):
        attn_mask = torch.zeros(attn_mask.shape).masked_fill(~attn_mask, torch.finfo(torch.float32).min)
        return real(q, k, v, attn_mask=attn_mask, **more)

    monkeypatch.setattr(tblock.ops.F, "scaled_dot_product_attention", finite)
    with pytest.raises(AssertionError):
        check_masked_row("eager", 0.0)


@pytest.mark.parametrize("runner", IN_TORCH)
def test_masked_row_of_the_block_is_x_plus_ffn(runner: str) -> None:
    block = Block(BlockConfig(dim=64, num_heads=4, num_kv_heads=2, ffn_dim=256)).requires_grad_(False)
    x_BSD = torch.randn(2, 8, 64, generator=RANDOM)
    live_BS = torch.ones(2, 8, dtype=torch.bool)
    live_BS[0, 0] = False  # Causal query 0 sees key 0 only, and that is padding.
    y_BSD = RUNNERS[runner](block, (x_BSD, live_BS))(x_BSD, live_BS)
    wanted_D = (x_BSD + block.ffn(block.ffn_norm(x_BSD)))[0, 0]
    assert rows_off(y_BSD[0, 0], wanted_D) <= LIMIT
    assert not y_BSD.isnan().any()


def check_padding_and_causal(runner: str) -> None:
    q, k, v = (torch.randn(2, 4, 8, 16, generator=RANDOM) for _ in range(3))
    padding = torch.ones(2, 1, 1, 8, dtype=torch.bool)
    padding[:, :, :, 5:] = False
    y = RUNNERS[runner](AttentionOp(causal=1), (q, k, v, padding))(q, k, v, padding)
    seen = padding & torch.ones(8, 8).tril().bool()
    assert rows_off(y, plain_attention(q, k, v, seen)).max() <= LIMIT


@pytest.mark.parametrize("runner", RUNNERS)
def test_padding_and_causal_equal_their_and(runner: str) -> None:
    check_padding_and_causal(runner)


def test_twin_causal_lost_beside_a_mask_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        tblock.ops, "causal_mask", lambda s, t, window, device: torch.ones(s, t, dtype=torch.bool)
    )
    with pytest.raises(AssertionError):
        check_padding_and_causal("eager")


def check_grouped_heads(runner: str, kv_heads: int, masked: bool) -> None:
    q = torch.randn(2, 4, 8, 16, generator=RANDOM)
    k, v = (torch.randn(2, kv_heads, 8, 16, generator=RANDOM) for _ in range(2))
    mask = torch.ones(2, 1, 8, 8, dtype=torch.bool)
    mask[:, :, :, 6:] = not masked
    y = RUNNERS[runner](AttentionOp(), (q, k, v, mask))(q, k, v, mask)
    assert rows_off(y, plain_attention(q, k, v, mask)).max() <= LIMIT


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("runner", RUNNERS)
def test_query_head_uses_its_groups_kv_head(runner: str, kv_heads: int, masked: bool) -> None:
    check_grouped_heads(runner, kv_heads, masked)


def test_twin_tiled_heads_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = F.scaled_dot_product_attention

    def tiled(q, k, v, **more):
        k, v = (t.repeat(1, q.shape[1] // t.shape[1], 1, 1) for t in (k, v))
        return real(q, k, v, **more)

    monkeypatch.setattr(tblock.ops.F, "scaled_dot_product_attention", tiled)
    with pytest.raises(AssertionError):
        check_grouped_heads("eager", 2, True)


@pytest.mark.parametrize("runner", IN_ONNX)
def test_twin_lowering_that_regroups_heads_is_caught(runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = attention_form.emit

    def regrouped(op, form, q, k, v, mask, **attributes):
        order = op.Constant(value_ints=[0, 2, 1, 3])
        crossed = op.Gather(q, order, axis=1)
        crossed.shape, crossed.dtype = q.shape, q.dtype
        return op.Gather(real(op, form, crossed, k, v, mask, **attributes), order, axis=1)

    check_grouped_heads(runner, 2, True)
    monkeypatch.setattr(attention_form, "emit", regrouped)
    with pytest.raises(AssertionError):
        check_grouped_heads(runner, 2, True)


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_kv_heads=3: must divide num_heads=4"):
        BlockConfig(dim=64, num_heads=4, num_kv_heads=3)
