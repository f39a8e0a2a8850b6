"""One scale for all tensors compared with one scale per tensor: figures that theory gives."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from studies.harness import main
from studies.scales import STUDY, Options, measure


def test_a_fused_scale_leaves_what_theory_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check Gaussians of scale 1 and k: one scale per tensor leaves 1 - 2/pi, and a fused scale 1 - (2/pi) ((1 + k) / 2)^2 /
    ((1 + k^2) / 2).

    With 2 x 2^16 values, both scatter by about .002; the tolerance .02 is ten times larger.
    """
    k, rng = 10, np.random.default_rng(3)
    tensors = {name: (scale * rng.standard_normal((256, 256))).astype(np.float32) for name, scale in (("a", 1), ("b", k))}
    save_file(tensors, tmp_path / "two.safetensors")
    [row] = measure(Options(gradient=tmp_path / "two.safetensors", codec=("scaledsign",))).rows
    assert row["by_tensor"] == pytest.approx(1 - 2 / math.pi, abs=0.02)
    assert row["fused"] == pytest.approx(1 - 2 / math.pi * ((1 + k) / 2) ** 2 / ((1 + k * k) / 2), abs=0.02)
    assert main(STUDY, ["--gradient", str(tmp_path / "two.safetensors"), "--codec", "scaledsign"]) == 0
    assert f"| scaledsign | {row['fused']:.3g} | {row['by_tensor']:.3g} |" in capsys.readouterr().out
