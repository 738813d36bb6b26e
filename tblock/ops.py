"""The contract's ops in plain PyTorch, registered as composite ops in namespace `tblock`.

CompositeImplicitAutograd: eager, autograd and Inductor see through to the math below, while torch.export
keeps each call as one node (`torch.ops.tblock.<name>.default`) until decompositions run. Owns the math of
the rows and nothing else; the signature comes from `tblock.contract`.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

from tblock.contract import ADD_RMS_NORM, ATTENTION, DOMAIN, RMS_NORM, ROPE, SWIGLU, OpRow

_library = torch.library.Library(DOMAIN, "DEF")


def _composite(row: OpRow) -> Callable[[Callable], Callable]:
    """Register the decorated function as the body of `row`."""

    def register(body: Callable) -> Callable:
        _library.define(row.torch_schema)
        _library.impl(row.name, body, "CompositeImplicitAutograd")
        return body

    return register


def _wide(x: Tensor) -> Tensor:
    """float32 for the low precisions; float32 and float64 stay (the contract's cast policy)."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


@_composite(RMS_NORM)
def rms_norm(x: Tensor, weight: Tensor, *, eps: float, weight_offset: float) -> Tensor:
    """y = x / sqrt(mean(x^2) + eps) * (weight_offset + weight), over the last axis.

    Source: Zhang and Sennrich 2019. Cast policy float32: one rounding, at the end.

    Args:
        x: [..., D], any float dtype.
        weight: [D], dtype of x (or narrower, when the float64 reference runs).
        eps: inside the root.
        weight_offset: 0, or 1 in the Gemma family.

    Returns:
        [..., D], dtype of x.
    """
    wide = _wide(x)
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    gain = weight.to(wide.dtype) if weight.dtype != wide.dtype else weight
    if weight_offset:
        gain = gain + weight_offset
    y = wide * scale * gain
    return y.to(x.dtype) if y.dtype != x.dtype else y


@_composite(ADD_RMS_NORM)
def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, *, eps: float, weight_offset: float
) -> tuple[Tensor, Tensor]:
    """sum = x + residual; y = rms_norm(sum): the residual add and the norm behind it, in one pass.

    The sum is rounded to the dtype before it is normalized, as in the unfused graph.

    Args:
        x, residual: [..., D], same dtype.
        weight: [D].
        eps, weight_offset: as in rms_norm.

    Returns:
        (sum, y), both [..., D], dtype of x.
    """
    total = x + residual
    return total, rms_norm(total, weight, eps=eps, weight_offset=weight_offset)


@_composite(SWIGLU)
def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """y = SiLU(gate) * up, elementwise. Source: Shazeer 2020. Cast policy float32: one rounding.

    Args:
        gate, up: [..., F], same dtype.

    Returns:
        [..., F], dtype of gate.
    """
    y = F.silu(_wide(gate)) * _wide(up)
    return y.to(gate.dtype) if y.dtype != gate.dtype else y


@_composite(ROPE)
def rope(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: int) -> Tensor:
    """Rotate the first R of the last axis by the angles behind cos and sin; the rest passes through.

    Source: Su et al. 2021. Cast policy float32: one rounding.

    Args:
        x: [B, H or K, S, E].
        cos, sin: [S, R/2] or [B, 1, S, R/2], float32 (float64 when x is).
        interleaved: 1: pairs (2i, 2i + 1); 0: pairs (i, i + R/2).

    Returns:
        [B, H or K, S, E], dtype of x.
    """
    half = cos.shape[-1]
    rotated, passed = x[..., : 2 * half], x[..., 2 * half :]
    wide = _wide(rotated)
    if interleaved:
        pairs = wide.unflatten(-1, (half, 2))
        first, second = pairs[..., 0], pairs[..., 1]
    else:
        first, second = wide[..., :half], wide[..., half:]
    real, imaginary = first * cos - second * sin, second * cos + first * sin
    y = torch.stack((real, imaginary), -1).flatten(-2) if interleaved else torch.cat((real, imaginary), -1)
    y = y.to(x.dtype) if y.dtype != x.dtype else y
    return y if 2 * half == x.shape[-1] else torch.cat((y, passed), -1)


@_composite(ATTENTION)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    scale: float,
    causal: int,
    window: int,
    soft_cap: float,
) -> Tensor:
    """softmax(cap(scale * q k^T) masked) v; a fully masked row gives 0.

    Source: Vaswani et al. 2017; grouped heads Ainslie et al. 2023; soft cap Gemma 2. The softmax runs
    in float32. Query head h uses KV head h // (H / K).

    Args:
        q: [B, H, S, E].
        k, v: [B, K, T, E], dtype of q.
        mask: [B, 1, S, T] or [B, 1, 1, T] bool, True where a key may be seen; None: every key.
        scale: multiplies the scores.
        causal: 1: query i also sees only keys 0 .. i + T - S.
        window: above 0, with causal: only the last `window` of those.
        soft_cap: above 0: scores become cap * tanh(scores / cap).

    Returns:
        [B, H, S, E], dtype of q.
    """
    grouped = bool(q.shape[1] != k.shape[1])
    square = statically_known_true(q.shape[2] == k.shape[2])
    if causal and square and mask is None and not window and not soft_cap:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped)
    if causal:
        seen = causal_mask(q.shape[2], k.shape[2], window, q.device)
        mask = seen if mask is None else mask & seen
    elif mask is not None:
        # Inductor compiles one graph for all shapes only where no size of the mask is a broadcast 1.
        mask = mask.expand(-1, -1, q.shape[2], -1)
    if not soft_cap:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=grouped)
    if grouped:
        k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for t in (k, v))
    scores = (_wide(q) * scale) @ _wide(k).transpose(-1, -2)
    scores = soft_cap * torch.tanh(scores / soft_cap)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    weights = torch.softmax(scores, -1)
    if mask is not None:
        weights = torch.where(mask.any(-1, keepdim=True), weights, 0.0)
    return (weights @ _wide(v)).to(q.dtype)


def causal_mask(queries: int, keys: int, window: int, device: torch.device) -> Tensor:
    """Which key each query may see, from positions (lower-right aligned).

    Args:
        queries, keys: S and T; query i stands at position i + T - S.
        window: above 0: only the last `window` keys up to its own.
        device: of the result.

    Returns:
        [S, T] bool.
    """
    key = torch.arange(keys, device=device)
    query = torch.arange(queries, device=device)[:, None] + (keys - queries)
    seen = key <= query
    return seen & (key > query - window) if window else seen
