"""SmolLM2 from its GGUF against transformers reading the same file, on real hidden states."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tblock import Block
from tblock.checkpoints import Checkpoint, open_checkpoint
from tblock.checkpoints.probe import LIMITS, probe, token_error
from tblock.weights import fill

pytestmark = pytest.mark.exhaustive  # tests/acceptance has its layers by default

TOKENS = [1, 504, 3575, 282, 4649, 314, 260, 3470, 282, 1343, 28, 527, 260, 6330, 30, 2] * 2 + [33]
"""A fixed text of 33 tokens; its residual stream jumps to about 24,900 in layer 12."""


@pytest.fixture(scope="module")
def checkpoint(smollm2_gguf: Path) -> Checkpoint:
    return open_checkpoint(smollm2_gguf)


@pytest.fixture(scope="module")
def stream(smollm2_gguf: Path) -> list[tuple[Tensor, Tensor]]:
    """Each layer's input and output, [1, S, D] float32, in transformers."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        smollm2_gguf.parent, gguf_file=smollm2_gguf.name, dtype=torch.float32
    ).base_model.eval()
    seen: list[tuple[Tensor, Tensor]] = []
    for layer in model.layers:
        layer.register_forward_hook(lambda module, args, output: seen.append((args[0], output)))
    with torch.no_grad():
        model(torch.tensor([TOKENS]))
    return seen


def run(checkpoint: Checkpoint, layer: int, x_BSD: Tensor) -> Tensor:
    """One layer as our block, in float32."""
    block = Block(checkpoint.config(layer).replace(max_position=64))
    fill(block, checkpoint.weights(layer), dtype=torch.float32, where=f"layer {layer}")
    with torch.no_grad():
        return block(x_BSD)


def test_embedding_equals_transformers(checkpoint: Checkpoint, stream) -> None:
    assert torch.equal(torch.from_numpy(checkpoint.embed(TOKENS)), stream[0][0][0])


@pytest.mark.parametrize("layer", [0, 12, 13, 29])
def test_layer_equals_transformers_on_real_hidden_states(checkpoint: Checkpoint, stream, layer: int) -> None:
    x_BSD, wanted_BSD = stream[layer]
    error_BS = token_error(run(checkpoint, layer, x_BSD), wanted_BSD, x_BSD)
    assert error_BS.max() <= LIMITS["float32"]


@pytest.mark.exhaustive
def test_every_hidden_state_equals_transformers(checkpoint: Checkpoint, stream) -> None:
    x_BSD = torch.from_numpy(checkpoint.embed(TOKENS))[None]
    peak = 0.0
    for layer in range(checkpoint.num_layers):
        x_BSD = run(checkpoint, layer, x_BSD)
        wanted_BSD = stream[layer][1]
        error_BS = (x_BSD - wanted_BSD).norm(dim=-1) / wanted_BSD.norm(dim=-1)
        assert float(error_BS.max()) <= LIMITS["float32"], f"after layer {layer}"
        peak = max(peak, float(x_BSD.abs().max()))
    assert peak > 10_000, "the stream that overflows float16 is gone; wrong file?"


@pytest.mark.parametrize("layer", [0, 29])
def test_probe_passes(checkpoint: Checkpoint, layer: int) -> None:
    probe(checkpoint, layer)


def test_swapped_gate_and_up_are_caught(checkpoint: Checkpoint, stream) -> None:
    x_BSD, wanted_BSD = stream[12]
    weights = checkpoint.weights(12)
    weights["ffn.gate.weight"], weights["ffn.up.weight"] = (
        weights["ffn.up.weight"],
        weights["ffn.gate.weight"],
    )
    block = Block(checkpoint.config(12).replace(max_position=64))
    fill(block, weights, dtype=torch.float32, where="broken twin")
    with torch.no_grad():
        error_BS = token_error(block(x_BSD), wanted_BSD, x_BSD)
    assert error_BS.max() > 100 * LIMITS["float32"]
