"""The borders between rooms: lint rules catch a planted import, and fresh processes load no torch."""

import ast
import importlib
import json
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tblock

ROOT = Path(tblock.__file__).resolve().parent.parent


def violations(path: str, text: str | None = None) -> list[str]:
    """Codes that ruff finds in a file (or in `text`, as if it lay there), import borders only."""
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--select",
        "TID251,TID253",
        "--output-format",
        "json",
        "--no-cache",
    ]
    planted = ["--stdin-filename", path, "-"] if text is not None else path.split()
    done = subprocess.run(
        [*command, *planted], input=text, capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return [f"{Path(v['filename']).name}:{v['location']['row']} {v['code']}" for v in json.loads(done.stdout)]


PLANTED = [
    # Room, file, import, code that must catch it, whether a function may do it.
    ("core", "tblock/planted.py", "import torch", "TID253", True),
    ("core", "tblock/planted.py", "import gguf", "TID253", True),
    ("core", "tblock/planted.py", "from tblock.block import Block", "TID253", True),
    ("core", "tblock/planted.py", "import onnx", "TID251", False),
    ("core", "tblock/planted.py", "import typer", "TID251", False),
    ("core", "tblock/block.py", "from tblock.export import export", "TID251", False),
    ("core", "tblock/ops.py", "import onnxruntime", "TID251", False),
    ("checkpoints", "tblock/checkpoints/planted.py", "import torch", "TID253", True),
    ("checkpoints", "tblock/checkpoints/reference.py", "from tblock.runtimes import load", "TID251", False),
    ("cli", "tblock/cli/planted.py", "import torch", "TID253", True),
    ("cli", "tblock/cli/planted.py", "import numpy as np", "TID253", True),
    ("cli", "tblock/cli/planted.py", "from tblock.export.exporter import export", "TID253", True),
    ("cli", "tblock/cli/planted.py", "from tblock import runtimes", "TID253", True),
    ("export", "export/planted.py", "from tblock.runtimes import check", "TID253", True),
    ("export", "export/planted.py", "import tblock.cli", "TID251", False),
    ("export", "export/planted.py", "import onnxruntime", "TID251", False),
    ("export", "export/planted.py", "import tensorrt_rtx", "TID253", True),
    ("export", "export/plugins/planted.py", "import triton", "TID253", True),
    ("export", "export/plugins/library.py", "from tblock import runtimes", "TID253", True),
    ("runtimes", "runtimes/planted.py", "import torch", "TID251", False),
    ("runtimes", "runtimes/planted.py", "from tblock.block import Block", "TID251", False),
    ("runtimes", "runtimes/planted.py", "import onnx", "TID251", False),
    ("runtimes", "runtimes/ort.py", "import onnxruntime", "TID253", True),
    ("runtimes", "runtimes/trt.py", "from tblock.export import export", "TID251", False),
    ("runtimes", "runtimes/eager.py", "from tblock.export import export", "TID253", True),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "line", "code", "lazily"),
    [row[1:] for row in PLANTED],
    ids=[f"{r[1]}-{r[2].split()[1]}" for r in PLANTED],
)
def test_import_across_a_border_is_caught(path: str, line: str, code: str, lazily: bool) -> None:
    name = Path(path).name
    assert f"{name}:1 {code}" in violations(path, f"{line}\n")
    inside = violations(path, f"def f():\n    {line}\n")
    assert inside == ([] if lazily else [f"{name}:2 {code}"])


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("tblock/block.py", "import torch"),
        ("tblock/planted.py", "import numpy as np"),
        ("tblock/cli/planted.py", "import typer"),
        ("export/planted.py", "import torch"),
        ("export/planted.py", "import onnx"),
        ("runtimes/planted.py", "from tblock.manifest import Artifact"),
        ("runtimes/eager.py", "from tblock.block import Block"),
        ("bench/planted.py", "from tblock.runtimes import bench"),
        ("tests/planted.py", "import onnxruntime"),
    ],
)
def test_import_that_its_room_may_do_is_not_caught(path: str, line: str) -> None:
    assert violations(path, f"{line}\n") == []


def test_rooms_hold_no_violation() -> None:
    assert violations("tblock export runtimes") == []


FRESH: dict[str, tuple[str, tuple[str, ...]]] = {
    # What a fresh process does, and what it must not have loaded then.
    "tblock": (
        "import tblock; tblock.preset('tiny').flop_count(batch=1, seq=2)",
        ("torch", "onnx", "numpy", "typer"),
    ),
    "runtimes": ("import tblock.runtimes", ("torch", "onnx", "onnxruntime", "numpy")),
    "verdict": ("import tblock.runtimes.verdict", ("torch", "onnx", "onnxruntime")),
    "export": ("import tblock.export", ("torch", "onnx", "tblock.runtimes")),
    "cli": ("import tblock.cli.app", ("torch", "onnx", "onnxruntime", "numpy", "rich", "tblock.export")),
    "manifest": ("import tblock.manifest, tblock.golden, tblock.contract", ("torch", "onnx", "gguf")),
    "checkpoints": ("import tblock.checkpoints", ("torch", "gguf", "transformers", "onnx")),
    "plugin": ("import tblock.runtimes.pytest_plugin", ("torch", "onnx", "onnxruntime")),
}


def loaded_by(code: str, names: tuple[str, ...]) -> list[str]:
    """Of these modules those that a fresh process has after some code."""
    tail = f"; import sys; print([n for n in {names!r} if n in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code + tail], capture_output=True, text=True, cwd="/", check=True
    )
    return list(ast.literal_eval(done.stdout))


@pytest.mark.parametrize("name", FRESH)
def test_import_in_a_fresh_process_loads_no_heavy_package(name: str) -> None:
    assert loaded_by(*FRESH[name]) == []


def test_import_of_block_in_a_fresh_process_loads_torch() -> None:
    """Twin of the one above: the probe sees torch where it is."""
    assert loaded_by("from tblock import Block", ("torch", "onnx")) == ["torch"]


@pytest.mark.parametrize("folder", ["export", "runtimes"])
def test_import_of_a_room_by_its_folder_name_says_the_right_one(folder: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import {folder}"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 1
    assert f"ImportError: import tblock.{folder}, not {folder}" in done.stderr


PUBLIC = {
    "tblock": {"Block", "BlockConfig", "Stack", "preset"},
    "tblock.export": {"Artifact", "export"},
    "tblock.runtimes": {
        "RUNTIMES",
        "BenchRow",
        "CaseRow",
        "CheckRow",
        "RuntimeRow",
        "bench",
        "check",
        "exit_code",
        "load",
        "measure",
    },
}


@pytest.mark.parametrize("room", PUBLIC)
def test_public_names_of_a_room_are_the_frozen_ones(room: str) -> None:
    module = importlib.import_module(room)
    assert set(module.__all__) == PUBLIC[room]
    assert all(getattr(module, name) is not None for name in PUBLIC[room])


def leaked(module: Any) -> set[str]:
    """Public names in a module's namespace that are neither promised nor modules nor typing."""
    kept = set(module.__all__) | {name.name for name in pkgutil.iter_modules(module.__path__)}
    foreign = {"TYPE_CHECKING", "Any", "Callable", "Iterator", "Mapping", "Path", "Sequence"}
    return {name for name in vars(module) if name.isidentifier() and name[0] != "_"} - kept - foreign


@pytest.mark.parametrize("room", PUBLIC)
def test_room_leaks_no_accidentally_public_name(room: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(room)
    assert leaked(module) == set()
    monkeypatch.setattr(module, "helper", object(), raising=False)
    assert leaked(module) == {"helper"}


@pytest.mark.parametrize("room", PUBLIC)
def test_unknown_name_of_a_room_is_an_attribute_error(room: str) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = importlib.import_module(room).nonsense
