"""Write a transformer block once in PyTorch, ship it to every runtime, know that it is right and how fast.

`import tblock` loads no torch; `Block` and `Stack` load it on first use.
"""

from typing import TYPE_CHECKING, Any

from tblock.config import BlockConfig
from tblock.presets import preset

if TYPE_CHECKING:
    from tblock.block import Block, Stack

__version__ = "0.1.0"
__all__ = ["Block", "BlockConfig", "Stack", "preset"]


def __getattr__(name: str) -> Any:
    if name in ("Block", "Stack"):
        import tblock.block

        return getattr(tblock.block, name)
    raise AttributeError(f"module 'tblock' has no attribute {name!r}")
