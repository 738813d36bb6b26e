"""Finding the library and the headers, and what the library says of itself."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tblock.contract import PLUGINS
from tblock.errors import ArtifactError, RuntimeUnavailable
from tblock.export.plugins import (
    headers,
    library,
    library_path,
    read_table,
)
from tests.cli.outcome import Run


def test_plugin_import_loads_no_torch_and_no_triton() -> None:
    code = "import sys, tblock.export.plugins; sys.exit(bool({'torch', 'triton'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_plugin_library_needs_only_libc(plugin_library: Path) -> None:
    done = subprocess.run(["ldd", str(plugin_library)], capture_output=True, text=True, check=True)
    names = {line.split()[0].rsplit("/", 1)[-1] for line in done.stdout.splitlines()}
    assert {name.split(".so")[0] for name in names} <= {
        "linux-vdso",
        "libc",
        "libm",
        "libdl",
        "ld-linux-x86-64",
        "ld-linux-aarch64",
    }


def test_plugin_library_path_order(
    plugin_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(library.VARIABLE, raising=False)
    assert library_path() == plugin_library
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert library_path() is None
    monkeypatch.setenv(library.VARIABLE, str(plugin_library))
    assert library_path() == plugin_library
    monkeypatch.setenv(library.VARIABLE, str(tmp_path / "none.so"))
    with pytest.raises(ArtifactError, match=r"TBLOCK_PLUGIN_LIBRARY=.*none.so: no such file"):
        library_path()


def test_plugin_describe_lists_every_variant(plugin_library: Path) -> None:
    rows = read_table(plugin_library)["variants"]
    assert {row["arch"] for row in rows} == {80, 90, 120}
    sizes = {f"{kind}_bytes" for kind in ("shared", "spill", "stack", "vector")}
    assert set(rows[0]) == {"op", "dtype", "name", "arch", "registers", *sizes}
    table = read_table(plugin_library)
    assert table["cubins"] == [90, 120]
    assert table["ptx"] == 80
    assert table["versions"]["tensorrt_headers"].startswith("10.")


def test_plugin_list_says_what_the_library_holds(
    plugin_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """Not what the contract would have it hold: a library with another creator."""
    told = [line for line in run("plugin", "list").out.splitlines() if line.startswith("creator ")]
    assert told == [f"creator {row.onnx_name}, namespace tblock, version {row.version}" for row in PLUGINS]
    other = tmp_path / "other.so"
    names = [str(row.onnx_name) for row in PLUGINS]
    renamed = [*names[:-1], names[-1].replace("Tblock", "Teblok")]
    shipped, changed = (f'"name": "{pair[-1]}"'.encode() for pair in (names, renamed))
    other.write_bytes(plugin_library.read_bytes().replace(shipped, changed))
    monkeypatch.setenv(library.VARIABLE, str(other))
    outcome = run("plugin", "list")
    assert f"creator {renamed[-1]}, namespace tblock" in outcome.out
    assert names[-1] not in outcome.out
    table = json.loads(run("plugin", "list", "--json").out)["table"]
    assert [creator["name"] for creator in table["creators"]] == renamed
    other.write_bytes(b"TBLOCK-PLUGIN-TABLE" + b'{"versions": {}}\0')
    outcome = run("plugin", "list")
    assert outcome.code != 0
    assert "or one of another tblock; build it again with `tblock plugin build`" in outcome.err


def test_plugin_describe_of_another_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"a\.so: no such plugin library; `tblock plugin build`"):
        read_table(tmp_path / "a.so")
    (tmp_path / "b.so").write_bytes(b"\x7fELF nothing")
    with pytest.raises(ArtifactError, match=r"b\.so: not a tblock plugin library"):
        read_table(tmp_path / "b.so")


def test_plugin_headers_of_the_user_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(headers.VARIABLE, str(tmp_path))
    with pytest.raises(RuntimeUnavailable, match=r"TBLOCK_TENSORRT_INCLUDE=.*no NvInferRuntime.h"):
        headers.find_headers()
    (tmp_path / "NvInferRuntime.h").touch()
    version = tmp_path / "NvInferVersion.h"
    version.write_text("#define NV_TENSORRT_MAJOR 11 //!< TensorRT\n#define NV_TENSORRT_MINOR 2\n")
    assert headers.find_headers() == (tmp_path, "11.2")
    version.write_text("#define NV_TENSORRT_MAJOR 8\n#define NV_TENSORRT_MINOR 6\n")
    with pytest.raises(RuntimeUnavailable, match=r"TensorRT 8\.6 headers; the plugins need 10\.x or 11\.x"):
        headers.find_headers()
    version.write_text("nothing")
    with pytest.raises(RuntimeUnavailable, match="no version in NvInferVersion"):
        headers.find_headers()


def test_plugin_headers_missing_says_where_it_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(headers.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(RuntimeUnavailable) as caught:
        headers.find_headers()
    for part in ("TBLOCK_TENSORRT_INCLUDE", str(tmp_path), "pip download", "set TBLOCK_TENSORRT_INCLUDE"):
        assert part in str(caught.value)


def test_plugin_headers_of_another_digest_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(headers.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    wheel = tmp_path / "kernel_lens-2.0.1-py3-none-any.whl"
    wheel.write_bytes(b"not that wheel")

    def download(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        Path(command[command.index("--dest") + 1], wheel.name).write_bytes(wheel.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(headers.subprocess, "run", download)
    with pytest.raises(RuntimeUnavailable, match=r"kernel_lens.*SHA-256 .*, wanted "):
        headers.find_headers()
