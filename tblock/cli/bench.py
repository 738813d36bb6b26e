"""`tblock bench`: time an artifact on the runtimes of its targets that pass their check."""

import math
import re
from typing import TYPE_CHECKING, Annotated

import typer

from tblock.cli import output, running, spelling
from tblock.errors import ConfigError

if TYPE_CHECKING:
    from tblock.runtimes import BenchRow

HEADER = [
    *("runtime", "case", "check", ">median", ">p10", ">p90"),
    *(">calls", ">GFLOP/s", "device or why not"),
]


def run(
    folder: running.Folder,
    runtimes: running.Runtimes = None,
    shapes: Annotated[
        str | None, typer.Option(help="Comma list of BxS, such as 1x128,4x32; default the optimum.")
    ] = None,
    provider: running.Provider = None,
    threads: running.Threads = None,
    seconds: Annotated[float, typer.Option(help="Spent measuring each runtime at each shape.")] = 1.0,
    plugin_library: running.PluginLibrary = None,
    cuda_graph: running.CudaGraph = False,
    json: running.Json = False,
) -> None:
    """Time an artifact: median and p90 of each runtime and shape, after it passed its own check."""
    from tblock.runtimes import bench

    if not 0 < seconds < math.inf:
        raise ConfigError(f"--seconds {seconds:g}: must be above 0 and finite")
    sizes = [_shape(text) for text in spelling.names(shapes)] if shapes else None
    given = running.asked(
        folder,
        runtimes,
        provider=provider,
        threads=threads,
        plugin_library=plugin_library,
        cuda_graph=cuda_graph,
    )
    rows = bench(folder, shapes=sizes, seconds=seconds, **given)
    if json:
        output.print_json([row.to_dict() for row in rows])
    else:
        output.print_table(HEADER, [_cells(row) for row in rows])
        running.print_notes(rows)
        print("\n".join(dict.fromkeys(f"timed: {row.covers}" for row in rows if row.covers)))
    running.finish(rows, given)


def _shape(text: str) -> dict[str, int]:
    found = re.fullmatch(r"(\d+)x(\d+)", text, re.ASCII)
    if found is None:
        raise ConfigError(f"--shapes {text!r}: wanted BxS, such as 1x128")
    return {"B": int(found[1]), "S": int(found[2])}


def _cells(row: "BenchRow") -> list[str]:
    speed = "-" if row.median_s is None else f"{row.flops / row.median_s / 1e9:.1f}"
    times = [running.milliseconds(t) for t in (row.median_s, row.p10_s, row.p90_s)]
    return [row.runtime, row.case, row.status, *times, str(row.iterations), speed, row.reason or row.device]
