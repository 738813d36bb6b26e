"""Deletion twins: a trained layer that loses a sublayer, or swaps gate and up, must fail in every dtype.

SmolLM2-135M, layers 12 and 13, on real hidden states. The fault is put into the shipped classes. By the
largest error over the RMS, layer 12 without its attention looks perfect: one channel of the first token is
24,900.
"""

import functools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from tblock.attention import Attention
from tblock.block import Block
from tblock.checkpoints import Checkpoint, open_checkpoint
from tblock.ffn import FeedForward
from tblock.runtimes.verdict import judge
from tblock.weights import DTYPES, fill, to_array

Layer = Callable[[str], tuple[Block, Tensor, dict[str, np.ndarray]]]
"""dtype to the filled Block, its real input [2, 33, 576], and what `judge` compares with."""

LAYERS = (12, 13)
TOKENS = np.random.default_rng(0).integers(0, 49152, (2, 33))
"""Any sequences will do; the first token of each gets the large channel."""


@pytest.fixture(scope="module")
def checkpoint(smollm2_gguf) -> Checkpoint:
    return open_checkpoint(smollm2_gguf)


@pytest.fixture(scope="module")
def states(checkpoint) -> dict[int, Tensor]:
    """Layer number to what it really sees, [2, 33, 576] float32."""
    x = torch.from_numpy(np.stack([checkpoint.embed(row) for row in TOKENS])).float()
    found = {}
    for layer in range(max(LAYERS)):
        x = filled(checkpoint, layer, "float32")(x)
        found[layer + 1] = x
    return found


@pytest.fixture(scope="module", params=LAYERS, ids=lambda layer: f"layer{layer}")
def layer(request, checkpoint, states) -> Layer:
    @functools.cache
    def of(dtype: str) -> tuple[Block, Tensor, dict[str, np.ndarray]]:
        block, x = filled(checkpoint, request.param, dtype), states[request.param].to(DTYPES[dtype])
        golden = {"reference": block(x.double()), "eager": block(x), "inputs": x}
        return block, x, {name: to_array(tensor) for name, tensor in golden.items()}

    return of


def filled(checkpoint: Checkpoint, layer: int, dtype: str) -> Block:
    with torch.device("meta"):
        block = Block(checkpoint.config(layer))
    fill(block, checkpoint.weights(layer), dtype=DTYPES[dtype], where=f"layer {layer}")
    return block


def swap_gate_and_up(self: FeedForward, x: Tensor) -> Tensor:
    """FeedForward.forward with its first two projections exchanged."""
    return self.down(torch.ops.tblock.swiglu(self.up(x), self.gate(x)))


def add_nothing(self: torch.nn.Module, x: Tensor, *_: object) -> Tensor:
    """A sublayer's forward that writes nothing to the residual."""
    return torch.zeros_like(x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sound_layer_passes(layer, dtype):
    block, x, golden = layer(dtype)
    with sdpa_kernel(SDPBackend.MATH):
        output = to_array(block(x))
    found = judge(output=output, dtype=dtype, **golden)
    assert found.passed, found.reason


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("owner", "forward"),
    [(Attention, add_nothing), (FeedForward, add_nothing), (FeedForward, swap_gate_and_up)],
    ids=["no_attention", "no_ffn", "gate_and_up_swapped"],
)
def test_broken_layer_fails(layer, dtype, owner, forward, monkeypatch):
    block, x, golden = layer(dtype)
    monkeypatch.setattr(owner, "forward", forward)
    found = judge(output=to_array(block(x)), dtype=dtype, **golden)
    assert found.status == "FAIL", found.reason
