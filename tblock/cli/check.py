"""`tblock check`: run an artifact on every runtime and judge it against float64."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tblock.cli import output, spelling

if TYPE_CHECKING:
    from tblock.runtimes import CheckRow

ABSENT = ("UNAVAILABLE", "NOT BUILT")
"""Statuses that are no failure unless the runtime was asked for by name."""


def run(
    folder: Annotated[Path, typer.Argument(help="The artifact folder.")],
    runtimes: Annotated[
        str | None, typer.Option("--runtime", "--runtimes", help="Comma list; default all.")
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
    """Run an artifact on every runtime, one process each, and judge it against float64."""
    from tblock.runtimes import check

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
    code = exit_code(rows, asked=names is not None or provider is not None)
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


def exit_code(rows: Sequence["CheckRow"], *, asked: bool) -> int:
    """What a check exits with: 1 where parity was missed, otherwise the highest of its rows.

    Args:
        rows: of the check.
        asked: whether the runtimes were named; then an absent one counts.
    """
    if not any(row.passed or row.status not in ABSENT for row in rows):
        asked = True  # Nothing ran at all: that must not look like a pass.
    codes = [row.exit_code for row in rows if asked or row.status not in ABSENT]
    return 1 if 1 in codes else max(codes, default=0)
