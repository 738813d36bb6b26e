"""Exports that break off: a full disk, a limit of the system, kill -9, a system without the exchange."""

import errno
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

from tblock import preset
from tblock.errors import ExportError
from tblock.export import exporter, staging
from tblock.manifest import NAME
from tests.artifacts import export
from tests.export.staged import TINY, content, staged, staged_nothing
from tests.manifests import empty_artifact

FULL = OSError(errno.ENOSPC, "No space left on device")
FULL_BY_RUST = SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


def full_disk(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every place the export writes at says that the disk is full."""

    def raising(error: Exception) -> Any:
        def write(*_: Any, **__: Any) -> None:
            raise error

        return write

    if at == "weights":
        monkeypatch.setattr("tblock.export.weights_file.save_file", raising(FULL_BY_RUST))
    elif at == "graph":
        monkeypatch.setattr("tblock.export.onnx_model.ir.save", raising(FULL))
    elif at == "golden":
        monkeypatch.setattr("tblock.golden.safetensors.numpy.save_file", raising(FULL_BY_RUST))
    elif at == "manifest":
        monkeypatch.setattr(exporter.Manifest, "to_json", raising(FULL))
    else:
        monkeypatch.setattr(staging.os, "fsync", raising(FULL))


@pytest.mark.parametrize("at", ["weights", "graph", "golden", "manifest", "sync"])
def test_disk_that_fills_up_leaves_the_old_artifact(
    at: str, intact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_disk(at, monkeypatch)
    with pytest.raises(ExportError) as caught:
        export(preset("tiny"), intact, force=True, **{**TINY, "golden": at == "golden"})
    assert str(caught.value) == f"--output {intact}: the disk is full; the old artifact is intact"


def test_disk_that_fills_up_on_a_new_folder_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_disk("weights", monkeypatch)
    with pytest.raises(ExportError) as caught:
        export(preset("tiny"), tmp_path / "out", **TINY)
    assert str(caught.value) == f"--output {tmp_path / 'out'}: the disk is full; nothing was left behind"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), ExportError("a stage failed"), MemoryError()], ids=repr
)
def test_export_that_breaks_off_leaves_the_old_artifact(error: BaseException, intact: Path) -> None:
    def progress(line: str) -> None:
        if line == "onnx":
            raise error

    with pytest.raises(type(error)):
        export(preset("tiny"), intact, force=True, progress=progress, **TINY)


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
sys.argv = ["tblock", "export", "--preset=tiny", "-o", sys.argv[1], "--force", "--no-golden", "--no-verify"]
from tblock.cli import main
main()
"""


def test_export_past_the_systems_limit_of_a_file_is_one_line(intact: Path) -> None:
    """A real failing write, of the weights: 60 kB are allowed, 164 kB are needed."""
    done = subprocess.run(
        [sys.executable, "-B", "-c", LIMITED, str(intact)], capture_output=True, text=True, check=False
    )
    lines = [line for line in done.stderr.splitlines() if not line.startswith("...")]
    assert lines == [f"tblock: --output {intact}: File too large; the old artifact is intact"]
    assert (done.returncode, done.stdout) == (4, "")


KILLED = """
import os, signal, sys
from pathlib import Path
from tblock.export import staging
def kill(): os.kill(os.getpid(), signal.SIGKILL)
output, at = Path(sys.argv[1]), sys.argv[2]
if at == "before-place": staging._take_place = lambda *_: kill()
if at == "after-place":
    place = staging._take_place
    staging._take_place = lambda *a: (place(*a), kill())
with staging.staged_folder(output, force=True) as folder:
    (folder / "manifest.json").write_text("new")
    if at == "writing": kill()
    (folder / "model.x").write_text("new")
"""


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ("writing", {"manifest.json": b"old"}),
        ("before-place", {"manifest.json": b"old"}),
        ("after-place", {"manifest.json": b"new", "model.x": b"new"}),
    ],
)
def test_kill_9_while_staging_leaves_the_old_folder_or_the_new(
    at: str, expected: dict[str, bytes], tmp_path: Path
) -> None:
    output = tmp_path / "out"
    old = empty_artifact(output)
    done = subprocess.run([sys.executable, "-c", KILLED, str(output), at], check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert content(output) == {name: old if text == b"old" else text for name, text in expected.items()}
    # What the killed process left hidden goes with the next export; another's that is at work stays.
    with staging.staged_folder(output.with_name("other"), force=False) as busy:
        (busy / "x").write_text("at work")
        if at != "after-place":
            staged(output)
            assert sorted(p.name for p in tmp_path.iterdir()) == sorted([busy.name, "out"])
    assert (tmp_path / "other" / "x").exists()


EXPORT_KILLED = """
import os, signal, sys
from tblock import preset
from tests.artifacts import export
from tests.export.staged import TINY, content, staged, staged_nothing
from tests.manifests import empty_artifact
from tblock.ranges import Range
def progress(line):
    if line == sys.argv[2]: os.kill(os.getpid(), signal.SIGKILL)
export(preset("tiny"), sys.argv[1], force=True, seq=Range(1, 8, 16), progress=progress)
"""


def test_kill_9_while_exporting_leaves_the_old_artifact(old: Path) -> None:
    before = content(old)
    done = subprocess.run(
        [sys.executable, "-c", EXPORT_KILLED, str(old), "golden data"], check=False, capture_output=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert content(old) == before
    left = [p for p in old.parent.iterdir() if p != old]
    assert len(left) == 1, "what is left is hidden and beside the artifact"
    assert left[0].name.startswith(".a.")
    staged_nothing(old)
    assert content(old) == before
    assert [p.name for p in old.parent.iterdir()] == ["a"]


def test_replacing_in_place_is_caught_by_the_kill_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twin: an exporter that removes the old folder first, and stops there."""
    output = tmp_path / "out"
    empty_artifact(output)

    def remove_first(source: Path, target: Path, force: bool) -> None:
        staging.shutil.rmtree(target)
        raise OSError(errno.EIO, "stopped here")

    monkeypatch.setattr(staging, "_take_place", remove_first)
    with pytest.raises(ExportError, match="nothing was left behind"):
        staged(output)
    assert not output.exists()


def without_renameat2(left: Path, right: Path, flag: int) -> bool:
    return flag == staging._RENAME_NOREPLACE and staging._rename_to_nothing(left, right)


def test_system_without_exchange_replaces_by_two_renames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_renameat2", without_renameat2)
    empty_artifact(tmp_path / "out")
    staged(tmp_path / "out")
    assert content(tmp_path / "out") == {NAME: b"new"}
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_system_without_exchange_whose_second_rename_fails_brings_the_old_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_renameat2", without_renameat2)
    output = tmp_path / "out"
    old = empty_artifact(output)
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if target == output and not self.name.endswith(".old"):
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(ExportError, match=r"Input/output error; the old artifact is intact$"):
        staged(output)
    assert content(output) == {NAME: old}
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
