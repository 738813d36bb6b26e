"""`tblock bench`: time an artifact on every runtime that passes its check."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tblock.cli import output, spelling
from tblock.cli.check import print_notes
from tblock.errors import ConfigError

if TYPE_CHECKING:
    from tblock.runtimes import BenchRow


def run(
    folder: Annotated[Path, typer.Argument(help="The artifact folder.")],
    runtimes: Annotated[
        str | None,
        typer.Option("--runtime", "--runtimes", help="Comma list, or all; default all that can run."),
    ] = None,
    shapes: Annotated[
        str | None, typer.Option(help="Comma list of BxS, such as 1x128,4x32; default the optimum.")
    ] = None,
    provider: Annotated[
        str | None, typer.Option(help="cpu, cuda, ... for onnxruntime; never falls back.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads of each runtime.")] = None,
    seconds: Annotated[float, typer.Option(help="Spent measuring each runtime at each shape.")] = 1.0,
    plugin_library: Annotated[
        Path | None, typer.Option("--plugin-library", "--dynamicPlugins", help="For plugin engines.")
    ] = None,
    cuda_graph: Annotated[bool, typer.Option("--cuda-graph", help="For TensorRT.")] = False,
    json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Time an artifact: median and p90 of each runtime and shape, after it passed its own check."""
    from tblock.runtimes import bench, exit_code

    if seconds <= 0:
        raise ConfigError(f"--seconds {seconds:g}: must be above 0")
    names = spelling.names(runtimes) if runtimes else None
    sizes = [_shape(text) for text in spelling.names(shapes)] if shapes else None
    rows = bench(
        folder,
        names,
        shapes=sizes,
        provider=provider,
        plugin_library=spelling.plugin_library(plugin_library),
        cuda_graph=cuda_graph or None,
        threads=threads,
        seconds=seconds,
        progress=output.progress,
    )
    if json:
        output.print_json([row.to_dict() for row in rows])
    else:
        header = [
            "runtime",
            "case",
            "check",
            ">median",
            ">p10",
            ">p90",
            ">calls",
            ">GFLOP/s",
            "device or why not",
        ]
        output.print_table(header, [_cells(row) for row in rows])
        print_notes(rows)
        print("\n".join(dict.fromkeys(f"timed: {row.covers}" for row in rows if row.covers)))
    named = names is not None and "all" not in names
    code = exit_code(rows, asked=named or provider is not None)
    if code:
        raise typer.Exit(code)


def _shape(text: str) -> dict[str, int]:
    found = re.fullmatch(r"(\d+)x(\d+)", text, re.ASCII)
    if found is None:
        raise ConfigError(f"--shapes {text!r}: wanted BxS, such as 1x128")
    return {"B": int(found[1]), "S": int(found[2])}


def milliseconds(seconds: float | None) -> str:
    """A time with three digits that count."""
    return "-" if seconds is None else f"{seconds * 1e3:.3g} ms"


def _cells(row: "BenchRow") -> list[str]:
    speed = "-" if row.median_s is None else f"{row.flops / row.median_s / 1e9:.1f}"
    times = [milliseconds(t) for t in (row.median_s, row.p10_s, row.p90_s)]
    return [row.runtime, row.case, row.status, *times, str(row.iterations), speed, row.reason or row.device]
