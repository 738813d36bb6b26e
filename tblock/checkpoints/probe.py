"""The probe at import: one layer against the family's own implementation on the same weights.

Proves what names and shapes cannot: QK-norm order, RoPE layout, head grouping, unit offset, where eps and the
soft cap stand, the window's edge, how the router is normalised. Imports torch and transformers.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tblock.block import Block
from tblock.checkpoints.checkpoint import Checkpoint
from tblock.checkpoints.layer_copy import SMALL_WINDOW
from tblock.checkpoints.reference import load_family_layer, unreadable
from tblock.config import BlockConfig
from tblock.errors import ExportError, ParityError, RuntimeUnavailable
from tblock.files import disk_error
from tblock.weights import fill

LIMITS = {"float32": 1e-5, "float64": 1e-12}
"""Largest error of a live token; sound layers stay far below (tests/families/probe_faults.py measures it)."""

ROUNDINGS, LARGEST_LIMIT = 8.0, 1e-3
"""Where a layer is so ill-conditioned that float32 passes the limit: times what one rounding of its input
does, and never more than a hundredth of the smallest fault of the catalogue (0.24)."""

SEQ = 13
"""Tokens: more than twice SMALL_WINDOW, so that window and padding both bite."""

STRIDE = 4
"""Positions between neighbours, so that slow pairs of RoPE turn visibly. Further apart, the family's own
float32 angles (position times 6e-8) would show."""

FLOOR = 0.05
"""A layer's change is weighed as at least this share of its output; below, float32's rounding rules."""


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """What the probe measured.

    Attributes:
        family: of the checkpoint.
        layer: its number.
        token_error: [B, S] float64, each live token's error (inf where it is NaN); nan for padding.
        limit: that the worst of them must not pass.
    """

    family: str
    layer: int
    token_error: np.ndarray
    limit: float

    @property
    def worst(self) -> float:
        """The largest error of a live token."""
        return float(np.nanmax(self.token_error))


def probe(checkpoint: Checkpoint, layer: int, *, seed: int = 0) -> ProbeResult:
    """Measure one layer and refuse it where it differs.

    Args:
        checkpoint: open.
        layer: 0 .. num_layers - 1.
        seed: of the hidden states.

    Returns:
        The error of each token.

    Raises:
        ParityError: a live token is off by more than the result's limit, or NaN.
        RuntimeUnavailable: transformers is not installed.
        ConfigError: the layer cannot be read.
    """
    result = measure(checkpoint, layer, seed=seed)
    if not result.worst <= result.limit:
        raise ParityError(
            f"{checkpoint.path}: layer {layer} differs from transformers' {checkpoint.family} by "
            f"{result.worst:.2e}, wanted at most {result.limit:.0e}; "
            "report it, or import with --no-verify-import"
        )
    return result


def verify_import(
    checkpoint: Checkpoint,
    layers: Sequence[int],
    wanted: bool | None,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any] | None:
    """Compare the layers of a checkpoint with the family's own implementation, one of each config.

    Args:
        checkpoint: open.
        layers: those to be exported.
        wanted: False: not at all; None: where that implementation can run here, and a line says so where it
            cannot.
        progress: gets the lines.

    Returns:
        For the manifest, JSON-ready: `with` (package and version), `family`, `layers` compared, `worst` error
        of a token and its `limit`; None where nothing was compared.

    Raises:
        ParityError: a layer differs.
        RuntimeUnavailable: asked for, and cannot run here.
        ExportError: the temporary folder is full.
    """
    if wanted is False:
        return None
    first = {checkpoint.config(layer): layer for layer in reversed(layers)}
    found: dict[int, ProbeResult] = {}
    for layer in sorted(first.values()):
        progress(f"probing layer {layer} against the family's own implementation")
        try:
            found[layer] = probe(checkpoint, layer)
        except RuntimeUnavailable as error:
            if wanted:
                raise
            progress(f"probe skipped: {error}")
            return None
        except OSError as error:
            raise ExportError(
                f"{tempfile.gettempdir()}: {disk_error(error)} while layer {layer} was compared; set TMPDIR, "
                "or import with --no-verify-import"
            ) from error
        worst = found[layer].worst
        progress(f"layer {layer} agrees with transformers' {checkpoint.family}: {worst:.1e} per token")
    import transformers

    return {
        "with": f"transformers {transformers.__version__}",
        "family": checkpoint.family,
        "layers": sorted(found),
        "worst": max(result.worst for result in found.values()),
        "limit": max(result.limit for result in found.values()),
    }


def measure(checkpoint: Checkpoint, layer: int, *, seed: int = 0) -> ProbeResult:
    """Run one layer as our block and as the family's own, in float32, and compare per token.

    Args:
        checkpoint, layer, seed: as `probe`.

    Returns:
        The error of each token.

    Raises:
        RuntimeUnavailable, ConfigError: as `probe`.
    """
    # First: a tensor that does not fit is named here, where transformers only points to a report in its log.
    weights = checkpoint.weights(layer)
    theirs = load_family_layer(checkpoint, layer)
    config = probe_config(checkpoint.config(layer), theirs.window)
    block = Block(config)
    fill(block, weights, dtype=torch.float32, where=str(checkpoint.path))
    x_BSD, live_BS, positions_BS = probe_inputs(config, seed)
    with torch.no_grad():
        ours_BSD = block(x_BSD, live_BS, positions_BS)
    try:
        theirs_BSD = theirs(x_BSD, live_BS, positions_BS)
    except Exception as error:
        raise unreadable(checkpoint, error) from None
    error_BS = token_error(ours_BSD, theirs_BSD, x_BSD)
    error_BS = np.where(np.isnan(error_BS), np.inf, error_BS)
    error_BS, limit = np.where(live_BS.numpy(), error_BS, np.nan), LIMITS["float32"]
    if np.nanmax(error_BS) > limit:
        # Near-equal scores of thousands: what one rounding of x changes, no float32 can be nearer than.
        rounded_BSD = x_BSD.double() * (1 + 2.0**-24 * torch.randn(x_BSD.shape, generator=_seeded(seed)))
        with torch.no_grad():
            exact_BSD, moved_BSD = (block(x, live_BS, positions_BS) for x in (x_BSD.double(), rounded_BSD))
        lost_BS = token_error(moved_BSD, exact_BSD, x_BSD)[live_BS.numpy()]
        limit = float(min(max(limit, ROUNDINGS * lost_BS.max()), LARGEST_LIMIT))
    return ProbeResult(family=checkpoint.family, layer=layer, token_error=error_BS, limit=limit)


def probe_config(config: BlockConfig, window: int | None) -> BlockConfig:
    """The config under test: a short rotation table, and the window shrunk by what the reference's lost.

    Args:
        config: of the layer.
        window: the reference's sliding window before it was shrunk; None: it has none.
    """
    ours = config.sliding_window
    if ours is not None:
        # By the difference, not to the same number: a window that is off by one must stay off by one.
        shrunk = SMALL_WINDOW if window is None else ours - window + min(window, SMALL_WINDOW)
        ours = max(min(ours, shrunk), 1)
    return config.replace(sliding_window=ours, max_position=SEQ * STRIDE)


def probe_inputs(config: BlockConfig, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, one sequence whole, one padded left, one padded right.

    Tokens differ in size: those at sqrt(eps) tell eps inside the root from eps outside and from another eps.

    Returns:
        x_BSD: [3, SEQ, D] float32; live_BS: [3, SEQ] bool; positions_BS: [3, SEQ] int64.
    """
    generator = _seeded(seed)
    sizes = torch.tensor([1.0, 0.3, config.norm_eps**0.5, 3.0]).repeat(SEQ)[:SEQ]
    x_BSD = torch.randn(3, SEQ, config.dim, generator=generator) * sizes[:, None]
    live_BS = torch.ones(3, SEQ, dtype=torch.bool)
    live_BS[1, :3] = False
    live_BS[2, -3:] = False
    positions_BS = (live_BS.long().cumsum(-1) - 1).clamp(min=0) * STRIDE
    return x_BSD, live_BS, positions_BS


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def token_error(y_BSD: Tensor, reference_BSD: Tensor, x_BSD: Tensor) -> np.ndarray:
    """Relative L2 distance of each token, relative to what the layer changed.

    A residual layer that does nothing is nearly right relative to its output; so the smaller of output and
    change counts, but no less than FLOOR of the output.

    Returns:
        [B, S] float64.
    """
    y, reference, x = (t.double() for t in (y_BSD, reference_BSD, x_BSD))
    size = reference.norm(dim=-1)
    weighed = torch.minimum((reference - x).norm(dim=-1), size).maximum(FLOOR * size)
    return ((y - reference).norm(dim=-1) / weighed.clamp(min=torch.finfo(torch.float64).tiny)).numpy()
