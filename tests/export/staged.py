"""What the tests of staging share: a small export, what a folder holds, and folders staged by hand."""

from pathlib import Path
from typing import Any

import pytest

from tblock.export import staging
from tblock.manifest import NAME
from tblock.ranges import Range

TINY: dict[str, Any] = {"seq": Range(1, 8, 16), "golden": False}


def content(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def staged_nothing(output: Path) -> None:
    """An export to the same path that breaks off."""
    with pytest.raises(KeyError), staging.staged_folder(output, force=True):
        raise KeyError


def staged(output: Path) -> None:
    with staging.staged_folder(output, force=True) as folder:
        (folder / NAME).write_text("new")
