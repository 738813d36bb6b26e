"""`tblock export --checkpoint`: the probe before the export, its refusal, and where it cannot run."""

import errno
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import transformers
from safetensors import SafetensorError

import tblock.export.exporter
from tblock.checkpoints.probe import LIMITS
from tblock.cli import main
from tblock.errors import ExportError
from tblock.manifest import read_artifact
from tests.families.family_cases import CASES, save_model
from tests.families.faults import FAULTS

Export = Callable[..., tuple[int, list[str]]]

REACHED = "tblock: the export was reached"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A llama checkpoint of two layers."""
    save_model(next(case for case in CASES if case.id == "llama"), tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def export(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Export:
    """`export("--checkpoint", folder)`: exit code and lines of stderr."""

    def call(*words: object) -> tuple[int, list[str]]:
        arguments = ["tblock", "export", "-o", str(tmp_path / "a"), "--no-verify", *map(str, words)]
        monkeypatch.setattr(sys, "argv", arguments)
        capfd.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        return int(stop.value.code or 0), capfd.readouterr().err.splitlines()

    return call


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stops where the export itself would begin."""

    def stop(*arguments: object) -> None:
        raise ExportError("the export was reached")

    monkeypatch.setattr(tblock.export.exporter, "load_libraries", stop)


def no_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)


def test_sound_checkpoint_is_probed_at_its_first_chosen_layer_and_exported(
    folder: Path, export: Export, tmp_path: Path
) -> None:
    code, lines = export("--checkpoint", folder, "--layer", 1, "--seq", "1:7:16")
    assert code == 0
    assert [
        line for line in lines if re.search(r"layer 1 agrees with transformers' llama: \S+ per token", line)
    ]
    verified = read_artifact(tmp_path / "a").manifest.source["import_verified"]
    assert verified["with"] == f"transformers {transformers.__version__}"
    assert (verified["family"], verified["layers"]) == ("llama", [1])
    assert 0 < verified["worst"] <= verified["limit"] == LIMITS["float32"]
    line = f"  import: layer 1 within {verified['worst']:.1e} per token of transformers "
    assert any(text.startswith(line) for text in inspected(tmp_path / "a"))


def inspected(folder: Path) -> list[str]:
    """What `tblock inspect` prints."""
    command = [sys.executable, "-c", "from tblock.cli import main; main()", "inspect", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_import_that_nobody_compared_says_so(folder: Path, export: Export, tmp_path: Path) -> None:
    code, _ = export("--checkpoint", folder, "--no-verify-import", "--seq", "1:7:16")
    assert code == 0
    assert read_artifact(tmp_path / "a").manifest.source["import_verified"] is None
    assert "  import: not verified against the family's own code" in inspected(tmp_path / "a")


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
    ids=["system", "safetensors"],
)
def test_full_temporary_folder_is_not_blamed_on_the_checkpoint(
    error: Exception, folder: Path, export: Export, stub: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("safetensors.torch.save_file", full)
    code, lines = export("--checkpoint", folder)
    assert code == ExportError.exit_code
    assert lines[-1].startswith(f"tblock: {tempfile.gettempdir()}: the disk is full")
    assert "set TMPDIR" in lines[-1]


def test_layer_that_differs_is_refused_before_anything_is_written(
    folder: Path, export: Export, stub: None, tmp_path: Path
) -> None:
    fault = next(fault for fault in FAULTS if fault.id == "gate and up swapped")
    with fault.plant():
        code, lines = export("--checkpoint", folder)
        assert code == 1
        assert re.search(r"layer 0 differs from transformers' llama by .*--no-verify-import", lines[-1])
        code, lines = export("--checkpoint", folder, "--no-verify-import")
    assert code == ExportError.exit_code
    assert lines[-1] == REACHED
    assert not [line for line in lines if "prob" in line]
    assert not (tmp_path / "a").exists()


def test_probe_without_transformers_is_skipped_with_a_line_unless_asked_for(
    folder: Path, export: Export, stub: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_transformers(monkeypatch)
    wanted = "the import probe needs transformers; pip install 'tblock[verify-import]'"
    code, lines = export("--checkpoint", folder)
    assert lines[-2:] == [f"... probe skipped: {wanted}", REACHED]
    code, lines = export("--checkpoint", folder, "--verify-import")
    assert (code, lines[-1]) == (3, f"tblock: {wanted}")


def test_probe_with_transformers_older_than_the_family_is_skipped_with_a_line(
    folder: Path, export: Export, stub: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = transformers.AutoConfig.for_model
    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", lambda *a, **k: real("of the future"))
    _, lines = export("--checkpoint", folder)
    version = transformers.__version__
    skipped = f"... probe skipped: transformers {version} has no llama; pip install -U transformers"
    assert lines[-2:] == [skipped, REACHED]


def test_checkpoint_transformers_stumbles_over_is_one_line(
    folder: Path, export: Export, stub: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stumble(*arguments: object, **named: object) -> None:
        raise KeyError("odd")

    monkeypatch.setattr(transformers.AutoModel, "from_pretrained", stumble)
    code, lines = export("--checkpoint", folder)
    assert code == 2
    wanted = (
        r"transformers cannot read this checkpoint \(KeyError: 'odd'\); --no-verify-import skips the probe$"
    )
    assert re.search(wanted, lines[-1])


def test_config_is_exported_without_a_probe(
    export: Export, stub: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_transformers(monkeypatch)
    monkeypatch.setitem(sys.modules, "tblock.checkpoints.probe", None)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"dim": 24, "num_heads": 2}))
    _, lines = export("--config", path)
    assert lines[-1] == REACHED
    assert not [line for line in lines if "prob" in line]
