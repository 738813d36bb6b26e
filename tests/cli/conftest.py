"""The command line in this process: arguments in, exit code and both streams out."""

import sys
from typing import Any

import pytest

from tests.cli.outcome import Outcome, Run


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run("list", "presets")`."""
    from tblock.cli import main

    def call(*words: Any) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["tblock", *map(str, words)])
        capfd.readouterr()
        code: Any = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code
        captured = capfd.readouterr()
        return Outcome(int(code or 0), captured.out, captured.err)

    return call
