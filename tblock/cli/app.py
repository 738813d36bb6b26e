"""The typer application: verbs by name, each loaded only when it is called."""

import importlib
from typing import Any

import typer

from tblock.cli.verbs import Verbs

VERBS = {
    "demo": "Export a small block, run it everywhere this machine can, print one table.",
    "export": "Export a block to an artifact folder.",
    "build": "Build a TensorRT or TensorRT-RTX engine from an ONNX file.",
    "check": "Run an artifact on the runtimes of its targets and judge it against float64.",
    "bench": "Time an artifact on the runtimes of its targets that pass their check.",
    "inspect": "Say what an artifact holds.",
    "list": "List presets, families or runtimes.",
    "plugin": "Build, list or locate the TensorRT plugin library.",
    "doctor": "Say what is installed, what is missing and what brings it.",
}
"""Verb to its help line; the code is in `tblock.cli.<verb>`, function `run` (module `list_` for list)."""


class _TopVerbs(Verbs):
    """Loads a verb's module when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in VERBS:
            return None
        return _command(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))


def _command(verb: str) -> Any:
    module = importlib.import_module(f"tblock.cli.{verb}_" if verb == "list" else f"tblock.cli.{verb}")
    if hasattr(module, "app"):
        command: Any = typer.main.get_command(module.app)
    else:
        single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        single.command(name=verb, help=module.run.__doc__)(module.run)
        command = typer.main.get_command(single)
    command.name, command.help = verb, VERBS[verb]
    return command


app = typer.Typer(
    cls=_TopVerbs,
    name="tblock",
    help="Write a transformer block once, ship it to every runtime, know that it is right and how fast.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from tblock import __version__

        print(f"tblock {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Version."),
) -> None:
    pass
