"""The per-user cache folder of the plugin build. Imports only `tblock.errors`."""

import os
from pathlib import Path

from tblock.errors import ConfigError

VARIABLE = "XDG_CACHE_HOME"


def cache_folder(name: str) -> Path:
    """`$XDG_CACHE_HOME/tblock/<name>`, or below `~/.cache`; not created.

    Raises:
        ConfigError: the variable is not set and this user has no home folder.
    """
    base = os.environ.get(VARIABLE, "")
    try:
        root = Path(base) if base else Path.home() / ".cache"
    except RuntimeError:
        raise ConfigError(
            f"no home folder for user {os.getuid()} (HOME is not set, no passwd entry): set {VARIABLE} to a "
            "folder where built things can be kept"
        ) from None
    return root / "tblock" / name
