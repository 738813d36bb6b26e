"""The spellings users have in their fingers, turned into ours."""

from pathlib import Path

from tblock.errors import ConfigError
from tblock.ranges import Range

DTYPES = {
    "float32": "float32",
    "fp32": "float32",
    "float16": "float16",
    "fp16": "float16",
    "half": "float16",
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
}


def dtype(text: str) -> str:
    """A dtype's full name.

    Raises:
        ConfigError: unknown; lists the known ones.
    """
    if text not in DTYPES:
        raise ConfigError(f"--dtype {text!r}: unknown; known: {', '.join(DTYPES)}")
    return DTYPES[text]


def names(text: str) -> tuple[str, ...]:
    """A comma list, without blanks and repeats."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def optional_range(text: str | None, flag: str) -> Range | None:
    """A range flag that may be left out."""
    return None if text is None else Range.parse(text, flag)


def plugin_library(given: Path | None) -> str | None:
    """The plugin library that was given, or else the one that is here, for engines that need it."""
    from tblock.export.plugins import library_path

    found = given or library_path()
    return None if found is None else str(found)
