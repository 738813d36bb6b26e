"""The per-user cache folder of the plugin build. Imports only the standard library."""

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """`$XDG_CACHE_HOME/tblock/<name>`, or below `~/.cache`; not created."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "tblock" / name
