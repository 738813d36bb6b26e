"""torch.nn.TransformerEncoderLayer: what is refused, by value (that it agrees is in tests/families)."""

from collections.abc import Callable

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
    with pytest.raises(
        ConfigError, match=r"norm2\.eps: is not what a new LayerNorm has \(0\.001, not 1e-05\)"
    ):
        from_torch_layer(odd)


class Own(nn.TransformerEncoderLayer):
    """Of the same weights, and perhaps of another forward."""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda taken: setattr(taken, "norm1", nn.RMSNorm(24)), r"norm1: is a .*RMSNorm, wanted"),
        (lambda taken: taken.register_forward_hook(lambda *_: None), "has forward hooks"),
        (lambda taken: setattr(taken.self_attn, "add_zero_attn", True), r"add_zero_attn: .*\(True, not"),
        (lambda taken: setattr(taken, "__class__", Own), r"is a .*Own, wanted exactly"),
    ],
    ids=["norm", "hook", "option", "subclass"],
)  # fmt: skip
def test_changed_layer_is_refused_with_the_place(change: Callable[..., object], message: str) -> None:
    taken = layer(dropout=0.3)
    from_torch_layer(taken)
    change(taken)
    with pytest.raises(ConfigError, match=message):
        from_torch_layer(taken)


def test_another_module_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^torch layer: got a Linear, wanted a TransformerEncoderLayer$"):
        from_torch_layer(nn.Linear(2, 3))  # type: ignore[arg-type]


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
