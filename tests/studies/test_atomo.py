"""`python -m studies.atomo`: its variances compared with theory, and the command on models of a few layers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from psnode.config import Config
from psnode.tasks.loading import make_task
from studies import atomo
from studies.harness import main


def fully_connected() -> list[torch.Tensor]:
    """Return the parameters of the network on which the command is tested."""
    return list(make_task(Config(network="FC", dataset="synthetic", synthetic_shape=(1, 28, 28))).model().parameters())


def test_costs_are_those_of_theory() -> None:
    """Check costs at rank 2: with n = 100 equal singular values, any basis has the variance n^2 / 2 - n. A dominant value
    changes this.
    """
    rng = np.random.default_rng(1)
    flat = (np.linalg.qr(rng.standard_normal((300, 100)))[0]).astype(np.float32)
    found = atomo._costs(rng.standard_normal((300, 100)).astype(np.float32), flat, 2)
    assert found.pop("omega") == pytest.approx((100**2 / 2 - 100) / 100, rel=1e-5)
    assert found == pytest.approx(dict.fromkeys(atomo.COSTS, 1), rel=1e-4)
    spiked = flat + 50 * np.outer(flat[:, 0], np.eye(100)[0]).astype(np.float32)
    found = atomo._costs(rng.standard_normal((300, 100)).astype(np.float32), spiked, 2)
    assert found["deflated"] < 1.01
    assert found["single"] < 1.01
    assert found["earlier"] > 5


def test_the_command_tells_every_kind_of_matrix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"network": "FC", "dataset": "synthetic", "synthetic_shape": (1, 28, 28), "batch_size": 64}
    monkeypatch.setitem(atomo.MODELS, "ResNet-18", small)
    file = tmp_path / "atomo.json"
    assert main(atomo.STUDY, ["--model", "ResNet-18", "--steps", "2", "--repeats", "1", "--json", str(file)]) == 0
    rows = json.loads(file.read_text())["rows"]
    assert {tuple(row["shape"]) for row in rows} == {tuple(p.shape) for p in fully_connected() if p.dim() > 1}
    assert all(1 - 1e-3 <= cost <= 1.06 for row in rows for cost in row["deflated"])
    assert capsys.readouterr().out.count("| `") == len(rows)


def test_a_kind_s_seconds_are_those_of_all_its_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomo, "_seconds", lambda tensors, *_: float(len(tensors)))
    matrices = {f"{at}.weight": np.eye(40, 60, dtype=np.float32) for at in range(3)} | {"last": np.eye(50, dtype=np.float32)}
    found = atomo._measured(matrices, matrices, 3, 1)
    assert [(row["kind"], row["tensors"]) for row in found] == [("*.weight", 3), ("last", 1)]
    assert [row["seconds"] for row in found] == [{"exact": 3, "deflated": 3}, {"exact": 1, "deflated": 1}]
