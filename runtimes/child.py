"""One process per runtime: start it, hand it a job, take one JSON answer, make a line of every other end.

A runtime can crash, hang, or slow down what runs after it in the same process (DESIGN section 8, fact 3). The
job goes in on stdin and the answer comes out on stdout, both JSON; stderr is for people.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import Any

from tblock.errors import TblockError

# -P: the child must not import a user's torch.py because it lies in the current folder.
COMMAND = (sys.executable, "-P", "-m", "tblock.runtimes.worker")
STDERR_LINES = 3
"""Of a dead child's last words, how many go into the error."""


class ChildFailure(TblockError):
    """The child gave no answer: it crashed, hung or said something that is not JSON (exit 4)."""

    exit_code = 4


def ask(job: dict[str, Any], *, timeout: float) -> dict[str, Any]:
    """Run `python -m tblock.runtimes.worker` on a job.

    Args:
        job: JSON-ready; see tblock.runtimes.worker.
        timeout: seconds until the child and what it started are killed.

    Returns:
        Its answer.

    Raises:
        ChildFailure: one line with the exit code or signal and the end of its stderr.
    """
    with subprocess.Popen(
        COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(json.dumps(job), timeout=timeout)
        except subprocess.TimeoutExpired:
            raise ChildFailure(f"no answer after {timeout:g} s, killed") from None
        finally:
            if process.poll() is None:
                _kill_group(process)
    if process.returncode != 0:
        raise ChildFailure(f"{_how_it_ended(process.returncode)}{_tail(err)}")
    try:
        answer = json.loads(out)
    except ValueError:
        raise ChildFailure(f"the answer is not JSON ({out[:80]!r}){_tail(err)}") from None
    if not isinstance(answer, dict):
        raise ChildFailure(f"the answer is not a JSON object ({out[:80]!r})")
    return answer


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"its process ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"its process was killed by {name}"


def _tail(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return f"; its last words: {' | '.join(lines[-STDERR_LINES:])}" if lines else ""


def _kill_group(process: subprocess.Popen[str]) -> None:
    """The child and the compilers it may have started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
