"""The block that most of the exporter's tests export."""

from typing import Any

from tblock import BlockConfig
from tblock.ranges import Range

ODD = BlockConfig(
    dim=60, num_heads=6, num_kv_heads=3, head_dim=12, ffn_dim=100, max_position=64, init_std=0.2
)
"""Grouped heads, no width a power of two, weights large enough for every part to matter."""

SMALL: dict[str, Any] = {"batch": Range(1, 2, 4), "seq": Range(1, 8, 40)}
