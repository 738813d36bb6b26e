"""The runtimes by name: where each runner lives, which target it reads, what it needs installed."""

import difflib
from dataclasses import dataclass

from tblock.errors import ArtifactError
from tblock.manifest import Artifact


@dataclass(frozen=True, kw_only=True)
class RuntimeRow:
    """One runtime.

    Attributes:
        runner: `module:class` of its Runner, imported when it is loaded.
        target: key of the manifest's targets it needs; None: config and weights are enough.
        package: what it imports.
        extra: of tblock that brings the package.
        options: what `load` takes for it besides folder and runtime.
        also: packages it needs besides, as import names; the same extra brings them.
    """

    runner: str
    target: str | None
    package: str
    extra: str
    options: tuple[str, ...]
    also: tuple[str, ...] = ()


RUNTIMES: dict[str, RuntimeRow] = {
    "eager": RuntimeRow(
        runner="tblock.runtimes.eager:EagerRunner",
        target=None,
        package="torch",
        extra="export",
        options=("provider", "threads"),
    ),
    "compile": RuntimeRow(
        runner="tblock.runtimes.compiled:CompileRunner",
        target=None,
        package="torch",
        extra="export",
        options=("provider", "threads"),
    ),
    "aoti": RuntimeRow(
        runner="tblock.runtimes.aoti:AotiRunner",
        target="aoti",
        package="torch",
        extra="export",
        options=("threads",),
    ),
    "onnxruntime": RuntimeRow(
        runner="tblock.runtimes.ort:OnnxRuntimeRunner",
        target="onnx",
        package="onnxruntime",
        extra="onnxruntime",
        options=("provider", "threads", "optimization"),
    ),
    "tensorrt": RuntimeRow(
        runner="tblock.runtimes.trt:TensorRtRunner",
        target="tensorrt",
        package="tensorrt",
        extra="tensorrt",
        options=("cuda_graph", "plugin_library"),
        also=("cuda.bindings",),
    ),
    "tensorrt-rtx": RuntimeRow(
        runner="tblock.runtimes.trt:TensorRtRtxRunner",
        target="tensorrt-rtx",
        package="tensorrt_rtx",
        extra="tensorrt-rtx",
        options=("cuda_graph",),
        also=("cuda.bindings",),
    ),
}
"""Every runtime, in the order of reports: the judge first."""

ALL = "all"
"""Instead of a list of runtimes: every one of them."""


def runtime_row(name: str) -> RuntimeRow:
    """Look up a runtime.

    Raises:
        ArtifactError: unknown; lists the known ones.
    """
    if name not in RUNTIMES:
        near = difflib.get_close_matches(name, RUNTIMES, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ArtifactError(f"runtime {name!r}: unknown; {hint}known: {', '.join(RUNTIMES)}")
    return RUNTIMES[name]


_MOST_THREADS = 1024
"""More than any machine has cores; pools of a hundred thousand start for minutes."""


def check_threads(threads: object) -> None:
    """Refuse a number of CPU threads that is none; None: the runtime's choice.

    Raises:
        ArtifactError: not a whole number above 0, or absurd.
    """
    if threads is not None and (not isinstance(threads, int) or not 1 <= threads <= _MOST_THREADS):
        raise ArtifactError(f"threads={threads!r}: must be at least 1 and at most {_MOST_THREADS}")


def missing_target(artifact: Artifact, name: str) -> str | None:
    """Why this runtime has nothing to run in the artifact; None where it has."""
    target = runtime_row(name).target
    if target is None or target in artifact.manifest.targets:
        return None
    return f"artifact has no {target} target; export with --to {target}"
