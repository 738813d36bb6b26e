"""Groups of verbs that name the known ones when given another, and a parser that complains in one line."""

from typing import Any

import typer
import typer.core

from tblock.errors import ConfigError

_COMPLAINT: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")
"""Base of what typer's parser raises; typer exports only the classes below it."""


class Verbs(typer.core.TyperGroup):
    """A command group."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Raises ConfigError for an unknown verb."""
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-"):
            raise ConfigError(f"{args[0]!r} is not a verb of {ctx.command_path}; known: {', '.join(known)}")
        return super().resolve_command(ctx, args)


def call(app: typer.Typer) -> int:
    """Run the application on the process's arguments.

    Returns:
        The exit code.

    Raises:
        ConfigError: the parser's complaint, as one line.
    """
    try:
        code = app(standalone_mode=False, prog_name="tblock")
    except typer.Abort:
        return 130
    except _COMPLAINT as complaint:
        if "Help" in type(complaint).__name__:
            complaint.show()
            return int(complaint.exit_code)
        where = complaint.ctx.command_path if getattr(complaint, "ctx", None) else "tblock"
        message = " ".join(complaint.format_message().split()).rstrip(".")
        raise ConfigError(f"{message}; see {where} --help") from None
    return code if isinstance(code, int) else 0
