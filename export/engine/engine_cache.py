"""The engine cache: an engine is found again by everything that shaped it.

Key: digests of graph and weights, package version, tblock version, GPU, profiles, options, fusion and plugin
library. An entry is an engine and its report; a damaged one is built again, never used.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tblock.errors import ExportError
from tblock.export.engine.report import EngineReport
from tblock.files import whole_file
from tblock.manifest import file_digest


def digest_of_files(paths: Iterable[Path]) -> str:
    """One digest over the contents of some files, in order."""
    paths = list(paths)
    assert paths, "a digest of nothing would never change"
    return hashlib.sha256("".join(file_digest(path) for path in paths).encode()).hexdigest()


def key(parts: Mapping[str, Any]) -> str:
    """The cache key of one build, 32 hexadecimal digits."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def find(folder: Path, name: str, output: Path) -> EngineReport | None:
    """Copy an engine out of the cache.

    Args:
        folder: of the cache.
        name: key.
        output: where the engine goes.

    Returns:
        Its report, or None where the cache has no such engine or a damaged one.
    """
    try:
        entry = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        report = EngineReport.from_dict(entry["report"])
        with whole_file(output) as fresh:
            shutil.copyfile(folder / f"{name}.engine", fresh)
            if file_digest(fresh) != entry["sha256"]:
                raise ValueError("damaged")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ExportError):
        return None
    return replace(report, cached=True, file=output.name, caches={**report.caches, "engine": f"hit {name}"})


def store(folder: Path, name: str, output: Path, report: EngineReport) -> EngineReport:
    """Put an engine into the cache; each file appears whole or not at all.

    Returns:
        The report, with what was done.
    """
    report = replace(report, caches={**report.caches, "engine": f"stored {name}"})
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f"{name}.{os.getpid()}"
    shutil.copyfile(output, fresh)
    os.replace(fresh, folder / f"{name}.engine")
    fresh.write_text(
        json.dumps({"sha256": file_digest(output), "report": report.to_dict()}), encoding="utf-8"
    )
    os.replace(fresh, folder / f"{name}.json")
    return report
