"""Makes the families' case tables importable here."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "families"))
