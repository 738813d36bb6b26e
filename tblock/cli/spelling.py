"""The spellings users have in their fingers, turned into ours."""

from pathlib import Path

from tblock.ranges import Range


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
