"""The command line: `tblock <verb>`, one file per verb.

Results go to stdout, progress to stderr. Exit codes: 0 fine, 1 parity missed, 2 wrong use, 3 runtime
missing, 4 export or build failed. Every room is imported inside the verbs, so that `tblock --help` answers
at once.
"""

import sys

from tblock.errors import RuntimeUnavailable, TblockError


def main() -> None:
    """Entry point of the console script."""
    from tblock.cli.app import app

    try:
        app(standalone_mode=True, prog_name="tblock")
    except TblockError as error:
        print(f"tblock: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        from tblock.cli.doctor import extra_of

        package = (error.name or "").partition(".")[0]
        extra = extra_of(package)
        if extra is None:
            raise
        print(f"tblock: {package} is not installed; pip install 'tblock[{extra}]'", file=sys.stderr)
        sys.exit(RuntimeUnavailable.exit_code)
