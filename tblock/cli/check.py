"""`tblock check`: run an artifact on every runtime and judge it against float64."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tblock.cli import output, spelling

if TYPE_CHECKING:
    from tblock.runtimes import BenchRow, CheckRow


def run(
    folder: Annotated[Path, typer.Argument(help="The artifact folder.")],
    runtimes: Annotated[
        str | None,
        typer.Option("--runtime", "--runtimes", help="Comma list, or all; default those of the targets."),
    ] = None,
    provider: Annotated[
        str | None, typer.Option(help="cpu, cuda, ... for onnxruntime; never falls back.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads of each runtime.")] = None,
    plugin_library: Annotated[
        Path | None, typer.Option("--plugin-library", "--dynamicPlugins", help="For plugin engines.")
    ] = None,
    cuda_graph: Annotated[bool, typer.Option("--cuda-graph", help="For TensorRT.")] = False,
    json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Run an artifact on its runtimes, one process each, and judge it against float64."""
    from tblock.runtimes import check, exit_code

    names = spelling.names(runtimes) if runtimes else None
    rows = check(
        folder,
        names,
        provider=provider,
        threads=threads,
        plugin_library=spelling.plugin_library(plugin_library),
        cuda_graph=cuda_graph or None,
        progress=output.progress,
    )
    if json:
        output.print_json([row.to_dict() for row in rows])
    else:
        header = [
            "runtime",
            "verdict",
            ">of budget",
            ">error",
            ">eager's error",
            "shapes",
            "where or why not",
        ]
        output.print_table(header, [cells(row) for row in rows])
        print_notes(rows)
    named = names is not None and "all" not in names
    code = exit_code(rows, asked=named or provider is not None)
    if code:
        raise typer.Exit(code)


def cells(row: "CheckRow") -> list[str]:
    """One row as texts."""
    return [
        row.runtime,
        row.status,
        number(row.ratio, ".2f"),
        number(row.error, ".2e"),
        number(row.eager_error, ".2e"),
        ", ".join(shape.replace(" ", "") for shape in row.shapes),
        row.reason or row.where,
    ]


def number(value: float | None, form: str) -> str:
    """A figure, or a dash where there is none."""
    return "-" if value is None else format(value, form)


def print_notes(rows: "Iterable[CheckRow | BenchRow]") -> None:
    """What the rows' figures do not cover, each line once with the runtimes that it is of."""
    runtimes: dict[str, list[str]] = {}
    for row in rows:
        for note in row.notes:
            runtimes.setdefault(note, []).append(row.runtime)
    for note, names in runtimes.items():
        print(f"note: {', '.join(dict.fromkeys(names))}: {note}")
