"""`tblock list`: presets, families or runtimes."""

from enum import StrEnum
from typing import Annotated

import typer

from tblock.cli import output, running


class What(StrEnum):
    """What can be listed."""

    presets = "presets"
    families = "families"
    runtimes = "runtimes"


def run(
    what: Annotated[What, typer.Argument(help="presets, families or runtimes.")],
    json: running.Json = False,
) -> None:
    """List presets, families or runtimes."""
    header, rows = {"presets": _presets, "families": _families, "runtimes": _runtimes}[what.value]()
    if json:
        names = [name.removeprefix(">") for name in header]
        output.print_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        output.print_table(header, rows)
        if what.value == "families":
            from tblock.checkpoints.matrix import matrix_caption

            print(matrix_caption())


def _presets() -> tuple[list[str], list[list[str]]]:
    from tblock.presets import PRESETS

    rows = [
        [name, str(c.dim), str(c.num_heads), str(c.num_kv_heads), str(c.ffn_dim), str(c.num_layers),
         f"{c.norm_position}-{c.norm}", c.ffn, output.number(c.parameter_count())]
        for name, c in PRESETS.items()
    ]  # fmt: skip
    return ["preset", ">D", ">H", ">K", ">F", ">L", "norm", "FFN", ">parameters per block"], rows


def _runtimes() -> tuple[list[str], list[list[str]]]:
    from tblock.cli.doctor import package_version
    from tblock.runtimes import RUNTIMES

    rows = [
        [
            name,
            row.target or "(config and weights)",
            package_version(row.package) or "not installed",
            row.extra,
        ]
        for name, row in RUNTIMES.items()
    ]
    return ["runtime", "reads target", "version here", "extra"], rows


def _families() -> tuple[list[str], list[list[str]]]:
    from tblock.checkpoints.matrix import matrix_rows

    rows = matrix_rows()
    return list(rows[0]), [list(row.values()) for row in rows]
