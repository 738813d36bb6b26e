"""Reading a model's own settings (config.json, GGUF metadata), with file and key in every message."""

import json
import math
import sys
from pathlib import Path
from typing import Any

from tblock.errors import ConfigError

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


SHAPING = ("is_causal", "partial_rotary_factor")
"""Settings that change every layer of a model that has them, in any family: unread they are refused."""


class Fields:
    """A mapping of settings that knows where it came from.

    Attributes:
        where: the file, for messages.
        values: the settings as read.
    """

    def __init__(self, where: str, values: dict[str, Any]) -> None:
        self.where, self.values = where, values
        self.asked: set[str] = set()

    @classmethod
    def from_json(cls, path: Path) -> "Fields":
        """Read config.json.

        Raises:
            ConfigError: missing, or not a JSON object.
        """
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(
                f"{path}: {error.strerror or error}; a checkpoint needs its config.json"
            ) from None
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}: not JSON ({error})") from None
        if not isinstance(values, dict):
            raise ConfigError(f"{path}: got a JSON {type(values).__name__}, wanted an object")
        return cls(str(path), values)

    def __contains__(self, name: str) -> bool:
        self.asked.add(name)
        return self.values.get(name) is not None

    def sub(self, name: str) -> "Fields":
        """The nested object of that name, empty where there is none."""
        self.asked.add(name)
        value = self.values.get(name) or {}
        if not isinstance(value, dict):
            raise ConfigError(f"{self.where}: {name}={value!r}, wanted an object")
        return Fields(f"{self.where}: {name}", value)

    def _get(self, name: str, default: Any, kinds: tuple[type, ...], wanted: str) -> Any:
        self.asked.add(name)
        value = self.values.get(name)
        if value is None:
            if default is _REQUIRED:
                raise ConfigError(f"{self.where}: {name} is missing, wanted {wanted}")
            return default
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise ConfigError(f"{self.where}: {name}={value!r}, wanted {wanted}")
        return value

    def integer(self, name: str, default: Any = _REQUIRED) -> Any:
        """An int; `default` (None allowed) where the key is absent or null."""
        return self._get(name, default, (int,), "an integer")

    def count(self, name: str, default: Any = _REQUIRED) -> Any:
        """An int above 0; `default` (None allowed) where the key is absent or null."""
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

    def nullable(self, name: str, absent: Any) -> Any:
        """A number where null means off and is not the same as an absent key, which takes `absent`."""
        self.asked.add(name)
        return self.number(name, None) if name in self.values else absent

    def window(self, name: str, absent: int | None) -> int | None:
        """A number of tokens, likewise."""
        self.asked.add(name)
        return self.count(name, None) if name in self.values else absent

    def flag(self, name: str, default: Any = _REQUIRED) -> Any:
        """true or false."""
        return self._get(name, default, (bool,), "true or false")

    def text(self, name: str, default: Any = _REQUIRED) -> Any:
        """A string."""
        return self._get(name, default, (str,), "a string")

    def items(self, name: str, default: Any = None) -> Any:
        """A list."""
        return self._get(name, default, (list,), "a list")

    def slides(self, layer: int) -> bool | None:
        """Whether `layer_types` gives a layer a sliding window; None where there is no such list.

        Raises:
            ConfigError: the list is too short, or names a kind of layer the block does not have.
        """
        types = self.items("layer_types")
        if types is None:
            return None
        if layer >= len(types) or types[layer] not in ("full_attention", "sliding_attention"):
            got = repr(types[layer]) if layer < len(types) else "nothing"
            wanted = "wanted full_attention or sliding_attention"
            raise ConfigError(f"{self.where}: layer_types has {got} for layer {layer}, {wanted}")
        return types[layer] == "sliding_attention"

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
                f"{self.where}: {name}={self.values[name]!r}: a gated FFN has {', '.join(_GATED)} only"
            )
        return _GATED[activation]

    def refuse_unread(self, family: str, causal: bool) -> None:
        """Refuse a setting that shapes a layer and that nobody has asked for.

        Args:
            family: named in the message.
            causal: of the block that was read; an `is_causal` that says the same is fine.

        Raises:
            ConfigError: names the setting and its value.
        """
        for name, value in self.values.items():
            agrees = value is None or (name == "is_causal" and value == causal)
            if name in SHAPING and name not in self.asked and not agrees:
                raise ConfigError(
                    f"{self.where}: {name}={value!r}: {family} is read without it, "
                    "and it may change the layer"
                )

    def refuse(self, family: str, **unsupported: Any) -> None:
        """Refuse settings that ask for what the block cannot do.

        Args:
            family: named in the message.
            unsupported: setting name to the values that are fine (a tuple); absent counts as fine.

        Raises:
            ConfigError: names the setting, its value and what is supported.
        """
        for name, fine in unsupported.items():
            self.asked.add(name)
            value = self.values.get(name)
            if value is not None and value not in fine:
                wanted = (
                    f"supported with {' or '.join(map(repr, fine))} only" if fine else "not supported with it"
                )
                raise ConfigError(f"{self.where}: {name}={value!r}: {family} is {wanted}")
