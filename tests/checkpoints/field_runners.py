"""Who runs the field cases: each runner turns a module and example inputs into a callable.

Adding a runtime is adding a row: its value exports the module (as `tblock.export` would) and returns a
function of tensors to a tensor. A twin patches the shipped code, so a row must export inside the call, not at
import.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

Run = Callable[..., Tensor]


def eager(module: nn.Module, examples: tuple[Tensor, ...]) -> Run:
    """The module itself."""

    def run(*inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return module(*inputs)

    return run


def exported(module: nn.Module, examples: tuple[Tensor, ...]) -> Run:
    """The graph torch.export takes, composite ops kept: what every target is lowered from."""
    graph = torch.export.export(module.requires_grad_(False), examples).module()

    def run(*inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return graph(*inputs)

    return run


RUNNERS: dict[str, Callable[[nn.Module, tuple[Tensor, ...]], Run]] = {"eager": eager, "exported": exported}
"""Name to runner. To come: onnxruntime at opsets 18, 23 and 24, with and without its optimizer."""

LIMIT = 1e-5
"""Relative L2 distance per row in float32 ("about 1e-5" of the cases)."""


def rows_off(y: Tensor, wanted: Tensor) -> Tensor:
    """Relative L2 distance of each row of the last axis; a row wanted as 0 counts by its size."""
    size = wanted.double().norm(dim=-1)
    return (y.double() - wanted.double()).norm(dim=-1) / torch.where(size > 0, size, 1.0)
