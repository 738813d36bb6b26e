"""`tblock plugin`: build, list or locate the TensorRT plugin library."""

from pathlib import Path
from typing import Annotated, Any

import typer

from tblock.cli import output, running
from tblock.cli.verbs import Verbs
from tblock.errors import ExportError

app = typer.Typer(
    cls=Verbs,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)


@app.command()
def build(
    library: Annotated[
        Path | None, typer.Option("-o", "--output", help="Default: the per-user cache.")
    ] = None,
    cubins: Annotated[
        str, typer.Option(help="Architectures that get machine code, such as 90,120.")
    ] = "90,120",
    force: Annotated[bool, typer.Option("--force", help="Even where the cache has it.")] = False,
    json: running.Json = False,
) -> None:
    """Build the library: no GPU, no nvcc and no TensorRT needed."""
    from tblock.export import plugins
    from tblock.export.plugins import architectures

    chosen = architectures.parse(cubins)
    _print_path("library", plugins.build(library, cubins=chosen, force=force, report=output.progress), json)


@app.command(name="list")
def list_(
    every: Annotated[bool, typer.Option("--all", help="Each kernel variant on a line of its own.")] = False,
    json: running.Json = False,
) -> None:
    """Say what the library holds: creators, and the kernel variants with their resources."""
    from tblock.export import plugins

    path = _library()
    table = plugins.read_table(path)
    if json:
        output.print_json({"library": str(path), "table": table})
        return
    print(path)
    for creator in table["creators"]:
        print(f"creator {creator['name']}, namespace {creator['namespace']}, version {creator['version']}")
    rows = table["variants"]
    if every:
        header = list(rows[0])
        output.print_table(header, [[str(row[name]) for name in header] for row in rows])
        return
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["op"], row["dtype"], f"sm_{row['arch']}"), []).append(row)
    counts = ("registers", "shared_bytes", "spill_bytes", "vector_bytes")
    header = ["op", "dtype", "arch", ">variants", *(f">most {name.replace('_', ' ')}" for name in counts)]
    output.print_table(
        header,
        [
            [*group, str(len(members)), *(str(max(member[name] for member in members)) for name in counts)]
            for group, members in groups.items()
        ],
    )


@app.command()
def path(json: running.Json = False) -> None:
    """Print where the library is."""
    _print_path("library", _library(), json)


@app.command()
def wheel(
    folder: Annotated[Path, typer.Option("-o", "--output", help="Where the wheel goes.")] = Path("dist"),
    source: Annotated[Path, typer.Option(help="tblock's source tree.")] = Path(),
    json: running.Json = False,
) -> None:
    """Build a platform wheel of tblock that carries the library."""
    from tblock.export.plugins.wheel import build_wheel

    _print_path("wheel", build_wheel(source, folder, report=output.progress), json)


def _print_path(what: str, path: Path, json: bool) -> None:
    if json:
        output.print_json({what: str(path)})
    else:
        print(path)


def _library() -> Path:
    from tblock.export import plugins

    found = plugins.library_path()
    if found is None:
        raise ExportError("no plugin library here; `tblock plugin build` makes one")
    return found
