"""`psnode bench polar-stages`: its stages are those of the codec, so that its decoded values have the codec's error."""

from __future__ import annotations

import numpy as np
import pytest

from psnode.bench.polar_stages import Bench, Stages
from psnode.cli import main
from psnode.codecs import get_codec
from psnode.codecs.rng import Key


@pytest.mark.parametrize("rate", [0.5, 1.0, 3.0])
def test_what_the_stages_read_has_the_error_of_the_codec(rate: float) -> None:
    """After the best factor, which the codec finds itself. Random words differ, which spreads either error by one per cent."""
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
    assert main(["bench", "polar-stages", "--log-length", "10", "--repeats", "2"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    for side in ("encode", "decode"):
        parts = [float(row[-2]) for row in rows if row[0] == f"{side}:"]
        (total,) = [float(row[1]) for row in rows if row[0] == side]
        assert sum(parts) == pytest.approx(total, abs=0.01 * len(parts))
