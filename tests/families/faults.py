"""Planted faults: the shipped code with one ingredient broken, each a mistake that real ports have made.

A fault patches the modules the probe itself runs (the ops, the block, the checkpoint's answers), never a copy
of them.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

import tblock.attention
import tblock.ffn
import tblock.moe
import tblock.ops
from tblock.checkpoints import Checkpoint
from tblock.config import BlockConfig

_OPS = torch.ops.tblock


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One mistake.

    Attributes:
        id: what is wrong.
        applies: the configs in which it changes the answer.
        plant: a context in which the shipped code makes it.
    """

    id: str
    applies: Callable[[BlockConfig], bool]
    plant: Callable[[], AbstractContextManager[None]]


def _config(**changes: Any) -> Callable[[], AbstractContextManager[None]]:
    """The checkpoint says something else about the layer; a callable change gets the right config."""
    real = Checkpoint.config

    def wrong(self: Checkpoint, layer: int) -> BlockConfig:
        config = real(self, layer)
        return config.replace(**{k: v(config) if callable(v) else v for k, v in changes.items()})

    return lambda: patch.object(Checkpoint, "config", wrong)


def _swapped_gate_up() -> AbstractContextManager[None]:
    real = Checkpoint.weights

    def wrong(self: Checkpoint, layer: int) -> dict[str, Any]:
        swap = {"gate": "up", "up": "gate"}
        return {".".join(swap.get(p, p) for p in k.split(".")): v for k, v in real(self, layer).items()}

    return patch.object(Checkpoint, "weights", wrong)


def _tiled_heads() -> AbstractContextManager[None]:
    real = _OPS.attention

    def wrong(q, k, v, mask, **attributes):
        k, v = (t.repeat(1, q.shape[1] // t.shape[1], 1, 1) for t in (k, v))
        return real(q, k, v, mask, **attributes)

    return patch.object(_OPS, "attention", wrong)


def _eps_outside() -> AbstractContextManager[None]:
    def wrong(x, weight, *, eps, weight_offset):
        return x / (x.square().mean(-1, keepdim=True).sqrt() + eps) * (weight + weight_offset)

    return patch.object(_OPS, "rms_norm", wrong)


def _soft_cap(before_scale: bool) -> Callable[[], AbstractContextManager[None]]:
    def wrong(q, k, v, mask, *, scale, causal, window, soft_cap):
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
        seen = tblock.ops.causal_mask(q.shape[2], k.shape[2], window, q.device)
        seen = seen if mask is None else seen & mask
        scores = q @ k.transpose(-1, -2)
        if before_scale:
            scores = soft_cap * torch.tanh(scores / soft_cap) * scale
            return torch.softmax(scores.masked_fill(~seen, -torch.inf), -1) @ v
        scores = soft_cap * torch.tanh((scores * scale).masked_fill(~seen, -torch.inf) / soft_cap)
        return torch.softmax(scores, -1) @ v

    return lambda: patch.object(_OPS, "attention", wrong)


def _wider_window() -> AbstractContextManager[None]:
    real = tblock.ops.causal_mask

    def wrong(queries, keys, window, device):
        return real(queries, keys, window + 1 if window else 0, device)

    return patch.object(tblock.ops, "causal_mask", wrong)


@contextlib.contextmanager
def _norm_after_rope() -> Iterator[None]:
    attend, rotate = tblock.attention.Attention.forward, _OPS.rope

    def wrong(self, x_BSD, mask, cos, sin):
        norms = [self.q_norm, self.k_norm]

        def rotate_then_norm(x, cos, sin, **attributes):
            return norms.pop(0)(rotate(x, cos, sin, **attributes))

        kept, self.q_norm, self.k_norm = list(norms), nn.Identity(), nn.Identity()
        with patch.object(_OPS, "rope", rotate_then_norm):
            y_BSD = attend(self, x_BSD, mask, cos, sin)
        self.q_norm, self.k_norm = kept
        return y_BSD

    with patch.object(tblock.attention.Attention, "forward", wrong):
        yield


def _first_norm_row() -> AbstractContextManager[None]:
    real = Checkpoint.weights

    def wrong(self: Checkpoint, layer: int) -> dict[str, Any]:
        weights = real(self, layer)
        rows = weights["attn.q_norm.weight"]
        return weights | {"attn.q_norm.weight": rows[:1].repeat(len(rows), axis=0)}

    return patch.object(Checkpoint, "weights", wrong)


@contextlib.contextmanager
def _dropped(*modules: type[nn.Module]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for module in modules:
            stack.enter_context(patch.object(module, "forward", lambda self, x_BSD, *more: x_BSD * 0))
        yield


def _gemma(c: BlockConfig) -> bool:
    return c.norm_weight_offset != 0


def _rms(c: BlockConfig) -> bool:
    return c.norm == "rmsnorm" and c.norm_position in ("pre", "sandwich")


FAULTS: tuple[Fault, ...] = (
    Fault(id="QK norm after RoPE", applies=lambda c: c.qk_norm == "head", plant=_norm_after_rope),
    Fault(
        id="KV heads tiled",
        applies=lambda c: 1 < (c.num_kv_heads or 0) < c.num_heads,
        plant=_tiled_heads,
    ),
    Fault(
        id="RoPE interleaved",
        applies=lambda c: c.rope and (c.rope_dim or 0) > 2,
        plant=_config(rope_layout="interleaved"),
    ),
    Fault(id="no unit offset", applies=_gemma, plant=_config(norm_weight_offset=0.0)),
    Fault(id="eps outside the root", applies=_rms, plant=_eps_outside),
    Fault(id="gate and up swapped", applies=lambda c: c.gated, plant=_swapped_gate_up),
    Fault(id="soft cap before the scale", applies=lambda c: bool(c.attn_soft_cap), plant=_soft_cap(True)),
    Fault(id="soft cap after the mask", applies=lambda c: bool(c.attn_soft_cap), plant=_soft_cap(False)),
    Fault(id="window one too wide", applies=lambda c: bool(c.sliding_window), plant=_wider_window),
    Fault(
        id="window one too wide in the config",
        applies=lambda c: bool(c.sliding_window),
        plant=_config(sliding_window=lambda c: c.sliding_window + 1 if c.sliding_window else None),
    ),
    Fault(
        id="router normalised otherwise",
        applies=lambda c: c.num_experts > 0,
        plant=_config(router_normalized=lambda c: not c.router_normalized),
    ),
    Fault(
        id="residual multiplier dropped",
        applies=lambda c: c.residual_multiplier != 1.0,
        plant=_config(residual_multiplier=1.0),
    ),
    Fault(
        id="rotation where the layer has none",
        applies=lambda c: not c.rope and c.causal,
        plant=_config(rope=True),
    ),
    Fault(
        id="heads share the first one's norm weight",
        applies=lambda c: c.qk_norm == "per_head",
        plant=_first_norm_row,
    ),
    Fault(
        id="post norm for pre",
        applies=lambda c: c.norm_position == "pre" and c.parallel == "none",
        plant=_config(norm_position="post"),
    ),
    Fault(
        id="pre norm for post",
        applies=lambda c: c.norm_position == "post",
        plant=_config(norm_position="pre"),
    ),
    Fault(
        id="attention dropped",
        applies=lambda c: True,
        plant=lambda: _dropped(tblock.attention.Attention),
    ),
    Fault(
        id="FFN dropped",
        applies=lambda c: True,
        plant=lambda: _dropped(tblock.ffn.FeedForward, tblock.moe.MixtureOfExperts),
    ),
)
"""In the order of the report."""
