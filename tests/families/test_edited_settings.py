"""One setting of config.json changed, added or set to null: refused, or read as the family does.

Settings of every other family are among those that are added.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tblock.checkpoints import open_checkpoint
from tblock.checkpoints.fields import Fields
from tblock.checkpoints.opening import FAMILIES
from tblock.checkpoints.probe import LIMITS, measure
from tblock.errors import TblockError
from tests.families.family_cases import CASES, Case, save_model

OLD_SPELLINGS: dict[str, Any] = {
    "is_causal": False,
    "partial_rotary_factor": 0.5,
    "rope_local_base_freq": 1e4,
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    "rope_theta": 1e4,
    "rotary_emb_base": 5e4,
    "rotary_pct": 0.5,
    "sliding_window_pattern": 2,
}


def others(value: Any) -> list[Any]:
    """Other values of the same kind."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value * 2, max(1, value // 2)]
    return [value * 2, value / 2] if isinstance(value, float) else []


def edits(given: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Name and new value."""
    known = {name: value for f in FAMILIES for name, value in CONFIG_MAPPING[f]().to_dict().items()}
    for name, value in given.items():
        yield from ((name, new) for new in (*others(value), None))
    for name, value in (known | OLD_SPELLINGS).items():
        if name not in given:
            yield from ((name, new) for new in (value, *others(value)))


def misread(case: Case, folder: Path) -> list[str]:
    """The edits that were taken and changed the layer for one side only."""
    save_model(case, folder)
    path, found, compared = folder / "config.json", [], 0
    given = json.loads(path.read_text())
    for name, value in edits(given):
        path.write_text(json.dumps(given | {name: value}))
        try:
            checkpoint = open_checkpoint(folder)
            for layer in case.layers:
                checkpoint.weights(layer)
            errors = [measure(checkpoint, layer).worst for layer in case.layers]
        except TblockError:  # refused by name, or by the family's own code
            continue
        compared += 1
        if not max(errors) <= LIMITS["float32"]:
            found.append(f"{name}={value!r}: {max(errors):.1e}")
    assert compared > len(given), "an edit that nothing takes proves nothing"
    return found


ONCE_A_FAMILY = [case for case in CASES if "-" not in case.id]


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", ONCE_A_FAMILY, ids=lambda case: case.id)
def test_edited_setting_is_refused_or_read_as_the_familys_own_code_reads_it(
    case: Case, tmp_path: Path
) -> None:
    assert misread(case, tmp_path) == []


@pytest.mark.exhaustive
def test_reader_that_ignores_a_setting_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Fields.number

    def deaf(self: Fields, name: str, *default: Any) -> Any:
        return 1e-6 if name == "rms_norm_eps" and real(self, name, *default) else real(self, name, *default)

    monkeypatch.setattr(Fields, "number", deaf)
    assert any(line.startswith("rms_norm_eps=") for line in misread(ONCE_A_FAMILY[0], tmp_path))
