"""Native code in a process of its own: a crash, a hang or an abort there is one line here.

Owns the protocol: one job as JSON on the child's stdin, one answer as JSON on its stdout, progress and last
words on its stderr. `ask` is the parent's side, `serve` and `say` the child's. Imports only the standard
library, so that a child can start before anything heavy is loaded.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from tblock import errors
from tblock.errors import ExportError, TblockError, reason

_PROGRESS = "@tblock "
"""In front of a line of stderr that says what the child is doing."""

_KEPT_LINES = 40
_TELLING = ("Error", "error:", "[E]", "[F]", "what():", "terminate")
_SET_PARENT_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of linux/prctl.h."""


class ChildFailure(ExportError):
    """The child gave no answer: it crashed, hung, or said something that is not JSON (exit 4)."""


def ask(
    module: str,
    job: Mapping[str, Any],
    *,
    timeout: float,
    title: str = "",
    progress: Callable[[str], None] | None = None,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run `python -m module` on a job.

    Args:
        module: whose main calls `serve`.
        job: JSON-ready.
        timeout: until the child and all it started are killed (seconds).
        title: in front of messages, such as `tensorrt-rtx`.
        progress: gets each line the child says.
        environment: variables added to this process's.

    Returns:
        Its answer.

    Raises:
        ChildFailure: no answer; one line with how it ended, what it was doing and its last words.
        TblockError: as raised in the child.
    """
    where = f"{title}: " if title else ""
    # -P: a user's torch.py in the current folder must not be imported. The environment is the child's own.
    with subprocess.Popen(
        [sys.executable, "-P", "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **(environment or {})},
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    ) as process:
        talk = _Talk(process, json.dumps(job), progress)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise ChildFailure(
                f"{where}no answer after {timeout:g} s while {talk.doing}; stopped "
                "(raise the timeout to wait longer)"
            ) from None
        finally:
            _kill(process)
            talk.end()
    if code != 0:
        raise ChildFailure(f"{where}{_how_it_ended(code)} while {talk.doing}{talk.last_words()}")
    try:
        answer = json.loads(talk.answer)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise ChildFailure(
            f"{where}the answer is not a JSON object ({talk.answer[:80]!r}){talk.last_words()}"
        )
    if "error" in answer:
        kind = getattr(errors, answer["error"]["type"], ExportError)
        raise (kind if issubclass(kind, TblockError) else ExportError)(answer["error"]["message"])
    return answer


def serve(work: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer the one job on stdin.

    stdout is kept for the answer: what libraries print there, from C++ too, goes to stderr. An error of ours
    is raised again in the parent; any other becomes an ExportError, its traceback the last words.

    Args:
        work: job to answer, both JSON-ready.
    """
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        _die_with_parent()
        try:
            answer = work(json.load(sys.stdin))
        except TblockError as error:
            answer = {"error": {"type": type(error).__name__, "message": str(error)}}
        except Exception as error:
            traceback.print_exc()
            line = f"{type(error).__name__}: {reason(error)}"
            answer = {"error": {"type": ExportError.__name__, "message": line}}
        out.write(json.dumps(answer))


def say(line: str) -> None:
    """Tell the parent what is being done."""
    print(f"{_PROGRESS}{line}", file=sys.stderr, flush=True)


class _Talk:
    """The three pipes of a child, each served by a thread so that none of them can block another."""

    def __init__(
        self, process: "subprocess.Popen[str]", job: str, progress: Callable[[str], None] | None
    ) -> None:
        self.doing, self.answer = "starting", ""
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._progress = progress
        parts: tuple[tuple[Callable[..., None], Any], ...] = (
            (self._send, (process.stdin, job)),
            (self._receive, (process.stdout,)),
            (self._listen, (process.stderr,)),
        )
        self._threads = [threading.Thread(target=part, args=args, daemon=True) for part, args in parts]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Wait for what is still in the pipes."""
        for thread in self._threads:
            thread.join(timeout=10)

    def last_words(self) -> str:
        """The last line that names an error, or else the last three."""
        telling = [line for line in self._lines if any(mark in line for mark in _TELLING)]
        words = " | ".join(telling[-1:] or list(self._lines)[-3:])
        return f"; its last words: {words[:500]}" if words else ""

    def _send(self, pipe: Any, job: str) -> None:
        # A child that died before it read: how it ended says more than the broken pipe.
        with contextlib.suppress(OSError, ValueError), pipe:
            pipe.write(job)

    def _receive(self, pipe: Any) -> None:
        with contextlib.suppress(ValueError):
            self.answer = pipe.read()

    def _listen(self, pipe: Any) -> None:
        with contextlib.suppress(ValueError):
            for raw in pipe:
                line = raw.rstrip()
                if line.startswith(_PROGRESS):
                    self.doing = line.removeprefix(_PROGRESS)
                    if self._progress:
                        self._progress(self.doing)
                elif line.strip():
                    self._lines.append(line.strip())


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"its process ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"its process was killed by {name}"


def _kill(process: "subprocess.Popen[str]") -> None:
    """The child and the compilers it may have started, also those that outlived it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _die_with_parent() -> None:
    """A killed parent must not leave a builder running for an hour (Linux; elsewhere it does)."""
    parent = os.getppid()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
