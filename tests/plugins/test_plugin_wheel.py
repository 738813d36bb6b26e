"""The platform wheel: a pip-installable wheel whose library is found without a compiler."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import tblock
from tblock.errors import ConfigError
from tblock.export.plugins.wheel import PLACE, PLATFORM, add_library, build_wheel

PROJECT = Path(tblock.__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def pure_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel setuptools makes of this tree."""
    folder = tmp_path_factory.mktemp("pure")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", str(folder), str(PROJECT)]
    subprocess.run(command, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def test_pure_wheel_carries_every_room_and_its_data(pure_wheel: Path) -> None:
    names = set(zipfile.ZipFile(pure_wheel).namelist())
    wanted = ("tblock/cli/app.py", "tblock/checkpoints/families.json", "tblock/export/exporter.py",
              "tblock/export/plugins/trt-plugin/CMakeLists.txt",
              "tblock/export/plugins/trt-plugin/plugin.cpp", "tblock/runtimes/verdict.py",
              "tblock/manifest.schema.json", "tblock/py.typed")  # fmt: skip
    assert not set(wanted) - names
    assert not [
        name
        for name in names
        if name.split("/")[0] not in ("tblock", f"tblock-{tblock.__version__}.dist-info")
    ]


def test_plugin_wheel_installs_with_its_library_and_record(pure_wheel: Path, tmp_path: Path) -> None:
    library = tmp_path / "library.so"
    library.write_bytes(b"a library")
    wheel = add_library(pure_wheel, library, tmp_path)
    assert wheel.name.endswith(f"py3-none-{PLATFORM}.whl")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "-q",
        "--target",
        str(tmp_path / "site"),
        str(wheel),
    ]
    subprocess.run(command, check=True, capture_output=True)
    assert (tmp_path / "site" / PLACE).read_bytes() == b"a library"
    record = next((tmp_path / "site").glob("tblock-*.dist-info/RECORD")).read_text().splitlines()
    assert [line.split(",")[2] for line in record if line.startswith(PLACE)] == [str(len(b"a library"))]


def test_plugin_wheel_without_source_tree_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no pyproject\.toml"):
        build_wheel(tmp_path, tmp_path / "dist")
