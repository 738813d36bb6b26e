"""The cos and sin tables of RoPE as a module: built in float64, held in float32 in every block."""

import torch
from torch import Tensor, nn

from tblock.config import BlockConfig
from tblock.errors import ConfigError
from tblock.rope import rope_tables


class RopeTable(nn.Module):
    """Rows of cos and sin for each position.

    The tables are not weights: they follow from the config, are in no state dict, and `.half()` leaves them
    alone.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.config = config
        for name, table in zip(("cos", "sin"), rope_tables(config, config.max_position), strict=True):
            self.register_buffer(name, torch.from_numpy(table).float(), persistent=False)

    def forward(self, x_BSD: Tensor, positions_BS: Tensor | None) -> tuple[Tensor, Tensor]:
        """The rows for a sequence.

        Args:
            x_BSD: [B, S, D]; gives S, the device and whether float64 is wanted.
            positions_BS: [B, S] int64; None: 0 .. S - 1.

        Returns:
            cos, sin: [S, R/2], or [B, 1, S, R/2] with positions; float32, or float64 for float64 x.

        Raises:
            ConfigError: S is past the table (eager only; a captured graph carries the limit in its range of
                S).
        """
        length = x_BSD.shape[1]
        if not torch.compiler.is_compiling() and length > self.config.max_position:
            raise ConfigError(f"S={length}: above max_position={self.config.max_position} of the RoPE tables")
        cos, sin = self.cos, self.sin
        if x_BSD.dtype == torch.float64:
            rows = length if positions_BS is None else self.config.max_position
            cos, sin = (torch.from_numpy(t).to(x_BSD.device) for t in rope_tables(self.config, rows))
        if positions_BS is None:
            return cos[:length], sin[:length]
        return cos[positions_BS][:, None], sin[positions_BS][:, None]

    def resize(self, positions: int) -> None:
        """Hold rows for 0 .. positions - 1, so that a captured graph carries no more than it can reach."""
        for name, table in zip(("cos", "sin"), rope_tables(self.config, positions), strict=True):
            setattr(self, name, torch.from_numpy(table).to(self.cos.device, torch.float32))

    def _apply(self, fn, recurse: bool = True):
        super()._apply(fn, recurse)
        device = self.cos.device
        if self.cos.dtype != torch.float32:
            for name, table in zip(
                ("cos", "sin"), rope_tables(self.config, self.config.max_position), strict=True
            ):
                setattr(self, name, torch.from_numpy(table).to(device, torch.float32))
        return self
