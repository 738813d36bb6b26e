"""The builder's process: TensorRT may abort or hang, and then the caller gets a line, not a dead interpreter.

Request as JSON on stdin, answer as JSON in a file (TensorRT prints to both stdout and stderr), lines that
start with `PROGRESS` for people. Knows nothing of what is asked.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tblock import errors
from tblock.errors import ExportError, TblockError

COMMAND = (sys.executable, "-P", "-m", "tblock.export.engine.worker")
"""-P: a user's onnx.py in the current folder must not be imported."""

PROGRESS = "@tblock "
"""Prefix of a line that says what the child is doing."""

_KEPT_LINES = 40


def ask(request: Mapping[str, Any], *, title: str, timeout: float, progress: bool) -> dict[str, Any]:
    """Run one request in a child process.

    Args:
        request: JSON-ready.
        title: in front of messages and progress, such as `tensorrt-rtx`.
        timeout: until the child is killed (seconds).
        progress: copy its progress to stderr.

    Returns:
        The answer.

    Raises:
        ExportError: the child crashed, hung or gave no answer; or as raised there.
        TblockError: as raised there.
    """
    with tempfile.TemporaryDirectory(prefix="tblock-engine-") as folder:
        response = Path(folder, "response.json")
        listener = _Listener(title, progress)
        with subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        ) as process:
            reader = threading.Thread(target=listener.listen, args=(process.stdout,), daemon=True)
            reader.start()
            try:
                _send(process, {**request, "response": str(response)})
                code = process.wait(timeout)
                reader.join(timeout=10)
            except subprocess.TimeoutExpired:
                raise ExportError(
                    f"{title}: no answer after {timeout:g} s while {listener.doing}; stopped "
                    "(raise the timeout to wait longer)"
                ) from None
            finally:
                _kill(process)
        try:
            answer = json.loads(response.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise ExportError(
                f"{title}: {_how_it_ended(code)} while {listener.doing}{listener.last_words()}"
            ) from None
    if "error" in answer:
        kind = getattr(errors, answer["error"]["type"], ExportError)
        raise (kind if issubclass(kind, TblockError) else ExportError)(answer["error"]["message"])
    return answer


class _Listener:
    """Reads what a child says until it closes its end."""

    def __init__(self, title: str, progress: bool) -> None:
        self.title = title
        self.progress = progress
        self.doing = "starting"
        self.lines: deque[str] = deque(maxlen=_KEPT_LINES)

    def listen(self, stream: Any) -> None:
        for line in stream:
            text = line.rstrip()
            if text.startswith(PROGRESS):
                self.doing = text.removeprefix(PROGRESS)
                if self.progress:
                    print(f"{self.title}: {self.doing}", file=sys.stderr, flush=True)
            elif text:
                self.lines.append(text)

    def last_words(self) -> str:
        """The most telling of the last lines: an error if there is one."""
        marks = ("Error", "[E]", "[F]", "what():", "terminate")
        telling = [line for line in self.lines if any(mark in line for mark in marks)] or list(self.lines)
        return f"; its last words: {telling[-1][:300]}" if telling else ""


def _send(process: subprocess.Popen[str], request: Mapping[str, Any]) -> None:
    assert process.stdin is not None
    try:
        json.dump(request, process.stdin)
        process.stdin.close()
    except BrokenPipeError:
        # It died before it read: how it ended says more than this.
        pass


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"the builder process ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"the builder process was ended by {name}"


def _kill(process: subprocess.Popen[str]) -> None:
    if process.poll() is not None:
        return
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()
