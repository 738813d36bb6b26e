"""The command line: `tblock <verb>`, one file per verb.

Results go to stdout, progress to stderr. Exit codes: 0 fine, 1 parity missed, 2 wrong use, 3 runtime
missing, 4 export or build failed, 70 a fault of ours. Every room is imported inside the verbs, so that
`tblock --help` answers at once.
"""

import os
import signal
import sys

from tblock.errors import ExportError, RuntimeUnavailable, TblockError

INTERNAL_ERROR = 70
"""Exit code of a fault of ours (sysexits.h EX_SOFTWARE)."""

TRACEBACK = "TBLOCK_TRACEBACK"
"""Environment variable: raise such a fault with its traceback."""


def main() -> None:
    """Entry point of the console script."""
    from tblock.cli.app import app
    from tblock.cli.streams import guard, require_written
    from tblock.cli.verbs import call

    out = guard()
    # Folders being written are removed on the way out, as for any other error.
    for number in (signal.SIGTERM, signal.SIGHUP):
        # Under nohup a hang-up is ignored, and stays so.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda caught, _: sys.exit(128 + caught))
    try:
        code = call(app)
        if code == 0:
            require_written(out)
        sys.exit(code)
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
    except MemoryError as error:
        print(f"tblock: out of memory ({error or 'no size given'}); make the block smaller", file=sys.stderr)
        sys.exit(ExportError.exit_code)
    except Exception as error:
        # A crash must not look like exit 1, which says that parity was missed.
        if os.environ.get(TRACEBACK):
            raise
        what = f"{type(error).__name__}: {' '.join(str(error).split())}"
        print(f"tblock: internal error, please report it: {what}; {TRACEBACK}=1 shows where", file=sys.stderr)
        sys.exit(INTERNAL_ERROR)
