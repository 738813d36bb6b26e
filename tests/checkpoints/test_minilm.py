"""MiniLM from its folder: six real post-norm layers, and its own implementation's sentence embeddings."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tblock import Block, Stack
from tblock.checkpoints import Checkpoint, open_checkpoint
from tblock.checkpoints.probe import LIMITS, probe
from tblock.weights import fill

SENTENCES = [
    [101, 2023, 2003, 2019, 2742, 6251, 102],
    [101, 2169, 6251, 2003, 4991, 1998, 2062, 2084, 1996, 2060, 2003, 1012, 102],
    [101, 4937, 102],
]
"""Token ids with their [CLS] and [SEP]; padded with 0 on the right when batched."""


@pytest.fixture(scope="module")
def checkpoint(minilm_folder: Path) -> Checkpoint:
    return open_checkpoint(minilm_folder)


@pytest.fixture(scope="module")
def model(minilm_folder: Path):
    import transformers

    transformers.utils.logging.set_verbosity_error()
    return transformers.AutoModel.from_pretrained(minilm_folder, dtype=torch.float32).eval()


def batch() -> tuple[Tensor, Tensor]:
    """ids [B, S] int64, live [B, S] bool."""
    length = max(map(len, SENTENCES))
    ids_BS = torch.tensor([ids + [0] * (length - len(ids)) for ids in SENTENCES])
    return ids_BS, torch.tensor([[True] * len(ids) + [False] * (length - len(ids)) for ids in SENTENCES])


def pooled(hidden_BSD: Tensor, live_BS: Tensor) -> Tensor:
    """The model card's sentence embedding: mean over live tokens, normalized."""
    total = (hidden_BSD * live_BS[..., None]).sum(1) / live_BS.sum(1, keepdim=True)
    return torch.nn.functional.normalize(total, dim=-1)


def test_every_layer_equals_transformers(checkpoint: Checkpoint, model) -> None:
    ids_BS, live_BS = batch()
    with torch.no_grad():
        states = model(ids_BS, attention_mask=live_BS.long(), output_hidden_states=True).hidden_states
    assert checkpoint.num_layers == 6
    for layer in range(6):
        block = Block(checkpoint.config(layer))
        fill(block, checkpoint.weights(layer), dtype=torch.float32, where=f"layer {layer}")
        with torch.no_grad():
            y_BSD = block(states[layer], live_BS)
        error_BS = (y_BSD - states[layer + 1]).norm(dim=-1) / states[layer + 1].norm(dim=-1)
        assert float(error_BS[live_BS].max()) <= LIMITS["float32"], f"layer {layer}"


def test_stacked_layers_give_the_sentence_embeddings(checkpoint: Checkpoint, model) -> None:
    ids_BS, live_BS = batch()
    stack = Stack([checkpoint.config(n) for n in range(6)])
    weights = {f"layers.{n}.{name}": a for n in range(6) for name, a in checkpoint.weights(n).items()}
    fill(stack, weights, dtype=torch.float32, where="MiniLM")
    x_BSD = torch.stack([torch.from_numpy(checkpoint.embed(ids)) for ids in ids_BS.tolist()])
    with torch.no_grad():
        ours_BD = pooled(stack(x_BSD, live_BS), live_BS)
        theirs_BD = pooled(model(ids_BS, attention_mask=live_BS.long()).last_hidden_state, live_BS)
    assert float((ours_BD - theirs_BD).norm(dim=-1).max()) <= LIMITS["float32"]


def test_forgotten_padding_mask_is_caught(checkpoint: Checkpoint, model) -> None:
    ids_BS, live_BS = batch()
    with torch.no_grad():
        states = model(ids_BS, attention_mask=live_BS.long(), output_hidden_states=True).hidden_states
        block = Block(checkpoint.config(0))
        fill(block, checkpoint.weights(0), dtype=torch.float32, where="broken twin")
        error_BS = (block(states[0]) - states[1]).norm(dim=-1) / states[1].norm(dim=-1)
    assert float(error_BS[live_BS].max()) > 100 * LIMITS["float32"]


def test_probe_passes(checkpoint: Checkpoint) -> None:
    probe(checkpoint, 5)
