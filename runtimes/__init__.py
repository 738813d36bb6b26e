"""tblock.runtimes: run an artifact, check it against float64, time it.

`load(folder, "onnxruntime")` gives a Runner, `check(folder)` one row for each runtime, `bench(folder)` one
for each runtime and shape. Importing this loads no runtime, no torch and no numpy; each is loaded by what
needs it.
"""

if __name__ == "runtimes":
    raise ImportError("import tblock.runtimes, not runtimes: this folder is the source of that package")

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tblock.runtimes.rows import BenchRow, CaseRow, CheckRow
from tblock.runtimes.table import RUNTIMES, RuntimeRow

if TYPE_CHECKING:
    from tblock.runtimes.runner import Runner

__all__ = ["RUNTIMES", "BenchRow", "CaseRow", "CheckRow", "RuntimeRow", "bench", "check", "load"]


def load(
    folder: str | Path,
    runtime: str,
    *,
    provider: str | None = None,
    threads: int | None = None,
    optimization: str | None = None,
    cuda_graph: bool | None = None,
    plugin_library: str | None = None,
) -> "Runner":
    """Load an artifact into a runtime.

    Artifacts hold code (`.pt2`, `.engine`): load only those of people you trust.

    Args:
        folder: the artifact.
        runtime: a key of RUNTIMES.
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
    """
    from tblock.runtimes.loading import load_runner

    options = {
        "provider": provider,
        "threads": threads,
        "optimization": optimization,
        "cuda_graph": cuda_graph,
        "plugin_library": plugin_library,
    }
    return load_runner(folder, runtime, **options)


def check(
    folder: str | Path,
    runtimes: Sequence[str] | None = None,
    *,
    provider: str | None = None,
    threads: int | None = None,
    plugin_library: str | None = None,
    cuda_graph: bool | None = None,
    timeout: float = 900.0,
    progress: Callable[[str], None] | None = None,
) -> list[CheckRow]:
    """Run each runtime on every golden case, in a process of its own, and judge it by float64.

    Args:
        folder: the artifact.
        runtimes: keys of RUNTIMES; None: all.
        provider: for the runtimes that know it (onnxruntime, eager, compile).
        threads: CPU threads of each runtime.
        plugin_library, cuda_graph: for TensorRT, as in `load`.
        timeout: seconds for one runtime.
        progress: called with a line when a runtime starts.

    Returns:
        One row for each runtime, in the order asked. What goes wrong in one runtime is its row, not an
        exception.

    Raises:
        ArtifactError: unknown runtime; the manifest or the golden data is missing or damaged.
    """
    from tblock.runtimes.parity import check_artifact

    return check_artifact(
        folder,
        runtimes,
        provider=provider,
        threads=threads,
        plugin_library=plugin_library,
        cuda_graph=cuda_graph,
        timeout=timeout,
        progress=progress,
    )


def bench(
    folder: str | Path,
    runtimes: Sequence[str] | None = None,
    *,
    shapes: Sequence[Mapping[str, int]] | None = None,
    provider: str | None = None,
    threads: int | None = None,
    plugin_library: str | None = None,
    cuda_graph: bool | None = None,
    seconds: float = 1.0,
    timeout: float = 900.0,
    progress: Callable[[str], None] | None = None,
) -> list[BenchRow]:
    """Time each runtime at each shape, in a process of its own that first passes its own check.

    Args:
        folder: the artifact.
        runtimes: keys of RUNTIMES; None: all whose target is in the artifact.
        shapes: letter to size, for example `{"B": 1, "S": 128}`; None: the optimum of the declared ranges.
        provider: for the runtimes that know it (onnxruntime, eager, compile).
        threads: CPU threads, the same for every runtime; None: the CPUs this process may use.
        plugin_library, cuda_graph: for TensorRT, as in `load`.
        seconds: spent measuring one runtime at one shape, after warm-up.
        timeout: seconds for one runtime, check included.
        progress: called with a line when a runtime starts.

    Returns:
        One row for each runtime and shape; a row of a runtime that failed its check, or could not run, has no
        times.

    Raises:
        ArtifactError: unknown runtime, a shape outside the ranges; the manifest or the golden data is
            damaged.
    """
    from tblock.runtimes.latency import bench_artifact

    return bench_artifact(
        folder,
        runtimes,
        shapes=shapes,
        provider=provider,
        threads=threads,
        plugin_library=plugin_library,
        cuda_graph=cuda_graph,
        seconds=seconds,
        timeout=timeout,
        progress=progress,
    )
