"""Artifacts that the exporter's tests share: each combination is exported once a session."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tblock import preset
from tblock.manifest import Artifact, read_artifact
from tests.artifacts import export
from tests.export.odd_block import ODD, SMALL
from tests.export.staged import TINY, content


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Artifact]:
    """`exported(**changes)`: ODD with some fields changed; options of the export by `options={...}`."""
    done: dict[str, Artifact] = {}

    def make(options: dict[str, Any] | None = None, **changes: Any) -> Artifact:
        key = repr((sorted((options or {}).items()), sorted(changes.items())))
        if key not in done:
            folder: Path = tmp_path_factory.mktemp("artifact") / "a"
            done[key] = export(ODD.replace(**changes), folder, **{**SMALL, **(options or {})})
        return done[key]

    return make


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact that is there before."""
    folder = tmp_path_factory.mktemp("old") / "a"
    export(preset("tiny"), folder, **TINY)
    return folder


@pytest.fixture
def intact(old: Path) -> Iterator[Path]:
    """The old artifact, and the promise that the test leaves it and nothing beside it."""
    before = content(old)
    yield old
    assert content(old) == before
    assert [p.name for p in old.parent.iterdir()] == ["a"]
    for name in read_artifact(old).manifest.files:
        read_artifact(old).path(name)
