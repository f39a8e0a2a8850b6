"""A finite gradient that is disproportionately large, from a lie or a flipped bit: it is refused, reported with its rank,
and not in the weights.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psnode.codecs import Payload
from psnode.config import Config
from psnode.errors import DivergedError
from psnode.protocol import wire
from psnode.records import checkpoint
from tests.faults.test_hostile import Lie, settings, train, with_body


def decoded(change: Any) -> Lie:
    """Return a lie that applies `change` to the float32 values of every payload of an uncoded frame."""

    def changed(body: bytes) -> bytes:
        count = struct.unpack_from("<I", body)[0]
        lengths = struct.unpack_from(f"<{count}I", body, 4)
        start, found = 4 * (1 + count), bytearray(body)
        for nbytes in lengths:
            payload = Payload.from_bytes(np.frombuffer(body[start : start + nbytes], np.uint8))
            values = np.array(payload.body.view(np.float32))
            end = start + nbytes
            found[end - values.nbytes : end] = change(values).astype(np.float32).tobytes()
            start += wire.padded(nbytes)
        return bytes(found)

    return with_body(changed)


def one_large(values: np.ndarray) -> np.ndarray:
    values[0] = 3e38
    return values


def dense(train_dir: Path, **changed: Any) -> Config:
    return Config(**{**settings(train_dir), "scheme": "dense", "group_by": "model", "min_compress_bytes": 4096, **changed})


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def largest_weight(folder: Path) -> float:
    newest = checkpoint.latest(folder)
    assert newest is not None
    return max(float(tensor.abs().max()) for tensor in checkpoint.Checkpoint.open(newest).tensors(checkpoint.MODEL).values())


@pytest.mark.parametrize(("workers", "liar", "step"), [(2, 1, 1), (2, 2, 1), (3, 1, 6), (3, 3, 6)])
def test_one_finite_gradient_of_3e38_is_refused_and_told_with_its_rank(
    tmp_path: Path, workers: int, liar: int, step: int
) -> None:
    config = dense(tmp_path / "run", local=workers)
    assert train(config, workers, liar=liar, lie=decoded(one_large), step=step, most=1) == 0
    told = [event for event in events(tmp_path / "run") if event["event"] in ("rejected", "lost", "skipped")]
    assert [(event["event"], event["rank"], event["step"]) for event in told] == [("rejected", liar, step - 1)]
    assert told[0]["reason"].startswith(
        f"NormError: the gradient of rank {liar}, step {step}, group 0, has the norm 3e+38; more than"
    )
    assert largest_weight(tmp_path / "run") < 10
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [record["contributing"] for record in records] == [workers - (record["step"] == step) for record in records]


def test_nothing_of_a_refused_gradient_is_in_the_weights(tmp_path: Path) -> None:
    """Check that two kinds of too large gradients give the same weights: a worker that always lies has the effect of an
    absent worker.
    """
    hashes = []
    for name, lie in (("large", decoded(one_large)), ("scaled", decoded(lambda values: 1000 * values))):
        config = dense(tmp_path / name, norm_cap=10.0 if name == "scaled" else 1e6)
        assert train(config, 3, liar=3, lie=lie, step=1) == 0
        told = [(event["event"], event["rank"]) for event in events(tmp_path / name) if event["rank"]]
        assert told == [("rejected", 3)] * 3 + [("lost", 3)]
        hashes.append(json.loads((tmp_path / name / "summary.json").read_bytes())["model_hash"])
    assert hashes[0] == hashes[1]


def test_without_a_cap_a_sum_that_is_not_finite_is_not_applied(tmp_path: Path) -> None:
    """Check that the sum of two finite gradients of 3e38, which is infinite, is not applied."""
    config = dense(tmp_path / "run", local=2, norm_cap=0.0)
    assert train(config, 2, liar=(1, 2), lie=decoded(one_large), step=3, most=1) == 0
    found = [event for event in events(tmp_path / "run") if event["event"] == "not applied"]
    assert [event["step"] for event in found] == [2]
    assert found[0]["reason"].startswith("the sum of the gradients of ranks 1, 2 for group 0 is not finite")
    assert largest_weight(tmp_path / "run") < 10


def test_without_a_cap_who_is_told_is_who_sent_it_and_not_who_met_it_first(tmp_path: Path) -> None:
    """Check that the error names the sender of the huge gradient. All weights and all losses are ruined, so the workers that
    report this are not to blame.
    """

    def all_large(values: np.ndarray) -> np.ndarray:
        return np.float32(3e38) * np.sign(values)

    with pytest.raises(DivergedError, match=r"the latest gradient of rank 1 had the norm 3.4e\+38, those of the others about \d"):
        train(dense(tmp_path / "run", norm_cap=0.0), 3, liar=1, lie=decoded(all_large), step=4, most=1)


def flipped(values: np.ndarray) -> np.ndarray:
    """Flip the highest exponent bit of the largest value."""
    values.view(np.uint32)[np.abs(values).argmax()] ^= 1 << 30
    return values


def test_a_flipped_bit_of_an_exponent_costs_one_gradient_and_no_worker(tmp_path: Path) -> None:
    for name in ("model", "layer"):
        config = dense(tmp_path / name, group_by=name)
        assert train(config, 2, liar=2, lie=decoded(flipped), step=5, most=1) == 0
        told = [(event["event"], event["rank"], event["step"]) for event in events(tmp_path / name) if event["rank"]]
        assert told == [("rejected", 2, 4)]
        assert largest_weight(tmp_path / name) < 10
