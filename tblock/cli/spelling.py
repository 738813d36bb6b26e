"""The spellings users have in their fingers, turned into ours."""

from tblock.ranges import Range


def names(text: str) -> tuple[str, ...]:
    """A comma list, without blanks and repeats."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def optional_range(text: str | None, flag: str) -> Range | None:
    """A range flag that may be left out."""
    return None if text is None else Range.parse(text, flag)
