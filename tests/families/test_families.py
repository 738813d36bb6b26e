"""Every family against its own implementation: same weights, same hidden states, error per token.

The columns of other runtimes are filled by test_family_exports.py (and test_gguf.py) through `family_report`.
"""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from tblock import Block
from tblock.checkpoints import Checkpoint, from_torch_layer, from_torch_state, open_checkpoint
from tblock.checkpoints.opening import FAMILIES
from tblock.checkpoints.probe import LIMITS, probe
from tblock.checkpoints.reference import FamilyLayer
from tblock.weights import fill
from tests.families.family_cases import CASES, Case, randomize, save_model
from tests.families.family_inputs import worst_error

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Family:
    """One case's model and the checkpoint it was saved as."""

    case: Case
    model: nn.Module
    checkpoint: Checkpoint


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.id)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    """A random model of the family, saved by transformers and opened by tblock."""
    folder = tmp_path_factory.mktemp("family")
    model = save_model(request.param, folder)
    return Family(request.param, model, open_checkpoint(folder))


def check_layers(family: Family, dtype: str, family_report) -> None:
    """Every layer of the case within its limit, noted in the report before it is asserted."""
    case = family.case
    for layer in case.layers:
        block = Block(family.checkpoint.config(layer))
        fill(block, family.checkpoint.weights(layer), dtype=DTYPES[dtype], where=case.id)
        error = worst_error(block, FamilyLayer(family.model, layer), block.config.dim, DTYPES[dtype])
        passed = error <= LIMITS[dtype]
        family_report.note(case.family, dtype, case.id, error=error, passed=passed)
        assert passed, f"{case.id} layer {layer}: {error:.2e}"


def test_layer_equals_transformers(family: Family, family_report) -> None:
    check_layers(family, "float32", family_report)


@pytest.mark.parametrize("family", [c for c in CASES if c.float64], ids=lambda c: c.id, indirect=True)
def test_layer_equals_transformers_in_float64(family: Family, family_report) -> None:
    # Eager attention of ViT and Whisper rounds the softmax to float32; torch's own kernel does not.
    family.model.double().set_attn_implementation("sdpa")
    try:
        check_layers(family, "float64", family_report)
    finally:
        family.model.float().set_attn_implementation("eager")


def test_probe_passes(family: Family) -> None:
    for layer in family.case.layers:
        assert probe(family.checkpoint, layer).worst <= LIMITS["float32"]


@pytest.mark.parametrize(
    "family", [c for c in CASES if c.model_type not in ("vit", "whisper")], ids=lambda c: c.id, indirect=True
)
def test_embedding_equals_transformers(family: Family) -> None:
    ids = [7, 3, 11, 90, 3]
    with torch.no_grad():
        hidden = family.model(torch.tensor([ids]), output_hidden_states=True).hidden_states[0][0]
    ours = torch.from_numpy(family.checkpoint.embed(ids))
    assert ours.shape == hidden.shape
    assert float((ours - hidden).norm() / hidden.norm()) <= LIMITS["float32"]


@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("norm_first", [True, False], ids=["norm_first", "norm_last"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "nobias"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_torch_encoder_layer_equals_torch(norm_first, bias, causal, dtype, family_report) -> None:
    activation = "gelu" if causal else "relu"
    layer = nn.TransformerEncoderLayer(
        45,
        3,
        77,
        activation=activation,
        norm_first=norm_first,
        bias=bias,
        batch_first=True,
        layer_norm_eps=1e-6,
    ).eval()
    randomize(layer, seed=3)
    config, weights = from_torch_layer(layer, causal=causal)
    state = from_torch_state(
        layer.state_dict(),
        num_heads=3,
        norm_first=norm_first,
        activation=activation,
        norm_eps=1e-6,
        causal=causal,
    )
    assert state[0] == config
    block = Block(config)
    fill(block, weights, dtype=DTYPES[dtype], where="torch")
    layer = layer.to(DTYPES[dtype])

    @torch.no_grad()
    def theirs(x_BSD: Tensor, live_BS: Tensor | None, positions_BS: Tensor | None) -> Tensor:
        seq = x_BSD.shape[1]
        mask = torch.triu(torch.ones(seq, seq, dtype=torch.bool), 1) if causal else None
        return layer(x_BSD, src_mask=mask, src_key_padding_mask=None if live_BS is None else ~live_BS)

    error = worst_error(block, theirs, config.dim, DTYPES[dtype])
    passed = error <= LIMITS[dtype]
    name = f"torch_encoder-{'pre' if norm_first else 'post'}-{'causal' if causal else 'bidirectional'}"
    family_report.note("torch_encoder", dtype, name, error=error, passed=passed)
    assert passed, f"{error:.2e}"


def test_case_table_covers_every_family() -> None:
    covered = {case.model_type for case in CASES}
    assert covered == set(FAMILIES)
