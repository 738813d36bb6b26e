"""tblock.runtimes: run an artifact, check it against float64, time it.

`load(folder, "onnxruntime")` gives a Runner, `check(folder)` one row for each runtime, `bench(folder)` one
for each runtime and shape. Importing this loads no runtime, no torch and no numpy; each is loaded by what
needs it.
"""

if __name__ == "runtimes":
    raise ImportError("import tblock.runtimes, not runtimes: this folder is the source of that package")

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tblock.runtimes.rows import BenchRow, CaseRow, CheckRow
from tblock.runtimes.statuses import exit_code
from tblock.runtimes.table import RUNTIMES, RuntimeRow

if TYPE_CHECKING:
    from tblock.runtimes.runner import Runner

__all__ = [
    "RUNTIMES",
    "BenchRow",
    "CaseRow",
    "CheckRow",
    "RuntimeRow",
    "bench",
    "check",
    "exit_code",
    "load",
    "measure",
]


def load(folder: str | Path, runtime: str, **options: Any) -> "Runner":
    """Load an artifact into a runtime.

    Artifacts hold code (`.pt2`, `.engine`): load only those of people you trust.

    Args:
        folder: the artifact.
        runtime: a key of RUNTIMES.
        **options: those of the runtime, `RUNTIMES[runtime].options`; None: its default.
            provider: where to compute: `cpu` or `cuda` for eager and compile, an execution provider for
                onnxruntime.
            threads: CPU threads; None: the runtime's choice. Not for TensorRT.
            optimization: onnxruntime: `off`, `basic`, `extended`, `layout` or `all` (the default).
            cuda_graph: TensorRT: replay a CUDA graph for each shape.
            plugin_library: tensorrt: path of libtblock_plugins.so, for an engine with plugin layers.

    Returns:
        A Runner: `y = run(x)`.

    Raises:
        ArtifactError: unknown runtime or option, no such target in the artifact, a file missing or damaged.
        RuntimeUnavailable: a package, driver or device is missing here; names what brings it.
        ExportError: the runtime itself failed on it.
    """
    from tblock.runtimes.loading import load_runner

    return load_runner(folder, runtime, **options)


def check(
    folder: str | Path,
    runtimes: Sequence[str] | None = None,
    *,
    timeout: float = 900.0,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> list[CheckRow]:
    """Run each runtime on every golden case, in a process of its own, and judge it by float64.

    Args:
        folder: the artifact.
        runtimes: keys of RUNTIMES, or `all`; None: those of the artifact's targets.
        timeout: seconds for one runtime.
        progress: called with a line when a runtime starts and as it goes on.
        **options: as in `load`; each runtime gets those that it takes.

    Returns:
        One row for each runtime, in the order asked. What goes wrong in one runtime is its row, not an
        exception.

    Raises:
        ArtifactError: unknown runtime or option; the manifest or the golden data is missing or damaged.
    """
    from tblock.runtimes.parity import check_artifact

    return check_artifact(folder, runtimes, timeout=timeout, progress=progress, options=options)


def bench(
    folder: str | Path,
    runtimes: Sequence[str] | None = None,
    *,
    shapes: Sequence[Mapping[str, int]] | None = None,
    threads: int | None = None,
    seconds: float = 1.0,
    timeout: float = 900.0,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> list[BenchRow]:
    """Time each runtime at each shape, in a process of its own that first passes its own check.

    Args:
        folder: the artifact.
        runtimes: keys of RUNTIMES, or `all`; None: those of the artifact's targets.
        shapes: letter to size, for example `{"B": 1, "S": 128}`; None: the optimum of the declared ranges.
        threads: CPU threads, the same for every runtime; None: the CPUs this process may use.
        seconds: spent measuring one runtime at one shape, after warm-up.
        timeout: seconds for one runtime, check included.
        progress: called with a line when a runtime starts and as it goes on.
        **options: as in `load`; each runtime gets those that it takes.

    Returns:
        One row for each runtime and shape. A row has no times where the runtime failed its check, could not
        run, or gave something else while it was timed.

    Raises:
        ArtifactError: unknown runtime or option, a shape outside the ranges; the manifest or the golden data
            is damaged.
    """
    measured = measure(
        folder,
        runtimes,
        shapes=shapes,
        threads=threads,
        seconds=seconds,
        timeout=timeout,
        progress=progress,
        **options,
    )
    return [row for _, rows in measured for row in rows]


def measure(
    folder: str | Path, runtimes: Sequence[str] | None = None, **how: Any
) -> Iterator[tuple[CheckRow, list[BenchRow]]]:
    """`bench` with the row of the check that came first, runtime by runtime. Args and Raises as `bench`."""
    from tblock.runtimes.latency import measure_artifact

    return measure_artifact(folder, runtimes, **how)
