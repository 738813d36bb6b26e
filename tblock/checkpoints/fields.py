"""Reading a model's own settings (config.json, GGUF metadata), with file and key in every message."""

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tblock.errors import ConfigError
from tblock.files import read_json

_REQUIRED = object()
_TOO_MANY = 2**31
"""No size, head or layer of a model is counted past an int32."""

_ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh", "gelu_accurate": "gelu_tanh", "relu": "relu",
    "relu2": "relu2",
}  # fmt: skip
"""Names in the field for the activations of tblock.choices."""

_GATED = {"silu": "swiglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh"}


Known = Mapping[str, str | tuple[Any, ...]]
"""Setting to why it changes no layer, or to the values with which it asks for nothing."""


class Fields:
    """A mapping of settings that knows where it came from and what was asked of it.

    Attributes:
        where: the file, for messages.
        values: the settings as read.
        defaults: what a setting is where the file leaves it out; null in the file is not the same.
        asked: names that were looked for.
    """

    def __init__(self, where: str, values: dict[str, Any], defaults: Mapping[str, Any] | None = None) -> None:
        self.where, self.values, self.defaults = where, values, defaults or {}
        self.asked: set[str] = set()
        self._parts: dict[str, Fields] = {}

    @classmethod
    def from_json(cls, path: Path) -> "Fields":
        """Read config.json.

        Raises:
            ConfigError: missing, or not a JSON object.
        """
        try:
            values = read_json(path)
        except OSError as error:
            raise ConfigError(
                f"{path}: {error.strerror or error}; a checkpoint needs its config.json"
            ) from None
        except ValueError as error:
            raise ConfigError(f"{path}: not JSON ({error})") from None
        if not isinstance(values, dict):
            raise ConfigError(f"{path}: got a JSON {type(values).__name__}, wanted an object")
        return cls(str(path), values)

    def __contains__(self, name: str) -> bool:
        return self._value(name) is not None

    def _value(self, name: str) -> Any:
        self.asked.add(name)
        return self.values[name] if name in self.values else self.defaults.get(name)

    def unread(self) -> "Fields":
        """The same settings, with nothing asked yet."""
        return Fields(self.where, self.values, self.defaults)

    def sub(self, name: str, defaults: Mapping[str, Any] | None = None) -> "Fields":
        """The nested object of that name, empty where there is none."""
        value = self._value(name) or {}
        if not isinstance(value, dict):
            raise ConfigError(f"{self.where}: {name}={value!r}, wanted an object")
        part = self._parts.setdefault(name, Fields(f"{self.where}: {name}", value))
        part.defaults = defaults or part.defaults
        return part

    def _get(self, name: str, default: Any, kinds: tuple[type, ...], wanted: str) -> Any:
        value = self._value(name)
        if value is None:
            if default is _REQUIRED:
                raise ConfigError(f"{self.where}: {name} is missing, wanted {wanted}")
            return default
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise ConfigError(f"{self.where}: {name}={value!r}, wanted {wanted}")
        return value

    def integer(self, name: str, default: Any = _REQUIRED) -> Any:
        """An int; `default` (None allowed) where it is null, or absent and the family has no default."""
        return self._get(name, default, (int,), "an integer")

    def count(self, name: str, default: Any = _REQUIRED) -> Any:
        """An int above 0; `default` likewise."""
        value = self._get(name, default, (int,), "an integer")
        if value is not None and not 0 < value < _TOO_MANY:
            raise ConfigError(
                f"{self.where}: {name}={value}, wanted an integer above 0 and below {_TOO_MANY}"
            )
        return value

    def number(self, name: str, default: Any = _REQUIRED) -> Any:
        """A finite float; ints are taken."""
        value = self._get(name, default, (int, float), "a number")
        if value is None:
            return None
        if not abs(value) <= sys.float_info.max:
            raise ConfigError(f"{self.where}: {name}={value}, wanted a finite number")
        return float(value)

    def positive(self, name: str, default: Any = _REQUIRED, *, most: float = math.inf) -> Any:
        """A float above 0 and at most `most`."""
        value = self.number(name, default)
        if value is not None and not 0 < value <= most:
            limit = "" if most == math.inf else f" and at most {most:g}"
            raise ConfigError(f"{self.where}: {name}={value}, wanted a number above 0{limit}")
        return value

    def flag(self, name: str, default: Any = _REQUIRED) -> Any:
        """true or false."""
        return self._get(name, default, (bool,), "true or false")

    def text(self, name: str, default: Any = _REQUIRED) -> Any:
        """A string."""
        return self._get(name, default, (str,), "a string")

    def items(self, name: str, default: Any = None) -> Any:
        """A list."""
        return self._get(name, default, (list,), "a list")

    def at(self, name: str, layer: int) -> Any:
        """The item of a layer in a list with one for each.

        Raises:
            ConfigError: the list is too short.
        """
        values = self.items(name, [])
        if layer >= len(values):
            raise ConfigError(
                f"{self.where}: {name} has nothing for layer {layer}, wanted one for each layer"
            )
        return values[layer]

    def slides(self, layer: int) -> bool | None:
        """Whether `layer_types` gives a layer a sliding window; None where there is no such list.

        Raises:
            ConfigError: the list is too short, or names a kind of layer the block does not have.
        """
        if "layer_types" not in self:
            return None
        kind = self.at("layer_types", layer)
        if kind not in ("full_attention", "sliding_attention"):
            wanted = "wanted full_attention or sliding_attention"
            raise ConfigError(f"{self.where}: layer_types has {kind!r} for layer {layer}, {wanted}")
        return kind == "sliding_attention"

    def activation(self, name: str, default: Any = _REQUIRED) -> str:
        """The activation behind the field's many names for it.

        Raises:
            ConfigError: one that the block does not have.
        """
        value = self.text(name, default)
        if value not in _ACTIVATIONS:
            raise ConfigError(
                f"{self.where}: {name}={value!r}: unknown activation; known: {', '.join(_ACTIVATIONS)}"
            )
        return _ACTIVATIONS[value]

    def gated_ffn(self, name: str, default: Any = _REQUIRED) -> str:
        """`ffn` of a BlockConfig for a gate with that activation.

        Raises:
            ConfigError: unknown, or not one a gated FFN of the block can have.
        """
        activation = self.activation(name, default)
        if activation not in _GATED:
            raise ConfigError(
                f"{self.where}: {name}={self._value(name)!r}: a gated FFN has {', '.join(_GATED)} only"
            )
        return _GATED[activation]

    def refuse_unread(self, family: str, known: Known, scope: str, advice: str) -> None:
        """Refuse a setting that nobody has asked for and that is not known to change no layer.

        Args:
            family: named in the message.
            known: what may stay unread.
            scope: only names that begin with it are looked at.
            advice: what to do, for the message.

        Raises:
            ConfigError: names the setting and its value.
        """
        for name, value in self.values.items():
            ours = name.startswith(scope) and not name.startswith("_")
            if value is None or name in self.asked or not ours or isinstance(known.get(name), str):
                continue
            if name not in known:
                unknown = f"not known for {family} and may change the layer; {advice}"
                raise ConfigError(f"{self.where}: {name}={value!r}: {unknown}")
            self.refuse(family, **{name: known[name]})
        for part in self._parts.values():
            part.refuse_unread(family, {}, "", advice)

    def refuse(self, family: str, **unsupported: Any) -> None:
        """Refuse settings that ask for what the block cannot do.

        Args:
            family: named in the message.
            unsupported: setting name to the values that are fine (a tuple); absent counts as fine.

        Raises:
            ConfigError: names the setting, its value and what is supported.
        """
        for name, fine in unsupported.items():
            value = self._value(name)
            if value is not None and value not in fine:
                wanted = (
                    f"supported with {' or '.join(map(repr, fine))} only" if fine else "not supported with it"
                )
                raise ConfigError(f"{self.where}: {name}={value!r}: {family} is {wanted}")
