"""Artifacts that the exporter's tests share: each combination is exported once a session."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tblock.manifest import Artifact
from tests.export.odd_block import ODD, SMALL


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Artifact]:
    """`exported(**changes)`: ODD with some fields changed; options of the export by `options={...}`."""
    done: dict[str, Artifact] = {}

    def make(options: dict[str, Any] | None = None, **changes: Any) -> Artifact:
        from tests.artifacts import export

        key = repr((sorted((options or {}).items()), sorted(changes.items())))
        if key not in done:
            folder: Path = tmp_path_factory.mktemp("artifact") / "a"
            done[key] = export(ODD.replace(**changes), folder, **{**SMALL, **(options or {})})
        return done[key]

    return make
