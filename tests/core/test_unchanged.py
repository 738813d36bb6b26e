"""A module changed beside its config and weights is refused: an export would build the stock one and pass."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tblock import Block, BlockConfig, Stack, preset
from tblock.errors import ConfigError
from tblock.export import export
from tblock.export.block_source import ModuleSource

TINY = preset("tiny")
ODD = BlockConfig(dim=24, num_heads=3, num_kv_heads=1, qk_norm="per_head", num_experts=3, experts_per_token=2)


class Doubled(Block):
    """Off by a factor of two, with the config and weights of a block that is not."""

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return 2 * super().forward(*inputs)


def doubled_output(module: nn.Module, inputs: object, output: torch.Tensor) -> torch.Tensor:
    return 2 * output


CHANGED: dict[str, tuple[Callable[[Block], object], str]] = {
    "hook": (lambda b: b.register_forward_hook(doubled_output), r"Block: has forward hooks"),
    "pre-hook": (
        lambda b: b.ffn.down.register_forward_pre_hook(lambda m, x: (2 * x[0],)),
        r"Block\.ffn\.down: has forward hooks",
    ),
    "method": (
        lambda b: setattr(b.ffn, "forward", lambda x: x),
        r"Block\.ffn\.forward: is not what a new FeedForward has",
    ),
    "layer": (lambda b: setattr(b, "layer", lambda x, *_: 2 * x), r"Block\.layer: is not what a new Block"),
    "submodule": (
        lambda b: setattr(b.attn, "out", nn.Linear(64, 64, bias=False)),
        r"Block\.attn\.out: is a torch\.nn\.modules\.linear\.Linear, wanted exactly tblock\.linear\.Linear",
    ),
    "constant": (
        lambda b: setattr(b.ffn_norm, "eps", 0.5),
        r"Block\.ffn_norm\.eps: is not what a new RMSNorm has \(0\.5, not 1e-06\)",
    ),
    "config": (lambda b: setattr(b, "config", TINY.replace(norm_position="post")), r"Block\.rope\.config"),
    "table": (lambda b: b.rope.cos.mul_(2.0), r"Block\.rope\.cos: is not what the config says"),
    "parametrized": (
        lambda b: nn.utils.parametrizations.weight_norm(b.attn.q),
        r"Block\.attn\.q: is a .*ParametrizedLinear",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("change", "message"), CHANGED.values(), ids=CHANGED)
def test_changed_block_is_refused_with_the_place(
    change: Callable[[Block], object], message: str, tmp_path: Path
) -> None:
    block = Block(TINY).requires_grad_(False)
    # Weights of a trained size: at the init's, a sublayer changes x by too little to be seen here.
    for parameter in block.parameters():
        parameter.mul_(5.0)
    stock = Block(TINY)
    stock.load_state_dict(block.state_dict())
    x = torch.randn(1, 5, 64, generator=torch.Generator().manual_seed(0))
    change(block)
    off = (block(x) - stock(x)).norm() / stock(x).norm()
    assert off > 1e-3 or "weight_norm" in message or "Parametrized" in message
    with pytest.raises(ConfigError, match=f"^{message}.*would be lost: express it in the config"):
        export(block, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_subclass_is_refused_alone_and_in_a_stack() -> None:
    with pytest.raises(ConfigError, match=r"^Doubled: is a .*Doubled, wanted exactly tblock\.block\.Block"):
        ModuleSource(Doubled(TINY))
    stack = Stack([TINY] * 2)
    stack.layers[1] = Doubled(TINY)
    with pytest.raises(ConfigError, match=r"^Stack\.layers\.1: is a .*Doubled, wanted exactly"):
        ModuleSource(stack)
    stack.layers[1] = nn.Linear(64, 64)
    with pytest.raises(ConfigError, match=r"^Stack: layers holds a Linear, wanted blocks only"):
        ModuleSource(stack)


def test_hook_of_a_stack_is_refused_for_one_of_its_layers_too() -> None:
    stack = Stack([TINY] * 2)
    stack.register_forward_hook(doubled_output)
    with pytest.raises(ConfigError, match=r"^Stack: has forward hooks"):
        ModuleSource(stack, layer=0)


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        (torch.float8_e4m3fn, r"^Block\.attn\.q\.weight: is a Parameter \(float8_e4m3fn\), wanted a plain"),
        ("meta", r"^Block\.rope\.cos: is not what the config says"),
    ],
    ids=["float8", "meta"],
)
def test_parameters_without_values_of_ours_are_refused(dtype: torch.dtype | str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModuleSource(Block(TINY).to(dtype))


def trained(block: Block) -> None:
    """What training and casting leave behind changes nothing that a forward reads."""
    block.train()
    block(torch.randn(1, 3, block.config.dim)).sum().backward()
    block.note = "mine"
    block.register_full_backward_hook(lambda *_: None)
    block.compile()


@pytest.mark.parametrize("config", [TINY, ODD, preset("gpt2")], ids=["tiny", "odd", "gpt2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_unchanged_block_of_any_dtype_is_taken(config: BlockConfig, dtype: torch.dtype) -> None:
    block = Block(config)
    trained(block)
    assert ModuleSource(block.to(dtype)).configs == (config,)
