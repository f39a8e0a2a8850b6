"""`python -m studies.loading` on a few small files."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from studies.harness import main
from studies.loading import STUDY


def test_both_give_images_and_the_table_has_a_row_a_number_of_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if find_spec("torchvision") is None:  # only psnode imports torchvision, since operators may have to be declared first
        pytest.skip("torchvision is not installed")
    sizes = ["--size", "16", "--batch-size", "8", "--data-workers", "0", "--batches", "2", "--rounds", "1"]
    assert main(STUDY, [*sizes, "--json", str(tmp_path / "found.json")]) == 0
    [row] = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert row["processes"] == 0 and row["psnode"]["median"] > 0 and row["torch"]["median"] > 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("| 0 | ")
