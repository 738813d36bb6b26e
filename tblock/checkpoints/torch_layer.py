"""torch.nn.TransformerEncoderLayer, PyTorch's layer of Vaswani et al. 2017, as config and weights.

It is no checkpoint on disk: the module, or its state dict plus the arguments the dict does not carry, is the
source.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tblock.checkpoints.shapes import parameter_shapes
from tblock.config import BlockConfig
from tblock.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor, nn

_MODULES = {
    "self_attn.out_proj": "attn.out",
    "linear1": "ffn.up",
    "linear2": "ffn.down",
    "norm1": "attn_norm",
    "norm2": "ffn_norm",
}


def from_torch_layer(
    layer: "nn.TransformerEncoderLayer", *, causal: bool = False, max_position: int = 2048
) -> tuple[BlockConfig, dict[str, np.ndarray]]:
    """Take over a module.

    Args:
        layer: of exactly that class; its dropout is not carried over.
        causal: whether it is used with a causal mask (`is_causal` is an argument of its forward, not of the
            module).
        max_position: longest sequence (tokens).

    Returns:
        The config, and the weights by the block's state-dict names.

    Raises:
        ConfigError: an activation the block does not have, two norms with different eps, or anything else
            changed since it was made (a subclass, a hook, a module put in another's place).
    """
    from torch import nn

    from tblock.unchanged import require_unchanged

    if not isinstance(layer, nn.TransformerEncoderLayer):
        raise ConfigError(f"torch layer: got a {type(layer).__name__}, wanted a TransformerEncoderLayer")
    built = nn.TransformerEncoderLayer(
        layer.linear1.in_features,
        layer.self_attn.num_heads,
        layer.linear1.out_features,
        activation=layer.activation,
        layer_norm_eps=layer.norm1.eps,
        batch_first=layer.self_attn.batch_first,
        norm_first=layer.norm_first,
        bias=layer.linear1.bias is not None,
        device="meta",
    )
    require_unchanged(layer, built, name="torch layer", ignored=("p", "dropout"))
    return from_torch_state(
        layer.state_dict(),
        num_heads=layer.self_attn.num_heads,
        norm_first=layer.norm_first,
        activation=_activation_name(layer.activation),
        norm_eps=layer.norm1.eps,
        causal=causal,
        max_position=max_position,
    )


def from_torch_state(
    state: "Mapping[str, Tensor]",
    *,
    num_heads: int,
    norm_first: bool = False,
    activation: str = "relu",
    norm_eps: float = 1e-5,
    causal: bool = False,
    max_position: int = 2048,
) -> tuple[BlockConfig, dict[str, np.ndarray]]:
    """Take over a state dict; the defaults are the constructor's.

    Args:
        state: names without a prefix (`self_attn.in_proj_weight`, ...).
        num_heads: heads H.
        norm_first: pre-norm; otherwise post-norm.
        activation: `relu` or `gelu`.
        norm_eps: of both norms.
        causal: whether the layer is used with a causal mask.
        max_position: longest sequence (tokens).

    Returns:
        The config, and the weights by the block's state-dict names.

    Raises:
        ConfigError: an unknown activation, or a tensor that is missing, left over or of the wrong shape.
    """
    from tblock.weights import to_array

    if activation not in ("relu", "gelu"):
        raise ConfigError(f"torch layer: activation={activation!r}: must be relu or gelu")
    needed = ("self_attn.in_proj_weight", "linear1.weight")
    for name in needed:
        if name not in state:
            raise ConfigError(
                f"torch layer: {name} is missing; give the state dict of one TransformerEncoderLayer"
            )
    bias = "linear1.bias" in state
    fields: dict[str, Any] = {
        "dim": state["linear1.weight"].shape[1],
        "num_heads": num_heads,
        "max_position": max_position,
        "norm": "layernorm",
        "norm_position": "pre" if norm_first else "post",
        "norm_eps": norm_eps,
        "norm_bias": bias,
        "causal": causal,
        "rope": False,
        "ffn": activation,
        "ffn_dim": state["linear1.weight"].shape[0],
        **{f"{name}_bias": bias for name in ("q", "k", "v", "out", "ffn")},
    }
    config = BlockConfig(**fields)
    weights: dict[str, np.ndarray] = {}
    unused = []
    for name, tensor in state.items():
        array = to_array(tensor)
        module, _, kind = name.rpartition(".")
        if name in ("self_attn.in_proj_weight", "self_attn.in_proj_bias") and len(array) % 3 == 0:
            for part, rows in zip("qkv", np.split(array, 3), strict=True):
                weights[f"attn.{part}.{name.rpartition('_')[2]}"] = rows
        elif module in _MODULES:
            weights[f"{_MODULES[module]}.{kind}"] = array
        else:
            unused.append(name)
    _check(weights, unused, config)
    return config, weights


def _check(weights: dict[str, np.ndarray], unused: list[str], config: BlockConfig) -> None:
    wanted = parameter_shapes(config)
    missing = sorted(wanted.keys() - weights.keys())
    unused += sorted(weights.keys() - wanted.keys())
    if missing or unused:
        sides = [
            f"{side}: {', '.join(names)}"
            for side, names in (("missing", missing), ("unused", unused))
            if names
        ]
        raise ConfigError(f"torch layer: does not fit the block; {'; '.join(sides)}")
    for name, shape in wanted.items():
        if weights[name].shape != shape:
            raise ConfigError(
                f"torch layer: {name} has shape {list(weights[name].shape)}, wanted {list(shape)}"
            )


def _activation_name(activation: Any) -> str:
    import torch.nn.functional as F
    from torch import nn

    if activation is F.relu or isinstance(activation, nn.ReLU):
        return "relu"
    if activation is F.gelu or (isinstance(activation, nn.GELU) and activation.approximate == "none"):
        return "gelu"
    return getattr(activation, "__name__", type(activation).__name__)
