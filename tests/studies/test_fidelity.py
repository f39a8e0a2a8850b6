"""`python -m studies.fidelity`: its figures from bits and errors, compared with theory."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from psnode.codecs import available, get_codec
from studies.fidelity import POLAR, SETTINGS, STUDY, Frontier
from studies.fidelity_plot import _quantised, scalar_quantiser
from studies.harness import main

LOSSLESS_OR_WIDE = {"identity", "blosc", "fp16", "bf16", "sign"}


def test_between_settings_decibels_are_in_proportion_to_bits() -> None:
    found = Frontier([(2, 1e-2), (1, 1e-1)])
    assert found.decibels_at(1.5) == pytest.approx(-15)
    assert found.decibels_at(0.5) == pytest.approx(-5)
    assert found.decibels_at(7) == pytest.approx(-20)
    assert found.bits_at(-15) == pytest.approx(1.5)
    assert found.bits_at(-21) is None


def test_a_setting_with_more_bits_and_more_error_does_not_count() -> None:
    assert Frontier([(1, 1e-2), (2, 1e-1)]).decibels_at(2) == pytest.approx(-20)


def test_entropy_and_error_of_a_quantiser_are_those_of_quadrature() -> None:
    edges = np.concatenate([-np.arange(0.7 + 9 * 0.9, 0, -0.9)[:10], np.arange(0.7, 0.7 + 9.5 * 0.9, 0.9)])
    bits = error = 0.0
    for low, high in zip(np.r_[-np.inf, edges], np.r_[edges, np.inf], strict=True):
        share = norm.cdf(high) - norm.cdf(low) if low < 0 else norm.sf(low) - norm.sf(high)
        if share > 1e-14:
            mean = quad(lambda x: x * norm.pdf(x), low, high)[0] / share
            error += quad(lambda x, mean=mean: (x - mean) ** 2 * norm.pdf(x), low, high)[0]
            bits -= share * np.log2(share)
    assert _quantised(0.9, 0.7) == pytest.approx((bits, error), rel=1e-5)


def test_scalar_quantisers_are_a_quarter_of_a_bit_above_the_limit_at_high_rates() -> None:
    """Check that the distance from the limit rises with the rate, up to log2(2 pi e / 12) / 2 = .2546 bit."""
    bits = np.array([0.5, 1, 3])
    over = bits + 0.5 * np.log2(scalar_quantiser(bits))
    assert over[2] == pytest.approx(0.5 * np.log2(2 * np.pi * np.e / 12), abs=1e-3)
    assert (np.diff(over) > 0).all()


def test_every_codec_that_loses_something_is_compared() -> None:
    names = {get_codec(spec.partition("+")[0]).id for spec in SETTINGS}
    assert names >= set(available()) - LOSSLESS_OR_WIDE


def test_the_command_measures_draws_and_says_what_polar_saves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = tmp_path / "found.json", tmp_path / "plot.png"
    command = ["--size", "65536", "--codec", "qsgd:levels=3+ans", "--codec", "identity"]
    assert main(STUDY, [*command, "--json", str(files[0]), "--plot", str(files[1])]) == 0
    assert files[1].read_bytes().startswith(b"\x89PNG")
    rows = {row["spec"]: row for row in json.loads(files[0].read_text())["rows"]}
    assert set(rows) == {*POLAR, "qsgd:levels=3+ans", "identity"}
    for rate, spec in zip((0.5, 1, 1.5, 2, 3, 4), POLAR, strict=True):
        assert rows[spec]["bits"] == pytest.approx(rate, abs=0.05)
        assert rows[spec]["more"] == pytest.approx(0, abs=1e-9)
    qsgd = rows["qsgd:levels=3+ans"]
    assert qsgd["more"] > 0.4
    assert "qsgd:levels=3+ans" in capsys.readouterr().out
