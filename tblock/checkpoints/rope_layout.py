"""Moving rows between the two RoPE layouts: half-split pairs (i, i + R/2), interleaved pairs (2i, 2i + 1).

The rows of q and k (and their norms) are reordered within each head, so that scores stay the same to the last
bit of the rotation.
"""

import numpy as np

from tblock.choices import RopeLayout
from tblock.config import BlockConfig


def row_order(config: BlockConfig, layout: RopeLayout) -> np.ndarray:
    """[E] int: which row of a head in the other layout comes at each place of `layout`."""
    order, half = np.arange(config.head_dim), config.rope_dim // 2
    interleaved = np.arange(2 * half).reshape(2, half).T.ravel()
    order[: 2 * half] = interleaved if layout == "interleaved" else np.argsort(interleaved)
    return order


def to_layout(array: np.ndarray, config: BlockConfig, layout: RopeLayout) -> np.ndarray:
    """A copy of q's or k's weight, bias or per-head norm, from the other layout to this one.

    Args:
        array: [heads * E, ...].
        config: gives E and the rotated width R.
        layout: wanted.
    """
    heads = array.reshape(-1, config.head_dim, *array.shape[1:])
    return np.ascontiguousarray(heads[:, row_order(config, layout)]).reshape(array.shape)
