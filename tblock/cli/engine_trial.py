"""Trying an engine inside its whole block, for `--fusion auto`: checked and timed like any other runtime.

The engine is put into a scratch artifact beside the real one's weights and golden data, so that the export
room need not know how engines are run.
"""

import dataclasses
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tblock.manifest import GOLDEN, NAME, WEIGHTS, Artifact, file_digest, read_artifact

if TYPE_CHECKING:
    from tblock.export.engine.builder import Trial
    from tblock.export.engine.report import EngineReport


def trial(folder: Path, engine: Path, report: "EngineReport", library: str | None) -> "Trial":
    """Check and time one engine.

    Args:
        folder: the artifact whose graph it was built from.
        engine: the file.
        report: of its build; gives the runtime and the shape to time, the first profile's optimum.
        library: path of the plugin library, for an engine with plugin layers.
    """
    from tblock.export.engine.builder import Trial
    from tblock.export.recording import engine_entry
    from tblock.runtimes import bench, check

    artifact = read_artifact(folder)
    runtime = report.flavour
    if GOLDEN not in artifact.manifest.files:
        nothing = "the artifact has no golden data to judge by"
        return Trial(correct=False, milliseconds=float("inf"), detail=nothing, judged=False)
    with tempfile.TemporaryDirectory(prefix="tblock-trial-") as scratch:
        kept = [name for name in (WEIGHTS, GOLDEN) if name in artifact.manifest.files]
        for name in kept:
            os.symlink(artifact.path(name).resolve(), Path(scratch, name))
        os.symlink(engine.resolve(), Path(scratch, engine.name))
        files = {name: artifact.manifest.files[name] for name in kept}
        files[engine.name] = {"size": engine.stat().st_size, "sha256": file_digest(engine)}
        targets = {runtime: {**engine_entry(report), "files": [engine.name]}}
        manifest = dataclasses.replace(artifact.manifest, targets=targets, files=files, verdicts={})
        Path(scratch, NAME).write_text(manifest.to_json(), encoding="utf-8")
        (row,) = check(scratch, [runtime], plugin_library=library)
        if not row.passed:
            return Trial(correct=False, milliseconds=float("inf"), detail=f"{row.status}: {row.reason}")
        batch, seq = report.profiles[0]["x"][1][:2]
        (timed,) = bench(scratch, [runtime], shapes=[{"B": batch, "S": seq}], plugin_library=library)
    if timed.median_s is None:
        return Trial(correct=False, milliseconds=float("inf"), detail=f"{timed.status}: {timed.reason}")
    errors = f"error {row.error:.2e} against eager's {row.eager_error:.2e}"
    detail = f"{errors}, {timed.iterations} calls at {timed.case}"
    return Trial(correct=True, milliseconds=timed.median_s * 1e3, detail=detail)


def settle_fusion(artifact: Artifact, progress: Callable[[str], None]) -> Artifact:
    """`--fusion auto` of an export to TensorRT: build both ways, run both, keep the faster correct one.

    The exporter itself runs no engine and leaves the native one; an artifact must be whole to be tried.
    Not executed (needs the package `tensorrt` and a GPU).
    """
    from tblock.cli import spelling
    from tblock.export.engine.builder import EngineOptions, build_from_onnx
    from tblock.export.recording import ENGINES, record_engine

    library = spelling.plugin_library(None)
    if library is None:
        return artifact
    progress("tensorrt: plugin against native")
    folder = artifact.folder
    report = build_from_onnx(
        folder,
        flavour="tensorrt",
        output=folder / ENGINES["tensorrt"],
        options=EngineOptions(fusion="auto", tf32=bool(artifact.manifest.targets["tensorrt"]["tf32"])),
        judge=lambda path, report: trial(folder, path, report, library),
    )
    return record_engine(folder, "tensorrt", report)
