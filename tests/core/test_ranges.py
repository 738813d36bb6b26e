"""Ranges of dynamic dimensions as they are typed."""

import pytest

from tblock.errors import ConfigError
from tblock.ranges import Range


@pytest.mark.parametrize(
    ("text", "flag", "expected"),
    [
        ("1:128:2048", "--seq", (1, 128, 2048)),
        ("2:33", "--seq", (2, 33, 33)),
        ("7", "--batch", (7, 7, 7)),
        ("0:64", "--past", (0, 64, 64)),
        ("0", "--past", (0, 0, 0)),
    ],
)
def test_range_text_is_read(text: str, flag: str, expected: tuple[int, int, int]) -> None:
    assert Range.parse(text, flag) == Range(*expected)
    assert Range.parse(str(Range(*expected)), flag) == Range(*expected)


@pytest.mark.parametrize(
    ("text", "flag", "message"),
    [
        ("", "--seq", "--seq '': wanted MIN:OPT:MAX, MIN:MAX or one number"),
        ("1:2:3:4", "--seq", "--seq '1:2:3:4': wanted MIN:OPT:MAX, MIN:MAX or one number"),
        ("1:x", "--batch", "--batch '1:x': wanted MIN:OPT:MAX, MIN:MAX or one number"),
        ("1_0", "--batch", "--batch '1_0': wanted MIN:OPT:MAX, MIN:MAX or one number"),
        ("²", "--batch", "--batch '²': wanted MIN:OPT:MAX, MIN:MAX or one number"),
        ("1.5", "--batch", "--batch '1.5': wanted MIN:OPT:MAX, MIN:MAX or one number"),
        ("0:4", "--batch", "--batch '0:4': MIN must be at least 1"),
        ("-1:4", "--past", "--past '-1:4': wanted MIN <= OPT <= MAX"),
        ("4:2", "--seq", "--seq '4:2': wanted MIN <= OPT <= MAX"),
        ("1:64:32", "--seq", "--seq '1:64:32': wanted MIN <= OPT <= MAX"),
    ],
)
def test_range_text_without_sense_is_refused(text: str, flag: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Range.parse(text, flag)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "numbers", [(3, 2, 5), (1, 6, 5), (-1, 0, 5)], ids=["opt-low", "opt-high", "below-0"]
)
def test_range_out_of_order_is_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match="wanted 0 <= MIN <= OPT <= MAX"):
        Range(*numbers)


def test_range_contains_both_ends_and_nothing_outside() -> None:
    assert [n in Range(2, 3, 5) for n in range(1, 7)] == [False, True, True, True, True, False]
