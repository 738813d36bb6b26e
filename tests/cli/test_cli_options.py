"""The options of every verb, frozen: to change this file is to change the command lines people have typed."""

import importlib
from typing import Any

import pytest
import typer

from tblock.cli.app import VERBS, _command, app
from tests.cli.outcome import Run

HIDDEN = {"--best", "--bf16", "--fp16", "--int8", "--noTF32", "--stronglyTyped"}
"""trtexec's flags that a strongly typed build explains or has on already."""

FROZEN: dict[str, set[str]] = {
    "": {"--help", "--version"},
    "demo": {"--dtype", "--json", "--output", "--preset", "-o"},
    "export": {
        "--batch",
        "--checkpoint",
        "--config",
        "--cpu",
        "--dtype",
        "--force",
        "--fusion",
        "--golden",
        "--json",
        "--layer",
        "--layers",
        "--no-golden",
        "--no-padding-mask",
        "--no-position-ids",
        "--no-verify",
        "--no-verify-import",
        "--verify-import",
        "--opset",
        "--output",
        "--padding-mask",
        "--position-ids",
        "--preset",
        "--seq",
        "--tf32",
        "--to",
        "--verify",
        "-o",
    },
    "build": {
        "--best",
        "--bf16",
        "--builder-flags",
        "--cache",
        "--compute-capabilities",
        "--dynamicPlugins",
        "--force",
        "--fp16",
        "--fusion",
        "--int8",
        "--noTF32",
        "--stronglyTyped",
        "--hardware-compatibility",
        "--json",
        "--maxShapes",
        "--minShapes",
        "--optShapes",
        "--output",
        "--plugin-library",
        "--runtime",
        "--saveEngine",
        "--tf32",
        "--timeout",
        "--version-compatible",
        "-o",
        "onnx",
    },
    "check": {
        "--cuda-graph",
        "--dynamicPlugins",
        "--json",
        "--plugin-library",
        "--provider",
        "--runtime",
        "--runtimes",
        "--threads",
        "folder",
    },
    "bench": {
        "--cuda-graph",
        "--dynamicPlugins",
        "--json",
        "--plugin-library",
        "--provider",
        "--runtime",
        "--runtimes",
        "--seconds",
        "--shapes",
        "--threads",
        "folder",
    },
    "inspect": {"--json", "--verify", "folder"},
    "list": {"--json", "what"},
    "plugin build": {"--cubins", "--force", "--json", "--output", "-o"},
    "plugin list": {"--all", "--json"},
    "plugin path": {"--json"},
    "plugin wheel": {"--json", "--output", "--source", "-o"},
    "doctor": {"--json"},
}


def options_of(command: Any) -> set[str]:
    """Every spelling of every option, and the names of arguments."""
    found = set()
    for parameter in command.params:
        found |= {*parameter.opts, *parameter.secondary_opts}
    return found


def commands() -> dict[str, Any]:
    """`verb` or `verb subverb` to its command."""
    found: dict[str, Any] = {}
    for verb in VERBS:
        command = _command(verb)
        inner = getattr(command, "commands", None)
        found |= {f"{verb} {name}": c for name, c in inner.items()} if inner else {verb: command}
    return found


def test_verbs_are_the_frozen_ones_in_order() -> None:
    assert list(VERBS) == ["demo", "export", "build", "check", "bench", "inspect", "list", "plugin", "doctor"]
    assert {name.split()[0] for name in FROZEN if name} == set(VERBS)
    assert set(commands()) == set(FROZEN) - {""}


@pytest.mark.parametrize("name", [n for n in FROZEN if n])
def test_options_of_a_verb_are_the_frozen_ones(name: str) -> None:
    assert options_of(commands()[name]) == FROZEN[name]


def test_option_added_to_a_verb_is_caught() -> None:
    """Twin: a verb with one more option than was frozen."""
    module = importlib.import_module("tblock.cli.doctor")
    extra = typer.Typer()

    @extra.command()
    def run(
        json: bool = typer.Option(False, "--json"), colour: bool = typer.Option(False, "--colour")
    ) -> None:
        module.run(json)

    assert options_of(typer.main.get_command(extra)) - {"--install-completion", "--show-completion"} == {
        *FROZEN["doctor"], "--colour",
    }  # fmt: skip


def test_options_before_the_verb_are_the_frozen_ones() -> None:
    root = typer.main.get_command(app)
    assert options_of(root) | {"--help"} == FROZEN[""]


@pytest.mark.parametrize("words", ["", *[n for n in FROZEN if n]])
def test_help_of_a_verb_names_its_options_and_exits_0(words: str, run: Run) -> None:
    done = run(*words.split(), "--help")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("Usage: ")
    for option in FROZEN[words]:
        assert option in done.out or option.startswith("--no-") or option in HIDDEN
    assert "\x1b" not in done.out


def test_help_lists_the_verbs_with_a_line_each(run: Run) -> None:
    lines = run("--help").out.splitlines()
    section = lines[lines.index("Verbs:") + 1 :]
    assert [line.split()[0] for line in section if line[:2] == "  " != line[2:4]] == list(VERBS)


def test_every_option_has_a_help_text() -> None:
    for name, command in commands().items():
        for parameter in command.params:
            if "--help" not in parameter.opts:
                assert getattr(parameter, "help", None), f"{name} {parameter.opts}"
