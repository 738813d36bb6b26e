"""Writing an artifact folder: all of it or nothing whatever happens, and what may be replaced."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

from tblock import preset
from tblock.errors import ConfigError, ExportError
from tblock.export import exporter, staging
from tblock.manifest import NAME, read_artifact
from tblock.ranges import Range
from tests.artifacts import export
from tests.manifests import empty_artifact

TINY: dict[str, Any] = {"seq": Range(1, 8, 16), "golden": False}


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact that is there before."""
    folder = tmp_path_factory.mktemp("old") / "a"
    export(preset("tiny"), folder, **TINY)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


@pytest.fixture
def intact(old: Path) -> Iterator[Path]:
    """The old artifact, and the promise that the test leaves it and nothing beside it."""
    before = content(old)
    yield old
    assert content(old) == before
    assert [p.name for p in old.parent.iterdir()] == ["a"]
    for name in read_artifact(old).manifest.files:
        read_artifact(old).path(name)


def test_output_that_exists_is_refused_without_force(intact: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        export(preset("tiny"), intact, **TINY)
    assert str(caught.value) == f"--output {intact}: exists; give another folder, or --force to replace it"


def test_output_that_exists_is_replaced_whole_with_force(tmp_path: Path) -> None:
    export(preset("tiny"), tmp_path / "a", **TINY)
    export(preset("tiny"), tmp_path / "a", force=True, dtype="float16", **TINY)
    artifact = read_artifact(tmp_path / "a")
    assert artifact.manifest.dtype == "float16"
    assert set(content(tmp_path / "a")) == {*artifact.manifest.files, NAME}
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def folder_with_a_file(path: Path) -> None:
    path.mkdir()
    (path / "thesis.tex").write_text("years of work")


def extension_of_a_browser(path: Path) -> None:
    folder_with_a_file(path)
    (path / NAME).write_text('{"manifest_version": 3, "name": "ours", "version": "1.0"}')


def artifact_with_a_file(path: Path) -> None:
    empty_artifact(path)
    (path / "thesis.tex").write_text("years of work")


def artifact_with_a_folder(path: Path) -> None:
    empty_artifact(path)
    (path / "notes").mkdir()


def artifact_with_a_folder_of_a_files_name(path: Path) -> None:
    empty_artifact(path)
    (path / "model.onnx").mkdir()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (folder_with_a_file, f"has no {NAME}; --force replaces only artifact folders"),
        (
            extension_of_a_browser,
            "is not an artifact of ours ({path}/manifest.json: not a tblock manifest (no format)); "
            "--force replaces only artifact folders",
        ),
        (
            artifact_with_a_file,
            "holds thesis.tex, which is no file of the artifact; move it, or give another folder",
        ),
        (
            artifact_with_a_folder,
            "holds notes, which is no file of the artifact; move it, or give another folder",
        ),
        (
            artifact_with_a_folder_of_a_files_name,
            "holds model.onnx, which is no file of the artifact; move it, or give another folder",
        ),
        (lambda p: p.write_text("a file"), "is not a folder; --force replaces only artifact folders"),
        (lambda p: p.symlink_to(p.parent), "is not a folder; --force replaces only artifact folders"),
        (lambda p: p.symlink_to("nowhere"), "is not a folder; --force replaces only artifact folders"),
    ],
    ids=[
        "not-an-artifact",
        "foreign-manifest",
        "foreign-file",
        "foreign-folder",
        "folder-for-a-file",
        "file",
        "link",
        "broken-link",
    ],
)
def test_output_that_is_no_artifact_is_refused_even_with_force(
    make: Any, message: str, tmp_path: Path
) -> None:
    make(tmp_path / "out")
    with pytest.raises(ConfigError) as caught:
        export(preset("tiny"), tmp_path / "out", force=True, **TINY)
    assert str(caught.value) == f"--output {tmp_path / 'out'}: {message.format(path=tmp_path / 'out')}"
    assert (tmp_path / "out").is_symlink() or (tmp_path / "out").exists()
    if (tmp_path / "out" / "thesis.tex").exists():
        assert (tmp_path / "out" / "thesis.tex").read_text() == "years of work"


def test_artifact_that_lost_files_is_still_ours_and_replaced(tmp_path: Path) -> None:
    empty_artifact(tmp_path / "out")
    (tmp_path / "out" / ".manifest.json.77.part").write_text("of a process that was killed")
    staged(tmp_path / "out")
    assert [p.name for p in (tmp_path / "out").iterdir()] == [NAME]


def taken_meanwhile(output: Path, make: Any, *, force: bool) -> ExportError:
    """Export while somebody makes the output's path."""

    def run() -> None:
        with staging.staged_folder(output, force) as folder:
            (folder / "x").write_text("new")
            make(output)

    with pytest.raises(ExportError) as caught:
        run()
    return caught.value


@pytest.mark.parametrize("force", [False, True], ids=["", "force"])
@pytest.mark.parametrize("make", [folder_with_a_file, artifact_with_a_file], ids=["folder", "artifact"])
def test_folder_made_while_the_export_runs_is_not_touched(make: Any, force: bool, tmp_path: Path) -> None:
    output = tmp_path / "out"
    error = taken_meanwhile(output, make, force=force)
    assert (output / "thesis.tex").read_text() == "years of work"
    assert content(tmp_path / "out.new") == {"x": b"new"}
    assert str(error).startswith(f"--output {output}: ")
    assert str(error).endswith(f"nothing of it was touched, the artifact is in {tmp_path / 'out.new'}")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "out.new"]


def test_file_made_while_the_export_runs_is_not_touched(tmp_path: Path) -> None:
    error = taken_meanwhile(tmp_path / "out", lambda path: path.write_text("his"), force=True)
    assert (tmp_path / "out").read_text() == "his"
    assert "is not a folder now, made by somebody else" in str(error)


def test_artifact_made_while_the_export_runs_is_replaced_only_with_force(tmp_path: Path) -> None:
    before = empty_artifact(tmp_path / "spare")
    taken_meanwhile(tmp_path / "out", lambda path: shutil.copytree(tmp_path / "spare", path), force=False)
    assert content(tmp_path / "out") == {NAME: before}
    with staging.staged_folder(tmp_path / "other", force=True) as folder:
        (folder / "x").write_text("new")
        shutil.copytree(tmp_path / "spare", tmp_path / "other")
    assert content(tmp_path / "other") == {"x": b"new"}


def test_twin_that_renames_over_what_is_there_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def over(left: Path, right: Path, flag: int) -> bool:
        staging.shutil.rmtree(right, ignore_errors=True)
        left.rename(right)
        return True

    monkeypatch.setattr(staging, "_renameat2", over)
    with pytest.raises(pytest.fail.Exception):
        taken_meanwhile(tmp_path / "out", folder_with_a_file, force=False)
    assert not (tmp_path / "out" / "thesis.tex").exists()


def test_file_that_comes_into_the_old_folder_at_the_last_moment_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    empty_artifact(output)
    rename = staging._renameat2

    def late(left: Path, right: Path, flag: int) -> bool:
        if flag == staging._RENAME_EXCHANGE:
            (right / "thesis.tex").write_text("years of work")
        return rename(left, right, flag)

    monkeypatch.setattr(staging, "_renameat2", late)
    with pytest.raises(ExportError, match=r"the old folder holds thesis\.tex, .*; it is kept as .*out\.old$"):
        staged(output)
    assert (tmp_path / "out.old" / "thesis.tex").read_text() == "years of work"
    assert content(output) == {NAME: b"new"}


def test_output_that_is_an_empty_folder_is_taken_with_force(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with staging.staged_folder(tmp_path / "out", force=True) as folder:
        (folder / "x").write_text("new")
    assert content(tmp_path / "out") == {"x": b"new"}


def test_output_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(
        ConfigError, match=r"--output .*/file/out: .*(is not a writable folder|Not a directory)"
    ):
        staging.check_output(tmp_path / "file" / "out", force=False)


def test_output_in_a_folder_that_is_not_writable_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """root may write anywhere, so the answer of the system is given here."""
    monkeypatch.setattr(staging.os, "access", lambda *_: False)
    with pytest.raises(ConfigError) as caught:
        staging.check_output(tmp_path / "out", force=False)
    assert str(caught.value) == f"--output {tmp_path / 'out'}: {tmp_path} is not a writable folder"


@pytest.mark.parametrize("call", ["exists", "iterdir"])
def test_output_that_may_not_be_looked_at_is_refused(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: Any, **__: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    (tmp_path / "out").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(Path, call, denied)
        with pytest.raises(ConfigError, match=r"^--output .*: Permission denied$"):
            staging.check_output(tmp_path / "out", force=True)


def test_output_whose_parent_cannot_be_made_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(**_: Any) -> str:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(staging.tempfile, "mkdtemp", denied)
    with (
        pytest.raises(ConfigError, match=r"^--output .*/out: Read-only file system$"),
        staging.staged_folder(tmp_path / "out", force=False),
    ):
        raise AssertionError


def test_output_of_missing_parents_is_made_with_the_usual_permissions(tmp_path: Path) -> None:
    previous = os.umask(0o022)
    try:
        with staging.staged_folder(tmp_path / "deep" / "er" / "out", force=False) as folder:
            (folder / "x").write_text("new")
    finally:
        os.umask(previous)
    assert (tmp_path / "deep" / "er" / "out").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "deep" / "er" / "out" / "x").stat().st_mode & 0o777 == 0o644


def test_parents_made_for_an_export_that_breaks_off_go_with_it(tmp_path: Path) -> None:
    (tmp_path / "his").mkdir()
    staged_nothing(tmp_path / "his" / "deep" / "er" / "out")
    assert [p.name for p in tmp_path.rglob("*")] == ["his"]


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
    (folder / "other").write_text("new")
"""


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ("writing", {"manifest.json": b"old"}),
        ("before-place", {"manifest.json": b"old"}),
        ("after-place", {"manifest.json": b"new", "other": b"new"}),
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


def staged_nothing(output: Path) -> None:
    """An export to the same path that breaks off."""
    with pytest.raises(KeyError), staging.staged_folder(output, force=True):
        raise KeyError


def staged(output: Path) -> None:
    with staging.staged_folder(output, force=True) as folder:
        (folder / NAME).write_text("new")


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
