"""Writing an artifact folder: all of it or nothing whatever happens, and what may be replaced."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tblock import preset
from tblock.errors import ConfigError, ExportError
from tblock.export import staging
from tblock.manifest import NAME, read_artifact
from tests.artifacts import export
from tests.export.staged import TINY, content, staged, staged_nothing
from tests.manifests import empty_artifact


def test_output_that_exists_is_refused_without_force(intact: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        export(preset("tiny"), intact, **TINY)
    assert (
        str(caught.value)
        == f"--output {intact}: exists; give another folder, or --force (force=True) to replace it"
    )


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


@pytest.mark.parametrize("name", [".a.notes.tblock", ".a.12345678.tblock"], ids=["name", "content"])
def test_hidden_folder_of_a_user_is_not_swept(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "data").write_text("his")
    staged(tmp_path / "a")
    assert (tmp_path / name / "data").read_text() == "his"


def test_hidden_folder_of_a_killed_export_is_swept(tmp_path: Path) -> None:
    for name in ("weights.safetensors", ".model.onnx.1.part", ".aoti-abcdefgh"):
        (tmp_path / ".a.12345678.tblock").mkdir(exist_ok=True)
        (tmp_path / ".a.12345678.tblock" / name).write_text("half")
    staged(tmp_path / "a")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a" * 240, r"the name is too long; give at most 238 bytes"),
        ("bad\udcff", r"--output .*bad\\xff: not utf-8 text; give another path"),
        ("link/a", r"link is not a writable folder"),
    ],
    ids=["long", "bytes", "dangling"],
)
def test_name_that_cannot_be_written_is_refused_and_leaves_nothing(
    name: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(ConfigError, match=message):
        export(preset("tiny"), tmp_path / name, **TINY)
    assert [p.name for p in tmp_path.iterdir()] == ["link"]
    staged(tmp_path / ("a" * 238))


def test_current_folder_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty_artifact(tmp_path / "a")
    monkeypatch.chdir(tmp_path / "a")
    for output in (Path(), tmp_path / "a"):
        with pytest.raises(ConfigError, match="holds the current folder; replace it from outside"):
            staging.check_output(output, force=True)
    monkeypatch.chdir(tmp_path)
    staging.check_output(tmp_path / "a", force=True)
