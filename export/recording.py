"""Adding a rebuilt engine or a verdict to the manifest of an artifact that is already there.

Two processes take turns by the folder's lock. A new engine has a name of its own, made from its content, and
the manifest is replaced last, in one system call: whenever the process is killed, the manifest and the files
it names belong together.
"""

import contextlib
import dataclasses
import os
from pathlib import Path
from typing import Any

from tblock.errors import ExportError
from tblock.export.engine.report import EngineReport
from tblock.export.staging import LEFTOVER, write_error
from tblock.files import locked, whole_file
from tblock.manifest import GRAPH, NAME, Artifact, Manifest, file_digest, read_artifact

ENGINES = {"tensorrt": "model.trt.engine", "tensorrt-rtx": "model.rtx.engine"}
"""Flavour to the name of its engine in a new artifact folder."""


def engine_entry(report: EngineReport) -> dict[str, Any]:
    """What a manifest says of an engine target."""
    return {"files": [report.file], "graph": GRAPH, **report.to_dict()}


def record_engine(artifact: Artifact, flavour: str, report: EngineReport, engine: Path) -> Artifact:
    """Make an engine part of an artifact, in place of the one it may have had.

    Args:
        artifact: as it was when its graph was read for the build.
        flavour: `tensorrt` or `tensorrt-rtx`.
        report: of the build.
        engine: the new file, in the folder under a name that starts with a dot; it is renamed.

    Raises:
        ArtifactError: the manifest is missing or damaged.
        ExportError: the disk is full, the folder cannot be written, or another export took its place: the old
            engine and manifest are intact.
    """
    folder = artifact.folder
    with _changing(artifact) as artifact:
        digest = file_digest(engine)
        stem, _, kind = ENGINES[flavour].rpartition(".")
        path = folder / f"{stem}.{digest[:12]}.{kind}"
        os.replace(engine, path)
        report = dataclasses.replace(report, file=path.name)
        replaced = {n for n in artifact.manifest.targets.get(flavour, {}).get("files", ()) if n != path.name}
        files = {n: entry for n, entry in artifact.manifest.files.items() if n not in replaced}
        manifest = dataclasses.replace(
            artifact.manifest,
            files={**files, path.name: {"size": path.stat().st_size, "sha256": digest}},
            targets={**artifact.manifest.targets, flavour: engine_entry(report)},
            verdicts={name: v for name, v in artifact.manifest.verdicts.items() if name != flavour},
        )
        _replace(folder, manifest)
        for old in folder.iterdir():
            stale = LEFTOVER.fullmatch(old.name) and not old.name.startswith(".")
            if old.name in replaced or (stale and old.name not in manifest.files):
                old.unlink(missing_ok=True)
    return Artifact(folder, manifest)


def record_verdicts(artifact: Artifact, verdicts: dict[str, dict[str, Any]]) -> Artifact:
    """Write what a check found into the manifest; raises as `record_engine`."""
    with _changing(artifact) as now:
        before, after = artifact.manifest.targets, now.manifest.targets
        # An engine that was rebuilt meanwhile is not the one that was judged.
        same = {n: v for n, v in verdicts.items() if n not in ENGINES or before.get(n) == after.get(n)}
        manifest = dataclasses.replace(now.manifest, verdicts={**now.manifest.verdicts, **same})
        _replace(artifact.folder, manifest)
    return Artifact(artifact.folder, manifest)


@contextlib.contextmanager
def _changing(known: Artifact) -> Any:
    """The artifact as it is now, locked; only its engines may be others than those of `known`."""
    folder = known.folder
    try:
        with locked(folder):
            now = read_artifact(folder)
            left, right = (_without_engines(artifact.manifest) for artifact in (known, now))
            if left != right:
                raise ExportError(
                    f"{folder}: another export took its place; nothing was recorded in it, run again"
                )
            yield now
    except OSError as error:
        raise write_error(folder, error) from error


def _without_engines(manifest: Manifest) -> dict[str, Any]:
    engines = {name for flavour in ENGINES for name in manifest.targets.get(flavour, {}).get("files", ())}
    return {name: entry for name, entry in manifest.files.items() if name not in engines}


def _replace(folder: Path, manifest: Manifest) -> None:
    with whole_file(folder / NAME) as fresh:
        fresh.write_text(manifest.to_json(), encoding="utf-8")
