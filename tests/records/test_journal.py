"""Lines are written to a file at once, and wait in order while the disk refuses them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from psnode.records.journal import Journal


def test_lines_are_visible_at_once_and_follow_those_of_an_earlier_process(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"before\n")
    journal = Journal(path)
    journal.append(b"one")
    assert path.read_bytes() == b"before\none\n"
    journal.append(b"two")
    journal.close()
    assert path.read_bytes() == b"before\none\ntwo\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_full_disk_is_told_once_and_raises_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    journal = Journal(Path("/dev/full"))
    for _ in range(3):
        journal.append(b"line")
    journal.close()
    assert capsys.readouterr().err.count("/dev/full cannot be written: No space left on device") == 1
