"""`python -m studies.atomo_device`: its measurements on torch's CPU, and its refusals."""

from __future__ import annotations

import pytest
import torch

from psnode.errors import ConfigurationError
from studies import atomo, atomo_device
from studies.harness import main, table
from tests.studies.test_atomo import fully_connected

SMALL = {"network": "FC", "dataset": "synthetic", "synthetic_shape": (1, 28, 28), "batch_size": 64}
OPTIONS = atomo_device.Options(model=("ResNet-18",), repeats=1)


def test_every_matrix_is_coded_and_the_step_beside_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(atomo.MODELS, "ResNet-18", SMALL)
    [row] = atomo_device.rows_of(OPTIONS, torch.device("cpu"))
    large = [each for each in fully_connected() if each.dim() > 1 and 3 * sum(each.shape) < each.numel()]
    assert (row["matrices"], row["values"]) == (len(large), sum(each.numel() for each in large))
    assert row["passes"] > 0 and set(row["coding"]) == {"exact", "randomised"}
    assert f"| ResNet-18 | {row['passes']:.1f} | {len(large)} |" in table(atomo_device.COLUMNS, [row])


def test_a_device_that_is_none_is_refused_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    for device in ("tpu", "cuda:", "cuda:x", "cuda:99"):
        assert main(atomo_device.STUDY, ["--device", device]) == ConfigurationError.exit_code
        [line] = capsys.readouterr().err.strip().splitlines()
        assert f"--device {device}: " in line
    assert main(atomo_device.STUDY, ["--steps", "3"]) == ConfigurationError.exit_code
    assert "--steps" in capsys.readouterr().err


def test_a_device_that_makes_other_terms_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psnode.codecs.device.spectral_checks.problem", lambda codec, device: "the device makes other terms")
    with pytest.raises(ConfigurationError, match="other terms"):
        atomo_device.rows_of(OPTIONS, torch.device("cpu"))
