"""Golden data reach what they must judge: the declared optimum, and past every sliding window."""

from pathlib import Path
from typing import Any

import pytest

from tblock import BlockConfig
from tblock.export import attention_form
from tblock.export.golden_cases import LONGEST, golden_notes, golden_shapes
from tblock.ranges import Range
from tblock.runtimes import load
from tblock.runtimes.parity import judge_runner
from tests.artifacts import export

WINDOWED = BlockConfig(dim=32, num_heads=2, ffn_dim=24, sliding_window=64, max_position=4096)
PLAIN = WINDOWED.replace(sliding_window=None)


@pytest.mark.parametrize(
    ("config", "seq", "longest"),
    [
        (PLAIN, Range(1, 128, 512), 128),
        (WINDOWED, Range(1, 7, 512), 66),
        (PLAIN, Range(1, 7, 9), 9),
        (PLAIN, Range(1, 2048, 4096), LONGEST),
        (PLAIN, Range(600, 700, 800), 600),
    ],
    ids=["optimum", "window", "short", "capped", "above-the-cap"],
)
def test_golden_shapes_reach_optimum_and_window(config: BlockConfig, seq: Range, longest: int) -> None:
    shapes = golden_shapes({"B": Range(1, 1, 8), "S": seq}, [config])
    assert max(s for _, s in shapes) == longest
    assert len(shapes) == len(set(shapes))


def test_golden_notes_say_what_is_not_judged() -> None:
    ranges = {"B": Range(1, 1, 1), "S": Range(1, 128, 4096)}
    reach, window = golden_notes(ranges, [PLAIN.replace(sliding_window=1024)])
    assert reach == "golden data judge sequences of up to 512 of the 4096 tokens declared"
    assert window == "golden data end before the sliding window of 1024 tokens drops any: not judged"


@pytest.mark.parametrize("dropped", [False, True], ids=["sound", "window-dropped"])
def test_graph_without_its_sliding_window_fails_the_check(
    dropped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emit = attention_form.emit
    if dropped:
        monkeypatch.setattr(attention_form, "emit", lambda *a, window, **k: emit(*a, window=0, **k))
    artifact = export(WINDOWED, tmp_path / "out", seq=Range(1, 8, 512))
    row = judge_runner(load(artifact.folder, "onnxruntime"), artifact)
    assert row.status == ("FAIL" if dropped else "PASS"), row


def test_float16_that_overflows_is_refused_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tblock.errors import ExportError
    from tblock.export import block_source

    states = block_source._random_states

    def loud(*given: Any, **options: Any) -> Any:
        return [x + 7e4 for x in states(*given, **options)]

    monkeypatch.setattr(block_source, "_random_states", loud)
    with pytest.raises(ExportError, match=r"float16 overflows in this block: input x of sequence 0, token 0"):
        export(PLAIN, tmp_path / "out", seq=Range(1, 8, 512), dtype="float16")
    assert list(tmp_path.iterdir()) == []
