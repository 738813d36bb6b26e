"""Trying an engine inside its whole block, for `--fusion auto`: checked and timed like any other runtime.

The engine is put into a scratch artifact beside the real one's weights and golden data, so that the export
room need not know how engines are run.
"""

import dataclasses
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tblock.cli import spelling
from tblock.manifest import GOLDEN, NAME, WEIGHTS, file_digest, read_artifact

if TYPE_CHECKING:
    from tblock.export.engine.builder import Trial


def trial(folder: Path, engine: Path, runtime: str) -> "Trial":
    """Check and time one engine.

    Args:
        folder: the artifact whose graph it was built from.
        engine: the file.
        runtime: `tensorrt` or `tensorrt-rtx`.
    """
    from tblock.export.engine.builder import Trial
    from tblock.runtimes import bench, check

    artifact = read_artifact(folder)
    with tempfile.TemporaryDirectory(prefix="tblock-trial-") as scratch:
        kept = [name for name in (WEIGHTS, GOLDEN) if name in artifact.manifest.files]
        for name in kept:
            os.symlink(artifact.path(name).resolve(), Path(scratch, name))
        os.symlink(engine.resolve(), Path(scratch, engine.name))
        files = {name: artifact.manifest.files[name] for name in kept}
        files[engine.name] = {"size": engine.stat().st_size, "sha256": file_digest(engine)}
        targets = {runtime: {"files": [engine.name]}}
        manifest = dataclasses.replace(artifact.manifest, targets=targets, files=files, verdicts={})
        Path(scratch, NAME).write_text(manifest.to_json(), encoding="utf-8")
        library = spelling.plugin_library(None)
        (row,) = check(scratch, [runtime], plugin_library=library)
        if not row.passed:
            return Trial(correct=False, milliseconds=float("inf"), detail=f"{row.status}: {row.reason}")
        (timed,) = bench(scratch, [runtime], plugin_library=library)
    if timed.median_s is None:
        return Trial(correct=False, milliseconds=float("inf"), detail=f"{timed.status}: {timed.reason}")
    errors = f"error {row.error:.2e} against eager's {row.eager_error:.2e}"
    detail = f"{errors}, {timed.iterations} calls at {timed.case}"
    return Trial(correct=True, milliseconds=timed.median_s * 1e3, detail=detail)
