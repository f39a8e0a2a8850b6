"""`python -m studies.sketchml`: the original's bytes counted by hand, and the command."""

from __future__ import annotations

import numpy as np
import pytest

from studies.harness import main
from studies.sketchml import STUDY, key_bits, largest, original_nbytes, sparse


def test_the_originals_bytes_of_sixteen_values_counted_by_hand() -> None:
    """Check eight values of each sign, each of which is a group: 256 bins of two floats and, for each group, a gap, a byte
    for the length of the gap, and no cells, since .3 of a value is rounded down.

    The gaps are the keys themselves: 100 takes one byte, 300 two, 70 000 three.
    """
    x = np.zeros(100_000, np.float32)
    x[np.arange(100, 108)] = -np.arange(1, 9)
    x[[200, 300, 301, 302, 303, 70_000, 70_001, 70_002]] = np.arange(1, 9)
    assert original_nbytes(x) == 8 * 256 + 16 * 1 + 8 * 1 + 1 + 4 * 2 + 3 * 3


def test_a_group_of_forty_has_two_rows_of_twelve_cells() -> None:
    x = np.zeros(400, np.float32)
    x[:320] = np.tile(np.arange(1, 9, dtype=np.float32), 40)
    assert original_nbytes(x) == 8 * 256 + 320 + 8 * (10 + 2 * 12)


def test_keys_of_random_places_cost_about_their_entropy() -> None:
    found, least = key_bits(sparse(1 << 18, 0.01))
    p = np.count_nonzero(sparse(1 << 18, 0.01)) / 2**18
    assert least == pytest.approx((-p * np.log2(p) - (1 - p) * np.log2(1 - p)) / p, rel=0.005)
    assert 1 <= found / least < 1.03 + 21 * 8 / (least * 2600)


def test_the_largest_values_are_kept_where_they_are() -> None:
    np.testing.assert_array_equal(largest(np.float32([3, -9, 1, 8, -2]), 0.4), [0, -9, 0, 8, 0])


def test_at_one_percent_the_original_takes_half_as_much_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(STUDY, ["--codec", "sketchml", "--codec", "sketchml:bins=40,rows=0+ans"]) == 0
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("| sketchml")]
    assert [row[0].strip() for row in rows] == ["sketchml", "sketchml:bins=40,rows=0+ans"]
    assert all(float(row[2]) > 1.5 for row in rows)
    assert float(rows[1][3]) < float(rows[0][3])
