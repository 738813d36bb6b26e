"""How verbs print: tables and JSON to stdout, progress to stderr."""

import json
import shutil
import sys
from collections.abc import Sequence
from typing import Any


def progress(line: str) -> None:
    """One line to stderr, at once."""
    print(f"... {line}", file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """One JSON document to stdout."""
    print(json.dumps(value, indent=1))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> None:
    """A table to stdout; as wide as it needs when stdout is not a terminal.

    Args:
        header: column names; a leading `>` aligns the column to the right.
        rows: one text for each column.
        title: above the table.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 200
    # Narrower, a cell would be a letter wide: the terminal wraps better.
    console = Console(width=max(columns, 100))
    table = Table(box=box.SIMPLE_HEAD)
    for name in header:
        right = name.startswith(">")
        table.add_column(name.removeprefix(">"), justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(text.replace("[", r"\[") for text in row))
    if title:
        print(title)
    console.print(table)


def size(count: float | None) -> str:
    """Bytes for people, decimal units."""
    if count is None:
        return "unknown"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def number(count: int) -> str:
    """A large count for people: 12.3 M."""
    for unit, scale in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= scale:
            return f"{count / scale:.2f} {unit}"
    return str(count)
