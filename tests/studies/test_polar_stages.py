"""`python -m studies.polar_stages`: its stages equal the codec's, so that its decoded values have the codec's error."""

from __future__ import annotations

import numpy as np
import pytest

from psnode.codecs import get_codec
from psnode.codecs.rng import Key
from studies.harness import main
from studies.polar_stages import STUDY, Bench, Stages


@pytest.mark.parametrize("rate", [0.5, 1.0, 3.0])
def test_what_the_stages_read_has_the_error_of_the_codec(rate: float) -> None:
    """Compare the errors after scaling by the best factor, which the codec finds itself. Different random words change
    either error by one per cent.
    """
    bench, out = Bench(rate, 10), np.empty(32 << 10, np.float32)
    stages = Stages()
    bench.decode(stages, *bench.encode(stages), out)
    codec = get_codec(f"polar:rate={rate},block=1024,prior=gaussian")
    expected = codec.decode(codec.encode(bench.x, Key.derive(1)))
    out *= (bench.x @ out) / (out @ out)
    errors = [np.mean((bench.x - found).astype(np.float64) ** 2) for found in (out, expected)]
    assert errors[0] == pytest.approx(errors[1], rel=0.05)
    assert all(seconds > 0 for seconds in stages.found.values())


def test_the_command_adds_up_its_stages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(STUDY, ["--log-length", "10", "--repeats", "2"]) == 0
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    for side in ("encode", "decode"):
        parts = [float(cells[1]) for cells in rows if cells[0].startswith(f" {side}: ")]
        (total,) = [float(cells[1]) for cells in rows if cells[0] == f" {side} "]
        assert sum(parts) == pytest.approx(total, abs=0.01 * len(parts))
