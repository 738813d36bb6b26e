"""README is true: commands parse, Python runs, C++ compiles; and no text points outside the repository."""

import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import typer

import tblock
from tblock.cli.app import VERBS, _command

ROOT = Path(tblock.__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_newcomer_has_exactly_two_commands() -> None:
    commands = [block.strip() for block in blocks("sh") if "pip install" in block]
    assert len(commands) == 2
    assert commands[0].endswith("&& tblock demo")
    assert commands[1] == "pip install -e '.[dev]' && pytest"


def lines_of_tblock() -> list[str]:
    lines = " ".join(blocks("sh")).replace("\\\n", " ").splitlines()
    return [line.split("#")[0].strip() for line in lines if line.strip().startswith("tblock ")]


@pytest.mark.parametrize("line", lines_of_tblock())
def test_command_line_of_readme_is_one_the_parser_takes(line: str) -> None:
    _, verb, *words = shlex.split(line)
    assert verb in VERBS, line
    command = _command(verb)
    if hasattr(command, "commands"):
        command = command.commands[words[0]]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {word.split("=")[0] for word in words if word.startswith("-")} <= known, line
    assert isinstance(command, typer.core.TyperCommand)


def test_flag_that_no_verb_has_is_caught() -> None:
    known = {name for parameter in _command("check").params for name in parameter.opts}
    assert "--no-such-flag" not in known


def test_python_of_readme_runs_from_top_to_bottom(tmp_path: Path) -> None:
    # In a process of its own and one empty folder, as a reader would run it.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for source in blocks("python"):
        command = [sys.executable, "-c", source]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.exhaustive
def test_example_of_the_checkpoints_room_runs(tmp_path: Path) -> None:
    import tblock.checkpoints

    _, _, source = tblock.checkpoints.__doc__.partition("exported as a Block:\n")
    command = [sys.executable, "-c", textwrap.dedent(source)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "artifact" / "manifest.json").is_file()


@pytest.mark.parametrize("source", blocks("cpp"))
def test_cpp_of_readme_compiles(source: str, tmp_path: Path) -> None:
    from tblock.export.plugins.headers import find_headers
    from tblock.export.plugins.library import package_folder

    path = tmp_path / "readme.cpp"
    path.write_text(source)
    cuda = package_folder() / "trt-plugin" / "cuda-types"
    command = ["g++", "-std=c++17", "-fsyntax-only", "-Wall", "-Werror", "-Wno-deprecated-declarations"]
    done = subprocess.run(
        [*command, f"-I{find_headers()[0]}", f"-I{cuda}", str(path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


OUTSIDE = re.compile(r"\bDESIGN\b|CASES\.md|STYLE\.md|\bfact \d|\bcases? C\d|\bC\d{1,2}:|_c\d+_", re.I)
"""Words that send a reader to a page that is not in the repository."""


def texts() -> list[Path]:
    folders = ("tblock", "export", "runtimes", "tests", "bench")
    suffixes = {".py", ".cpp", ".h", ".md", ".toml", ".json", ".txt"}
    found = [p for folder in folders for p in (ROOT / folder).rglob("*") if p.suffix in suffixes]
    own = (ROOT / "tblock" / "export", ROOT / "tblock" / "runtimes")
    return [p for p in [*found, ROOT / "README.md", ROOT / "pyproject.toml"] if not p.is_relative_to(own[0])
            and not p.is_relative_to(own[1]) and p != Path(__file__).resolve()]  # fmt: skip


def pointers(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if OUTSIDE.search(line)]


def test_no_text_points_to_a_page_outside_the_repository() -> None:
    found = {str(p.relative_to(ROOT)): lines for p in texts() if (lines := pointers(p.read_text("utf-8")))}
    assert found == {}


def test_pointer_to_an_outside_page_is_caught() -> None:
    assert pointers("# see DESIGN section 7\nx = 1\n# measured (fact 11)") == [
        "# see DESIGN section 7",
        "# measured (fact 11)",
    ]
