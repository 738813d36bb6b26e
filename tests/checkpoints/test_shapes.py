"""parameter_shapes against the parameters of the block itself."""

import pytest
import torch

from tblock import Block, BlockConfig
from tblock.checkpoints.shapes import parameter_shapes

_BASE = {"dim": 60, "num_heads": 6, "num_kv_heads": 2, "head_dim": 14, "ffn_dim": 77}
_BIASES = {f"{name}_bias": True for name in ("q", "k", "v", "out", "ffn")}
VARIANTS = {
    "plain": {},
    "biases": _BIASES,
    "layernorm": {"norm": "layernorm"},
    "layernorm-nobias": {"norm": "layernorm", "norm_bias": False},
    "sandwich": {"norm_position": "sandwich", "qk_norm": "head"},
    "inner-post": {"norm_position": "inner_post", "qk_norm": "full"},
    "one-norm": {"parallel": "one_norm", "norm": "layernorm", "qk_norm": "head"},
    "norm-for-each-head": {"norm": "layernorm", "qk_norm": "per_head"},
    "two-norms": {"parallel": "two_norms"},
    "mlp": {"ffn": "relu2", "ffn_bias": True},
    "experts": {"num_experts": 3, "experts_per_token": 2, "shared_ffn_dim": 20},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_shapes_equal_the_blocks_parameters(variant: str) -> None:
    config = BlockConfig(**(_BASE | VARIANTS[variant]))
    with torch.device("meta"):
        wanted = {name: tuple(p.shape) for name, p in Block(config).named_parameters()}
    assert parameter_shapes(config) == wanted


def test_shapes_sum_to_the_parameter_count() -> None:
    config = BlockConfig(**_BASE, **_BIASES)
    shapes = parameter_shapes(config).values()
    assert sum(s[0] * (s[1] if len(s) > 1 else 1) for s in shapes) == config.parameter_count()
