"""The block in plain numpy float64, from the papers, not from tblock: what ops and block must equal."""

import math

import numpy as np
from numpy.typing import NDArray

from tblock import BlockConfig
from tblock.runtimes.verdict import BUDGETS

Floats = NDArray[np.float64]
Weights = dict[str, np.ndarray]


UNITS = BUDGETS["float32"].k * BUDGETS["float32"].floor / float(np.finfo(np.float32).eps)
"""Units of rounding a token may be off by: what the table of budgets allows float32, for float64 as well."""


def error_in_units(y: np.ndarray, reference: np.ndarray) -> float:
    """Worst token's relative L2 distance, in units of rounding of float64."""
    distance, size = np.linalg.norm(y - reference, axis=-1), np.linalg.norm(reference, axis=-1)
    relative = np.divide(distance, size, out=np.where(distance > 0, np.inf, 0.0), where=size > 0)
    return float(relative.max() / np.finfo(np.float64).eps)


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float, offset: float = 0.0) -> Floats:
    """[..., D] float64."""
    x = x.astype(np.float64)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * (weight.astype(np.float64) + offset)


def layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, eps: float) -> Floats:
    """[..., D] float64."""
    x = x.astype(np.float64)
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * weight
    return y if bias is None else y + bias


def sigmoid(x: np.ndarray) -> Floats:
    """Without overflow warnings."""
    return 0.5 * (1.0 + np.tanh(0.5 * x.astype(np.float64)))


def swiglu(gate: np.ndarray, up: np.ndarray) -> Floats:
    """[..., F] float64."""
    return gate * sigmoid(gate) * up.astype(np.float64)


def rope(x_BXSE: np.ndarray, positions: np.ndarray, base: float, interleaved: bool, width: int) -> Floats:
    """Rotation by complex numbers: pair j of a head turns by position * base^(-2j / width)."""
    x = x_BXSE.astype(np.float64)
    turned, kept = x[..., :width], x[..., width:]
    even, odd = (
        (turned[..., ::2], turned[..., 1::2]) if interleaved else np.split(turned, 2, axis=-1)
    )  # fmt: skip
    angles = np.multiply.outer(positions.astype(np.float64), base ** (-np.arange(0, width, 2) / width))
    z = (even + 1j * odd) * np.exp(1j * angles)
    parts = (z.real, z.imag)
    y = np.stack(parts, -1).reshape(turned.shape) if interleaved else np.concatenate(parts, -1)
    return np.concatenate((y, kept), -1)


def attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, seen: np.ndarray, scale: float, cap: float = 0.0
) -> Floats:
    """One query at a time, over the keys it sees; no key, no output. seen: [B, S, T] bool."""
    y = np.zeros(q.shape)
    group = q.shape[1] // k.shape[1]
    for b, h, s in np.ndindex(q.shape[:3]):
        keys = seen[b, s]
        if not keys.any():
            continue
        scores = k[b, h // group][keys].astype(np.float64) @ q[b, h, s] * scale
        scores = cap * np.tanh(scores / cap) if cap else scores
        weights = np.exp(scores - scores.max())
        y[b, h, s] = weights / weights.sum() @ v[b, h // group][keys]
    return y


def seen_keys(c: BlockConfig, batch: int, seq: int, padding: np.ndarray | None = None) -> NDArray[np.bool_]:
    """[B, S, S] bool: which key each query may look at."""
    seen = np.ones((batch, seq, seq), bool) if padding is None else np.repeat(padding[:, None], seq, 1)
    for i, j in np.ndindex(seq, seq):
        if c.causal and (j > i or (c.sliding_window and j <= i - c.sliding_window)):
            seen[:, i, j] = False
    return seen


def block(c: BlockConfig, w: Weights, x: np.ndarray, padding: np.ndarray | None = None) -> Floats:
    """x [B, S, D] to [B, S, D]: every arrangement of norms and residuals, dense FFN."""
    w = {name: array.astype(np.float64) for name, array in w.items()}
    batch, seq, _ = x.shape

    def linear(name: str, x: Floats) -> Floats:
        return x @ w[name + ".weight"].T + w.get(name + ".bias", 0.0)

    def norm(name: str, x: Floats) -> Floats:
        if c.norm == "rmsnorm":
            return rms_norm(x, w[name + ".weight"], c.norm_eps, c.norm_weight_offset)
        return layer_norm(x, w[name + ".weight"], w.get(name + ".bias"), c.norm_eps)

    def heads(name: str, x: Floats, count: int) -> Floats:
        y = linear(f"attn.{name}", x)
        if c.qk_norm == "full" and name != "v":
            y = norm(f"attn.{name}_norm", y)
        y = y.reshape(batch, seq, count, c.head_dim)
        if c.qk_norm in ("head", "per_head") and name != "v":
            y = norm(f"attn.{name}_norm", y)
        y = y.swapaxes(1, 2)
        if c.rope and name != "v":
            y = rope(y, np.arange(seq), c.rope_base, c.rope_layout == "interleaved", c.rope_dim)
        return y

    def residual(sublayer: Floats) -> Floats:
        return c.residual_multiplier * sublayer

    def attn(x: Floats) -> Floats:
        q, k, v = (
            heads(n, x, h) for n, h in (("q", c.num_heads), ("k", c.num_kv_heads), ("v", c.num_kv_heads))
        )
        y = attention(q, k, v, seen_keys(c, batch, seq, padding), c.attn_scale, c.attn_soft_cap or 0.0)
        return linear("attn.out", y.swapaxes(1, 2).reshape(batch, seq, -1))

    def ffn(x: Floats) -> Floats:
        hidden = activated(c.activation, linear("ffn.gate" if c.gated else "ffn.up", x))
        return linear("ffn.down", hidden * linear("ffn.up", x) if c.gated else hidden)

    x = x.astype(np.float64)
    if c.parallel != "none":
        n = norm("attn_norm", x)
        return x + residual(attn(n)) + residual(ffn(n if c.parallel == "one_norm" else norm("ffn_norm", x)))
    for name, sublayer in (("attn", attn), ("ffn", ffn)):
        if c.norm_position == "pre":
            x = x + residual(sublayer(norm(f"{name}_norm", x)))
        elif c.norm_position == "post":
            x = norm(f"{name}_norm", x + residual(sublayer(x)))
        elif c.norm_position == "inner_post":
            x = x + residual(norm(f"{name}_out_norm", sublayer(x)))
        else:
            x = x + residual(norm(f"{name}_out_norm", sublayer(norm(f"{name}_norm", x))))
    return x


def activated(name: str, x: Floats) -> Floats:
    """The named nonlinearity."""
    if name == "silu":
        return x * sigmoid(x)
    if name == "gelu":
        return x * 0.5 * (1.0 + np.vectorize(math.erf)(x / np.sqrt(2.0)))
    if name == "gelu_tanh":
        return 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))
    return np.maximum(x, 0.0) ** (2 if name == "relu2" else 1)
