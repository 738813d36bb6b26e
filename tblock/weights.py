"""Putting named numpy weights into a Block or Stack, strictly, and taking them out again.

Owns the torch side of weights; reading files is `tblock.checkpoints` and `tblock.manifest`.
"""

from collections.abc import Mapping

import ml_dtypes
import numpy as np
import torch
from torch import Tensor, nn

from tblock.config import BlockConfig
from tblock.errors import ConfigError

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
"""dtype names of the command line and the manifest."""


def to_tensor(array: np.ndarray) -> Tensor:
    """numpy to torch without a copy; ml_dtypes.bfloat16 becomes torch.bfloat16."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_array(tensor: Tensor) -> np.ndarray:
    """torch (CPU or not, with or without grad) to numpy; torch.bfloat16 becomes ml_dtypes.bfloat16."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def fill(
    module: nn.Module,
    weights: Mapping[str, np.ndarray],
    *,
    dtype: torch.dtype,
    where: str,
    tied: Mapping[str, str] | None = None,
) -> None:
    """Fill every parameter of a Block or Stack exactly once, rounding to `dtype`.

    Args:
        module: built on any device, also `meta`; its parameters are replaced.
        weights: one array for each parameter that is not tied, by state-dict name.
        dtype: of the filled parameters.
        where: named in front of the message.
        tied: parameter to the one whose tensor it becomes; None: each has its own.

    Raises:
        ConfigError: a parameter without a tensor, a tensor without a parameter, a shape that differs, or NaN
            or Inf.
    """
    tied = tied or {}
    wanted = {name: p for name, p in module.named_parameters() if name not in tied}
    missing, unused = sorted(wanted.keys() - weights.keys()), sorted(weights.keys() - wanted.keys())
    if missing or unused:
        parts = [
            f"{kind} {', '.join(names)}"
            for kind, names in (("missing", missing), ("unused", unused))
            if names
        ]
        raise ConfigError(f"{where}: weights do not fit the block: {'; '.join(parts)}")
    state = {}
    for name, parameter in wanted.items():
        array = weights[name]
        if tuple(array.shape) != tuple(parameter.shape):
            raise ConfigError(
                f"{where}: {name} has shape {tuple(array.shape)}, the config wants {tuple(parameter.shape)}"
            )
        tensor = to_tensor(array).to(dtype)
        if not _finite(tensor):
            finite = _finite(to_tensor(array))
            reason = f"overflows {str(dtype).removeprefix('torch.')}" if finite else "has NaN or Inf"
            raise ConfigError(f"{where}: {name} {reason}")
        state[name] = tensor
    # Not strict: a block that a stack uses twice is named twice in its state, once in its parameters.
    module.load_state_dict(state, assign=True, strict=False)
    for name, owner in tied.items():
        _tie(module, name, owner, where)
    module.requires_grad_(False)


def tied_parameters(module: nn.Module) -> dict[str, str]:
    """Parameter to the one it is: every further name of a parameter that has several."""
    owners: dict[int, str] = {}
    names = {n: owners.setdefault(id(p), n) for n, p in module.named_parameters(remove_duplicate=False)}
    return {name: owner for name, owner in names.items() if name != owner}


def _tie(module: nn.Module, name: str, owner: str, where: str) -> None:
    try:
        own, shared = module.get_parameter(name), module.get_parameter(owner)
    except AttributeError as error:
        raise ConfigError(f"{where}: {name} shares the weights of {owner}: {error}") from None
    if own.shape != shared.shape:
        raise ConfigError(
            f"{where}: {name} {tuple(own.shape)} shares the weights of {owner} {tuple(shared.shape)}"
        )
    path, _, leaf = name.rpartition(".")
    setattr(module.get_submodule(path), leaf, shared)


def _finite(tensor: Tensor) -> bool:
    """Neither NaN nor Inf, without the three temporaries of isfinite on the whole tensor."""
    return all(bool(end.isfinite()) for end in torch.aminmax(tensor))


def random_block_weights(config: BlockConfig, seed: int) -> dict[str, np.ndarray]:
    """Seeded init weights of one block, and biases and norm weights that are not trivial.

    A zero bias or a unit norm weight would hide a runtime that forgets it, so those are drawn too.

    Returns:
        State-dict name to float32 array.
    """
    from tblock.block import Block

    generator = torch.Generator().manual_seed(seed)
    block = Block(config).requires_grad_(False)
    block.reset_parameters(generator)
    for name, parameter in block.named_parameters():
        norm = "norm" in name
        if norm or parameter.ndim == 1:
            parameter.add_(
                torch.randn(parameter.shape, generator=generator), alpha=0.1 if norm else config.init_std
            )
    return {name: to_array(p) for name, p in block.named_parameters()}
