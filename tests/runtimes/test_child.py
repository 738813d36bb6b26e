"""A process of its own: whatever becomes of it, the parent has one line."""

import os
import time

import pytest

from tblock.child import ChildFailure, ask
from tblock.errors import ConfigError, ExportError
from tblock.runtimes import check


@pytest.fixture
def child(tmp_path):
    """`child(code, timeout)`: ask a module of this code."""

    def run(code, timeout=60, **more):
        (tmp_path / "child_under_test.py").write_text(code)
        path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        return ask("child_under_test", {}, timeout=timeout, environment={"PYTHONPATH": path}, **more)

    return run


SERVE = "from tblock.child import serve, say\nfrom tblock.errors import ConfigError\n"
ENDINGS = {
    "abort": ("import os; os.abort()", "its process was killed by SIGABRT while starting"),
    "segfault": (
        "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
        "its process was killed by SIGSEGV while starting",
    ),
    "exit-7": ("raise SystemExit(7)", "its process ended with exit code 7 while starting"),
    "last-words": (
        "import sys; print('one\\n\\ntwo\\nthree\\nfour', file=sys.stderr); sys.exit(1)",
        "its process ended with exit code 1 while starting; its last words: two | three | four",
    ),
    "what-it-did": (
        "from tblock.child import say; say('building'); raise SystemExit(7)",
        "its process ended with exit code 7 while building",
    ),
    "no-answer": ("pass", "the answer is not a JSON object ('')"),
    "noise": ("print('hello')", "the answer is not a JSON object ('hello\\n')"),
    "not-an-object": ("print('[1]')", "the answer is not a JSON object ('[1]\\n')"),
}


@pytest.mark.parametrize("case", ENDINGS)
def test_child_that_ends_badly_is_one_line(child, case):
    code, message = ENDINGS[case]
    with pytest.raises(ChildFailure) as error:
        child(code)
    assert str(error.value) == message


def test_child_raises_errors_of_ours_as_they_are_and_others_as_export_errors(child):
    with pytest.raises(ConfigError, match=r"^dim=0: no$"):
        child(SERVE + "def work(job): raise ConfigError('dim=0: no')\nserve(work)")
    with pytest.raises(ExportError, match=r"^ZeroDivisionError: division by zero$"):
        child(SERVE + "serve(lambda job: 1 / 0)")


def test_child_that_hangs_is_killed_with_its_children(child, tmp_path):
    """A grandchild holds the writing end of a pipe: its end is the pipe's end, however long that takes."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    grandchild = f"import os, time; os.write(os.open({str(pipe)!r}, os.O_WRONLY), b'up'); time.sleep(120)"
    code = (
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-S', '-c', {grandchild!r}])\n"
        "time.sleep(120)"
    )
    start = time.monotonic()
    with pytest.raises(ChildFailure, match=r"no answer after 3 s while starting; stopped"):
        child(code, timeout=3)
    os.set_blocking(reader, True)
    assert os.read(reader, 10) == b"up"
    assert os.read(reader, 10) == b""
    os.close(reader)
    assert time.monotonic() - start < 100


def test_crash_is_the_row_of_that_runtime_alone(odd16, monkeypatch, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import os; os.abort()")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    rows = check(odd16, ["onnxruntime", "aoti"])
    assert [(row.runtime, row.status, row.exit_code) for row in rows] == [
        ("onnxruntime", "ERROR", 4),
        ("aoti", "NOT BUILT", 2),
    ]
    assert rows[0].reason.startswith("onnxruntime: its process was killed by SIGABRT while starting")


def test_answer_survives_what_a_runtime_prints(child):
    """Also from C, past Python's stdout."""
    lines = []
    noise = "print('printed'); os.write(1, b'written\\n'); say('at work')"
    work = f"def work(job):\n    {noise}\n    return {{'a': 1}}\n"
    assert child("import os\n" + SERVE + work + "serve(work)", progress=lines.append) == {"a": 1}
    assert lines == ["at work"]
