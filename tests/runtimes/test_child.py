"""The process of one runtime: whatever becomes of it, the parent has one line."""

import os
import sys
import time

import pytest

from tblock.runtimes import check
from tblock.runtimes.child import ChildFailure, ask


def python(monkeypatch, code):
    monkeypatch.setattr("tblock.runtimes.child.COMMAND", (sys.executable, "-c", code))


ENDINGS = {
    "abort": ("import os; os.abort()", "its process was killed by SIGABRT"),
    "segfault": (
        "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
        "its process was killed by SIGSEGV",
    ),
    "exit-7": ("raise SystemExit(7)", "its process ended with exit code 7"),
    "last-words": (
        "import sys; print('one\\n\\ntwo\\nthree\\nfour', file=sys.stderr); sys.exit(1)",
        "its process ended with exit code 1; its last words: two | three | four",
    ),
    "no-answer": ("pass", "the answer is not JSON ('')"),
    "noise": ("print('hello')", "the answer is not JSON ('hello\\n')"),
    "not-an-object": ("print('[1]')", "the answer is not a JSON object ('[1]\\n')"),
}


@pytest.mark.parametrize("case", ENDINGS)
def test_child_that_ends_badly_is_one_line(monkeypatch, case):
    code, message = ENDINGS[case]
    python(monkeypatch, code)
    with pytest.raises(ChildFailure) as error:
        ask({}, timeout=60)
    assert str(error.value) == message


def test_child_that_hangs_is_killed_with_its_children(monkeypatch, tmp_path):
    """A grandchild holds the writing end of a pipe: its end is the pipe's end, however long that takes."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    grandchild = f"import os, time; os.write(os.open({str(pipe)!r}, os.O_WRONLY), b'up'); time.sleep(120)"
    python(
        monkeypatch,
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-S', '-c', {grandchild!r}])\n"
        "time.sleep(120)",
    )
    start = time.monotonic()
    with pytest.raises(ChildFailure, match=r"no answer after 5 s, killed"):
        ask({}, timeout=5)
    os.set_blocking(reader, True)
    assert os.read(reader, 10) == b"up"
    assert os.read(reader, 10) == b""
    os.close(reader)
    assert time.monotonic() - start < 100


def test_crash_is_the_row_of_that_runtime_alone(odd16, monkeypatch):
    python(monkeypatch, "import os; os.abort()")
    rows = check(odd16, ["onnxruntime", "aoti"])
    assert [(row.runtime, row.status, row.exit_code) for row in rows] == [
        ("onnxruntime", "ERROR", 4),
        ("aoti", "NOT BUILT", 2),
    ]
    assert rows[0].reason == "its process was killed by SIGABRT"


def test_answer_survives_what_a_runtime_prints(odd16, tmp_path, monkeypatch):
    """Also from C, past Python's stdout."""
    noisy = (
        "import os\n"
        "import tblock.runtimes.worker as worker\n"
        "answer = worker.answer\n"
        "def loud(job):\n"
        "    print('printed'); os.write(1, b'written\\n')\n"
        "    return answer(job)\n"
        "worker.answer = loud\n"
        "worker.main()\n"
    )
    python(monkeypatch, noisy)
    (row,) = check(odd16, ["onnxruntime"])
    assert row.status == "PASS", row.reason
