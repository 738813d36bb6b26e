"""Adding a rebuilt engine or a verdict to the manifest of an artifact that is already there."""

import dataclasses
from pathlib import Path
from typing import Any

from tblock.export.engine.report import EngineReport
from tblock.export.staging import write_error
from tblock.manifest import NAME, Artifact, Manifest, file_digest, read_artifact

GRAPH = "model.onnx"
ENGINES = {"tensorrt": "model.trt.engine", "tensorrt-rtx": "model.rtx.engine"}
"""Flavour to the name of its engine in an artifact folder."""


def engine_entry(report: EngineReport) -> dict[str, Any]:
    """What a manifest says of an engine target."""
    return {"files": [report.file], "graph": GRAPH, **report.to_dict()}


def record_engine(folder: Path, flavour: str, report: EngineReport) -> Artifact:
    """Make an engine that was built into an artifact folder part of the artifact.

    Raises:
        ArtifactError: the manifest is missing or damaged.
    """
    artifact = read_artifact(folder)
    path = folder / report.file
    files = {**artifact.manifest.files, path.name: {"size": path.stat().st_size, "sha256": file_digest(path)}}
    targets = {**artifact.manifest.targets, flavour: engine_entry(report)}
    verdicts = {name: v for name, v in artifact.manifest.verdicts.items() if name != flavour}
    return replace_manifest(
        folder, dataclasses.replace(artifact.manifest, files=files, targets=targets, verdicts=verdicts)
    )


def record_verdicts(artifact: Artifact, verdicts: dict[str, dict[str, Any]]) -> Artifact:
    """Write what a check found into the manifest."""
    return replace_manifest(artifact.folder, dataclasses.replace(artifact.manifest, verdicts=verdicts))


def replace_manifest(folder: Path, manifest: Manifest) -> Artifact:
    """Swap the manifest for a new one; a crash leaves the old.

    Raises:
        ExportError: the disk is full or the folder cannot be written; the old manifest is intact.
    """
    staged = folder / f".{NAME}.new"
    try:
        staged.write_text(manifest.to_json(), encoding="utf-8")
        staged.replace(folder / NAME)
    except OSError as error:
        staged.unlink(missing_ok=True)
        raise write_error(folder, error) from error
    return Artifact(folder, manifest)
