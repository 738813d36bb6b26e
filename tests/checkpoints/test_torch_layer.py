"""torch.nn.TransformerEncoderLayer: what is refused, by value (that it agrees is in tests/families)."""

import pytest
import torch
from torch import nn

from tblock.checkpoints import from_torch_layer, from_torch_state
from tblock.errors import ConfigError


def layer(**more) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(24, 4, 40, batch_first=True, **more)


def test_low_precision_weights_keep_their_dtype() -> None:
    _, weights = from_torch_layer(layer().bfloat16())
    assert {str(a.dtype) for a in weights.values()} == {"bfloat16"}


def test_unknown_activation_is_refused() -> None:
    with pytest.raises(ConfigError, match="activation='SiLU': must be relu or gelu"):
        from_torch_layer(layer(activation=nn.SiLU()))


def test_tanh_gelu_is_not_taken_for_erf_gelu() -> None:
    with pytest.raises(ConfigError, match="activation='GELU': must be relu or gelu"):
        from_torch_layer(layer(activation=nn.GELU(approximate="tanh")))


def test_two_eps_are_refused() -> None:
    odd = layer()
    odd.norm2.eps = 1e-3
    with pytest.raises(ConfigError, match=r"norm1.eps=1e-05: must equal norm2.eps=0.001"):
        from_torch_layer(odd)


def test_both_sides_are_listed() -> None:
    state = layer().state_dict()
    state["extra"] = state.pop("norm1.bias")
    with pytest.raises(ConfigError, match=r"missing: attn_norm.bias; unused: extra"):
        from_torch_state(state, num_heads=4)


def test_wrong_shape_is_named() -> None:
    state = layer().state_dict() | {"linear2.weight": torch.zeros(24, 39)}
    with pytest.raises(ConfigError, match=r"ffn.down.weight has shape \[24, 39\], wanted \[24, 40\]"):
        from_torch_state(state, num_heads=4)


def test_another_state_dict_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"self_attn.in_proj_weight is missing; give the state dict of one"):
        from_torch_state(nn.Linear(3, 4).state_dict(), num_heads=1)
