"""What a setting is where a config.json leaves it out: the defaults of each family's published config class.

Hubs hold sparse files: a library writes only what differs from its defaults. The file is data, written and
compared with transformers by tests/families.
"""

import functools
import json
from pathlib import Path
from typing import Any

DEFAULTS_FILE = Path(__file__).parent / "defaults.json"


@functools.cache
def published_defaults(family: str) -> dict[str, Any]:
    """Setting to default; empty for a family that is not in the file."""
    return json.loads(DEFAULTS_FILE.read_text(encoding="utf-8"))["families"].get(family, {})
