"""Opening an artifact in a runtime: from folder and names to a Runner; wrong use answered before imports."""

import importlib
from pathlib import Path
from typing import Any

from tblock.errors import ArtifactError, RuntimeUnavailable, reason
from tblock.manifest import read_artifact
from tblock.runtimes.runner import Runner, our_errors
from tblock.runtimes.table import check_threads, missing_target, runtime_row


def load_runner(folder: str | Path, runtime: str, **options: Any) -> Runner:
    """As `tblock.runtimes.load`; options that are None count as not given."""
    row = runtime_row(runtime)
    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        if name not in row.options:
            flags = ", ".join(row.options)
            raise ArtifactError(f"{name}={value!r}: {runtime} has no such option; it takes {flags}")
    check_threads(given.get("threads"))
    artifact = read_artifact(_folder(folder))
    missing = missing_target(artifact, runtime)
    if missing:
        raise ArtifactError(f"{artifact.folder}: {missing}")
    module_name, _, class_name = row.runner.partition(":")
    try:
        importlib.import_module(row.package)
        runner_class = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, OSError) as error:
        why = f"{row.package} is not usable here ({reason(error)})"
        raise RuntimeUnavailable(f"{runtime}: {why}; pip install 'tblock[{row.extra}]'") from None
    with our_errors(runtime):
        runner: Runner = runner_class(artifact, **given)
    return runner


def _folder(folder: Any) -> Path:
    """People hand over what they hand to other libraries: the file, or its bytes."""
    if isinstance(folder, (bytes, bytearray, memoryview)):
        raise ArtifactError(
            "folder: got the bytes of a file, which cannot find the weights beside it; "
            "give the path of the artifact folder"
        )
    if not isinstance(folder, (str, Path)):
        raise ArtifactError(f"folder: got {type(folder).__name__}, wanted the path of an artifact folder")
    path = Path(folder)
    if path.is_file():
        raise ArtifactError(f"{path}: is a file; give the artifact folder it lies in, {path.parent}")
    return path
