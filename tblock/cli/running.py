"""What check and bench are asked alike: options, the check's columns, notes and the exit code."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tblock.cli import output, spelling

if TYPE_CHECKING:
    from tblock.runtimes import BenchRow, CheckRow

Folder = Annotated[Path, typer.Argument(help="The artifact folder.")]
Runtimes = Annotated[
    str | None,
    typer.Option("--runtime", "--runtimes", help="Comma list, or all; default those of its targets."),
]
Provider = Annotated[str | None, typer.Option(help="cpu, cuda, ... for onnxruntime; never falls back.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads of each runtime.")]
PluginLibrary = Annotated[
    Path | None, typer.Option("--plugin-library", "--dynamicPlugins", help="For plugin engines.")
]
CudaGraph = Annotated[bool, typer.Option("--cuda-graph", help="For TensorRT.")]
Json = Annotated[bool, typer.Option("--json", help="For machines.")]


def asked(
    folder: Path,
    runtimes: str | None,
    *,
    provider: str | None,
    threads: int | None,
    plugin_library: Path | None,
    cuda_graph: bool,
) -> dict[str, Any]:
    """The options as the runtimes room takes them.

    The plugin library is the one given, or that of this machine where an engine of the artifact needs it.
    """
    from tblock.export.engine.options import library_for
    from tblock.manifest import read_artifact

    library = str(plugin_library) if plugin_library else library_for(read_artifact(folder).manifest.targets)
    return {
        "runtimes": spelling.names(runtimes) if runtimes else None,
        "provider": provider,
        "threads": threads,
        "plugin_library": library,
        "cuda_graph": cuda_graph or None,
        "progress": output.progress,
    }


def finish(rows: "Sequence[CheckRow | BenchRow]", given: dict[str, Any]) -> None:
    """Leave with what the rows exit with; a runtime that was named, or a provider, must be there."""
    from tblock.runtimes import exit_code

    names = given["runtimes"]
    named = names is not None and "all" not in names
    code = exit_code(rows, asked=named or given["provider"] is not None)
    if code:
        raise typer.Exit(code)


def number(value: float | None, form: str) -> str:
    """A figure, or a dash where there is none."""
    return "-" if value is None else format(value, form)


def milliseconds(seconds: float | None) -> str:
    """A time with three digits that count."""
    return "-" if seconds is None else f"{seconds * 1e3:.3g} ms"


def print_notes(rows: "Iterable[CheckRow | BenchRow]") -> None:
    """What the rows' figures do not cover, each line once with the runtimes that it is of."""
    runtimes: dict[str, list[str]] = {}
    for row in rows:
        for note in row.notes:
            runtimes.setdefault(note, []).append(row.runtime)
    for note, names in runtimes.items():
        print(f"note: {', '.join(dict.fromkeys(names))}: {note}")
