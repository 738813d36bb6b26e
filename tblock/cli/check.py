"""`tblock check`: run an artifact on the runtimes of its targets and judge it against float64."""

from typing import TYPE_CHECKING

from tblock.cli import output, running

if TYPE_CHECKING:
    from tblock.runtimes import CheckRow

HEADER = ["runtime", "verdict", ">of budget", ">error", ">eager's error", "shapes", "where or why not"]


def run(
    folder: running.Folder,
    runtimes: running.Runtimes = None,
    provider: running.Provider = None,
    threads: running.Threads = None,
    plugin_library: running.PluginLibrary = None,
    cuda_graph: running.CudaGraph = False,
    json: running.Json = False,
) -> None:
    """Run an artifact on its runtimes, one process each, and judge it against float64."""
    from tblock.runtimes import check

    given = running.asked(
        folder,
        runtimes,
        provider=provider,
        threads=threads,
        plugin_library=plugin_library,
        cuda_graph=cuda_graph,
    )
    rows = check(folder, **given)
    if json:
        output.print_json([row.to_dict() for row in rows])
    else:
        output.print_table(HEADER, [_cells(row) for row in rows])
        running.print_notes(rows)
    running.finish(rows, given)


def _cells(row: "CheckRow") -> list[str]:
    return [
        row.runtime,
        row.status,
        running.number(row.ratio, ".2f"),
        running.number(row.error, ".2e"),
        running.number(row.eager_error, ".2e"),
        ", ".join(shape.replace(" ", "") for shape in row.shapes),
        row.reason or row.where,
    ]
