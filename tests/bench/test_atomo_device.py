"""`psnode bench atomo --device`: what it measures on torch's CPU, and what it refuses."""

from __future__ import annotations

import pytest
import torch

from psnode.bench import atomo, atomo_device
from psnode.cli import main
from psnode.errors import ConfigurationError
from tests.bench.test_atomo import fully_connected

SMALL = {"network": "FC", "dataset": "synthetic", "synthetic_shape": (1, 28, 28), "batch_size": 64}


def test_every_matrix_is_coded_and_the_step_beside_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(atomo.MODELS, "ResNet-18", SMALL)
    result = atomo_device.run(["ResNet-18"], 3, 1, torch.device("cpu"))
    row = result["models"]["ResNet-18"]
    large = [each for each in fully_connected() if each.dim() > 1 and 3 * sum(each.shape) < each.numel()]
    assert (row["matrices"], row["values"]) == (len(large), sum(each.numel() for each in large))
    assert row["passes"] > 0 and set(row["coding"]) == {"exact", "randomised"}
    assert f"| ResNet-18 | {row['passes']:.1f} | {len(large)} |" in atomo_device.markdown(result)


def test_a_device_that_is_none_is_refused_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    for device in ("tpu", "cuda:", "cuda:x", "cuda:99"):
        assert main(["bench", "atomo", "--device", device]) == ConfigurationError.exit_code
        [line] = capsys.readouterr().err.strip().splitlines()
        assert f"--device {device}: " in line
    assert main(["bench", "atomo", "--device", "cuda", "--steps", "3"]) == ConfigurationError.exit_code
    assert "--steps" in capsys.readouterr().err


def test_a_device_that_makes_other_terms_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psnode.exchange.device.spectral_trust.problem", lambda codec, device: "the device makes other terms")
    with pytest.raises(ConfigurationError, match="other terms"):
        atomo_device.run(["ResNet-18"], 3, 1, torch.device("cpu"))
