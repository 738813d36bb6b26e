"""What every families test runs a layer on: a table of lengths and paddings, and the worst error over it."""

from collections.abc import Callable

import torch
from torch import Tensor

from tblock.checkpoints.probe import token_error

PADDINGS = ("none", "left", "right")
LENGTHS = (1, 7, 33)

Layer = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]
"""Hidden states [B, S, D], padding mask [B, S] or None, positions [B, S] or None to hidden states."""


def inputs(
    dim: int, seq: int, padding: str, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """x [2, S, D], padding mask and positions [2, S] or None; the second row is padded by a third."""
    x_BSD = torch.randn(2, seq, dim, generator=torch.Generator().manual_seed(seq)).to(dtype)
    if padding == "none":
        return x_BSD, None, None
    live_BS = torch.ones(2, seq, dtype=torch.bool)
    pads = slice(None, seq // 3) if padding == "left" else slice(seq - seq // 3, None)
    live_BS[1, pads] = False
    return x_BSD, live_BS, (live_BS.long().cumsum(-1) - 1).clamp(min=0)


def worst_error(ours: Layer, theirs: Layer, dim: int, dtype: torch.dtype) -> float:
    """The largest error of a live token over all lengths and paddings."""
    worst = 0.0
    for seq in LENGTHS:
        for padding in PADDINGS:
            x_BSD, live_BS, positions_BS = inputs(dim, seq, padding, dtype)
            with torch.no_grad():
                y_BSD = ours(x_BSD, live_BS, positions_BS)
                wanted_BSD = theirs(x_BSD, live_BS, positions_BS)
            error_BS = token_error(y_BSD, wanted_BSD, x_BSD)
            live = slice(None) if live_BS is None else live_BS.numpy()
            assert not (error_BS[live] != error_BS[live]).any(), f"NaN at S={seq}, padding {padding}"
            worst = max(worst, float(error_BS[live].max()))
    return worst
