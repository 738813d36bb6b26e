"""Whether a module of the caller's is the one that its class and config describe, and nothing else.

An export reads config and weights and builds the block anew. What a caller changed beside them (a subclass, a
hook, a method or a constant of one instance) would be lost without a word, so it is refused here.
"""

from typing import Any

import torch
from torch import Tensor, nn

from tblock.errors import ConfigError

_BOOKKEEPING = {*vars(nn.Module()), "_compiled_call_impl"}
"""Attributes of every module; those that reach an output (hooks, buffers, parts) are compared one by one."""
_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def require_unchanged(
    given: nn.Module, built: nn.Module, *, name: str, ignored: tuple[str, ...] = ()
) -> None:
    """Refuse a module that may compute something else than one built anew with its weights.

    Args:
        given: the caller's.
        built: made by the stock constructors from the same settings; its parameters may be on `meta`.
        name: of `given`, in front of the messages.
        ignored: attributes that change no output, such as a dropout's rate.

    Raises:
        ConfigError: another class at some place, a forward hook, a method, constant or buffer that differs,
            or a parameter that is no plain floating-point tensor with data.
    """
    if type(given) is not type(built):
        raise _changed(name, f"is a {_path(given)}, wanted exactly {_path(built)}")
    if given._forward_hooks or given._forward_pre_hooks:
        raise _changed(name, "has forward hooks")
    own, wanted = vars(given), vars(built)
    for key in sorted({*own, *wanted} - _BOOKKEEPING - set(ignored)):
        # A further attribute is read by nobody, unless it hides a method or constant of the class.
        if key not in wanted and not hasattr(type(built), key):
            continue
        if key not in own or key not in wanted or own[key] != wanted[key]:
            raise _changed(
                f"{name}.{key}", f"is not what a new {_kind(built)} has{_values(own, wanted, key)}"
            )
    for key, buffer in built.named_buffers(recurse=False):
        held = given._buffers.get(key)
        if (
            held is None
            or held.is_meta
            or held.shape != buffer.shape
            or not torch.equal(held.cpu().to(buffer), buffer)
        ):
            raise _changed(f"{name}.{key}", "is not what the config says")
    for key, parameter in given.named_parameters(recurse=False):
        _require_plain(parameter, f"{name}.{key}")
    parts, wanted_parts = given._modules, built._modules
    for key in [*wanted_parts, *(key for key in parts if key not in wanted_parts)]:
        part, other = parts.get(key), wanted_parts.get(key)
        if part is None or other is None:
            raise _changed(f"{name}.{key}", f"is {_kind(part)}, a new {_kind(built)} has {_kind(other)}")
        require_unchanged(part, other, name=f"{name}.{key}", ignored=ignored)


def _require_plain(parameter: Tensor, name: str) -> None:
    if type(parameter) is not nn.Parameter or parameter.dtype not in _DTYPES or parameter.is_meta:
        kind = "without data" if parameter.is_meta else str(parameter.dtype).removeprefix("torch.")
        raise ConfigError(
            f"{name}: is a {type(parameter).__name__} ({kind}), wanted a plain floating-point parameter"
        )


def _values(own: dict[str, Any], wanted: dict[str, Any], key: str) -> str:
    """` (0.001, not 1e-06)`, where both are short enough to be read."""
    texts = [str(part.get(key, "unset")) for part in (own, wanted)]
    return f" ({texts[0]}, not {texts[1]})" if max(map(len, texts)) < 60 else ""


def _path(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _kind(module: Any) -> str:
    return "missing" if module is None else type(module).__name__


def _changed(where: str, what: str) -> ConfigError:
    return ConfigError(
        f"{where}: {what}; the block is built anew from config and weights, so this would be lost: "
        "express it in the config, or put the weights into an unchanged module"
    )
