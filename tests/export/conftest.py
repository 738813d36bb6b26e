"""Artifacts that the exporter's tests share: each combination is exported once a session."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tblock import BlockConfig
from tblock.manifest import Artifact
from tblock.ranges import Range

ODD = BlockConfig(
    dim=60, num_heads=6, num_kv_heads=3, head_dim=12, ffn_dim=100, max_position=64, init_std=0.2
)
"""Grouped heads, no width a power of two, weights large enough for every part to matter."""

SMALL: dict[str, Any] = {"batch": Range(1, 2, 4), "seq": Range(1, 8, 40)}


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Artifact]:
    """`exported(**changes)`: ODD with some fields changed; options of the export by `options={...}`."""
    done: dict[str, Artifact] = {}

    def make(options: dict[str, Any] | None = None, **changes: Any) -> Artifact:
        from tblock.export import export

        key = repr((sorted((options or {}).items()), sorted(changes.items())))
        if key not in done:
            folder: Path = tmp_path_factory.mktemp("artifact") / "a"
            done[key] = export(ODD.replace(**changes), folder, **{**SMALL, **(options or {})})
        return done[key]

    return make
