"""The platform wheel: a pip-installable wheel whose library is found without a compiler."""

import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import tblock
from tblock.errors import ArtifactError, ConfigError
from tblock.export.plugins.wheel import PLACE, add_library, build_wheel, platform_tag


def test_pure_wheel_carries_every_room_and_its_data(pure_wheel: Path) -> None:
    names = set(zipfile.ZipFile(pure_wheel).namelist())
    wanted = ("tblock/cli/app.py", "tblock/checkpoints/families.json", "tblock/export/exporter.py",
              "tblock/export/plugins/trt-plugin/CMakeLists.txt",
              "tblock/export/plugins/trt-plugin/plugin.cpp",
              "tblock/export/plugins/kernels/swiglu.py", "tblock/runtimes/verdict.py",
              "tblock/manifest.schema.json", "tblock/py.typed")  # fmt: skip
    assert not set(wanted) - names
    assert "tblock/left_over.py" not in names
    assert not [
        name
        for name in names
        if name.split("/")[0] not in ("tblock", f"tblock-{tblock.__version__}.dist-info")
    ]


def _elf(machine: int, symbols: bytes = b"") -> bytes:
    """The start of a shared library's header, and names that it asks for."""
    return b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HH", 3, machine) + symbols


def test_plugin_wheel_tag_is_that_of_the_library(plugin_library: Path, tmp_path: Path) -> None:
    asked = subprocess.run(
        ["objdump", "-T", str(plugin_library)], capture_output=True, text=True, check=True
    ).stdout
    newest = max(int(part.split(")")[0].split(".")[0]) for part in asked.split("(GLIBC_2.")[1:])
    machine = subprocess.run(["uname", "-m"], capture_output=True, text=True, check=True).stdout.strip()
    assert platform_tag(plugin_library) == f"manylinux_2_{newest}_{machine}"
    other = tmp_path / "other.so"
    for content, tag in (
        (_elf(183, b"\0GLIBC_2.17\0GLIBC_2.9\0"), "manylinux_2_17_aarch64"),
        (_elf(62, b"\0GLIBC_2.4\0GLIBC_2.35\0"), "manylinux_2_35_x86_64"),
        (_elf(62), "manylinux_2_17_x86_64"),
    ):
        other.write_bytes(content)
        assert platform_tag(other) == tag
    for content in (b"", b"a library", _elf(40)):
        other.write_bytes(content)
        with pytest.raises(ArtifactError, match=r"other\.so: no shared library of x86_64 or aarch64"):
            platform_tag(other)


def test_plugin_wheel_installs_with_its_library_and_record(pure_wheel: Path, tmp_path: Path) -> None:
    library = tmp_path / "library.so"
    library.write_bytes(_elf(183))
    wheel = add_library(pure_wheel, library, tmp_path)
    assert wheel.name.endswith("py3-none-manylinux_2_17_aarch64.whl")
    # pip refuses the wheel of another machine, so it is unpacked for one of this machine.
    library.write_bytes(_elf(62))
    wheel = add_library(pure_wheel, library, tmp_path)
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
    assert (tmp_path / "site" / PLACE).read_bytes() == _elf(62)
    record = next((tmp_path / "site").glob("tblock-*.dist-info/RECORD")).read_text().splitlines()
    assert [line.split(",")[2] for line in record if line.startswith(PLACE)] == [str(len(_elf(62)))]


def test_plugin_wheel_of_bad_input_is_refused_before_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tblock.export.plugins.wheel.build", lambda **_: pytest.fail("work was begun"))
    with pytest.raises(ConfigError, match=r"no pyproject\.toml"):
        build_wheel(tmp_path, tmp_path / "dist")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"-o .*file: cannot be made a folder \(File exists"):
        build_wheel(Path(tblock.__file__).resolve().parents[1], tmp_path / "file")
