"""Moving weights between the two RoPE layouts: half-split pairs (i, i + R/2), interleaved pairs (2i, 2i + 1).

The rows of q and k (and their norms) are reordered within each head, so that scores stay the same to the last
bit of the rotation.
"""

import numpy as np

from tblock.choices import RopeLayout
from tblock.config import BlockConfig


def with_rope_layout(
    config: BlockConfig, weights: dict[str, np.ndarray], layout: RopeLayout
) -> tuple[BlockConfig, dict[str, np.ndarray]]:
    """The same block in another RoPE layout.

    Args:
        config: of the weights.
        weights: state-dict name to array; not changed.
        layout: wanted.

    Returns:
        The config with that layout, and the weights; q and k parameters are copies.
    """
    if not config.rope or config.rope_layout == layout:
        return config, dict(weights)
    half, head = config.rope_dim // 2, config.head_dim
    interleaved = np.arange(2 * half).reshape(2, half).T.ravel()
    order = np.arange(head)
    order[: 2 * half] = interleaved if layout == "interleaved" else np.argsort(interleaved)
    changed = dict(weights)
    for name, array in weights.items():
        if name.startswith(("attn.q.", "attn.k.", "attn.q_norm.", "attn.k_norm.")):
            heads = array.reshape(-1, head, *array.shape[1:])
            changed[name] = np.ascontiguousarray(heads[:, order]).reshape(array.shape)
    return config.replace(rope_layout=layout), changed
