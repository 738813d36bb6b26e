"""Trying an engine inside its whole block, for `--fusion auto`: checked and timed like any other runtime.

The engine is put into a scratch artifact beside the real one's weights and golden data, so that what is timed
is what is judged.
"""

import dataclasses
import os
import tempfile
from pathlib import Path

from tblock.export.engine.choice import Trial
from tblock.export.engine.report import EngineReport
from tblock.export.recording import engine_entry
from tblock.manifest import GOLDEN, NAME, WEIGHTS, Artifact, file_digest


def try_engine(artifact: Artifact, engine: Path, report: EngineReport, library: str | None) -> Trial:
    """Check and time one engine.

    Args:
        artifact: whose graph it was built from; it may still be in the making.
        engine: the file.
        report: of its build; gives the runtime and the shape to time, the first profile's optimum.
        library: path of the plugin library, for an engine with plugin layers.
    """
    from tblock.runtimes import bench

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
        targets = {report.flavour: {**engine_entry(report), "files": [engine.name]}}
        manifest = dataclasses.replace(artifact.manifest, targets=targets, files=files, verdicts={})
        Path(scratch, NAME).write_text(manifest.to_json(), encoding="utf-8")
        batch, seq = report.profiles[0]["x"][1][:2]
        shapes = [{"B": batch, "S": seq}]
        used = library if report.fusion == "plugin" else None
        (timed,) = bench(scratch, [report.flavour], shapes=shapes, plugin_library=used)
    if timed.median_s is None:
        return Trial(correct=False, milliseconds=float("inf"), detail=f"{timed.status}: {timed.reason}")
    detail = f"within the float64 budget; {timed.iterations} calls at {timed.case}"
    return Trial(correct=True, milliseconds=timed.median_s * 1e3, detail=detail)
