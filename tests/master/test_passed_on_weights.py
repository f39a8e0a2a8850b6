"""Weights that workers pass on: every run equals, bit for bit, the run in which rank 0 sends the weights to all workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from psnode.errors import ConfigurationError, TransportError
from psnode.protocol.wire import Kind
from psnode.records.metrics import METRICS, read_records
from psnode.transport.base import Buffer, Pending
from psnode.transport.loopback import LoopbackTransport
from tests.master.test_dealt_weights import CENTRAL, differences, model_hash, trained

PASSED_ON = "star:down=tree"
DENSE: dict[str, Any] = {"scheme": "dense"}
CODED: dict[str, Any] = {"scheme": "qsgd", "optimizer": "adamw", "lr": 0.01}
_VERSION = slice(24, 32)  # of a frame's header, see psnode.protocol.wire

Watch = Callable[[LoopbackTransport, int, Kind, int, int], None]  # (sender's end, receiver, kind, version, bytes)


def watched(patch: pytest.MonkeyPatch, watch: Watch) -> None:
    """Call `watch` with every group frame of weights before it is sent."""
    send = LoopbackTransport.send

    def seen(end: LoopbackTransport, rank: int, tag: int, buffers: Sequence[Buffer]) -> Pending:
        data = bytes(buffers[0])
        if data[:4] == b"PSND" and data[5] in (Kind.WEIGHTS, Kind.DELTA):
            watch(end, rank, Kind(data[5]), int.from_bytes(data[_VERSION], "little"), len(data))
        return send(end, rank, tag, buffers)

    patch.setattr(LoopbackTransport, "send", seen)


@pytest.mark.parametrize("scheme", ["dense", "topk", "efsignsgd", "atomo", "polar-2bit", "dgc"])
def test_all_kinds_of_schemes_give_the_same_checkpoint(tmp_path: Path, scheme: str) -> None:
    one, other = (trained(tmp_path / each, 3, each, {"scheme": scheme, "lr": None}) for each in (CENTRAL, PASSED_ON))
    assert differences(one, other) == []
    assert model_hash(tmp_path / CENTRAL) == model_hash(tmp_path / PASSED_ON)


@pytest.mark.parametrize(
    ("workers", "settings"), [(1, CODED), (2, CODED), (4, CODED), (5, DENSE), (6, CODED), (7, DENSE)], ids=lambda value: ""
)
def test_rank_0_sends_two_sets_of_weights_for_any_number_of_workers(
    tmp_path: Path, workers: int, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that each reader gets the weights once per step, in the star and in the tree, and that the records count all
    frames on all links.
    """
    parents = {1: 0, 2: 0, 3: 1, 4: 1, 5: 2, 6: 2, 7: 3}
    found = {}
    for topology in (CENTRAL, PASSED_ON):
        sent = Counter[tuple[int, int]]()
        with monkeypatch.context() as patch:
            watched(patch, lambda end, rank, kind, version, nbytes, sent=sent: sent.update({(end.rank, rank): nbytes}))  # type: ignore[misc]
            found[topology] = trained(tmp_path / topology, 3, topology, settings, local=workers), sent
        booked = sum(record["downlink_bytes"] for record in read_records(tmp_path / topology / METRICS))
        assert booked == sum(sent.values())
    (one, star), (other, tree) = found.values()
    assert differences(one, other) == []
    each = star[0, 1]
    assert star == {(0, rank): each for rank in range(1, workers + 1)}
    assert tree == {(parents[rank], rank): each for rank in range(1, workers + 1)}
    assert sum(nbytes for (sender, _), nbytes in tree.items() if sender == 0) == min(2, workers) * each


def test_a_run_is_resumed_with_either(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", 6, CENTRAL, CODED)
    trained(tmp_path / "parts", 2, PASSED_ON, CODED)
    trained(tmp_path / "parts", 4, CENTRAL, CODED, resume=True)
    assert differences(whole, trained(tmp_path / "parts", 6, PASSED_ON, CODED, resume=True)) == []


@pytest.mark.parametrize(("lost", "settings"), [(1, CODED), (2, DENSE), (3, CODED), (6, DENSE)], ids=["1", "2", "3", "6"])
def test_a_lost_worker_leaves_those_behind_it_with_the_weights(
    tmp_path: Path, lost: int, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check a worker that is lost before the last group of version 2 reaches it: all its gradients of the second step count,
    and no later ones.

    The five steps belong to one epoch, in which the shares of the examples do not change.
    """
    found = []
    for topology in (CENTRAL, PASSED_ON):
        came = Counter[int]()  # frames by version

        def die(end: LoopbackTransport, rank: int, kind: Kind, version: int, nbytes: int, came: Counter[int] = came) -> None:
            if rank == lost:
                came[version] += 1
                if version == 2 and came[2] == came[1]:
                    end._group[rank].die("a test")
                    end._group[rank].inboxes.tell(TransportError("a test"))

        with monkeypatch.context() as patch:
            watched(patch, die)
            found.append(trained(tmp_path / topology, 5, topology, settings, local=7, batch_size=2, hash_every=1))
    assert differences(*found) == []
    events = read_records(tmp_path / PASSED_ON / "events.jsonl")
    behind = {1: "ranks 3, 4, 7", 2: "ranks 5, 6", 3: "rank 7"}.get(lost)
    told = [(lost, f"rank 0 sends the weights to {behind} itself")] if behind else []
    assert [(event["rank"], event["reason"]) for event in events if event["event"] == "bypassed"] == told


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"consistency": "kofn", "num_aggregate": 2}, "--consistency"),
        ({"consistency": "ssp"}, "--consistency"),
        ({"plan": "auto"}, "--plan auto"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_settings_under_which_not_all_workers_get_every_version_are_refused(
    tmp_path: Path, settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{named} .* under --topology star:down=tree: use --topology star$"):
        trained(tmp_path / "run", 3, PASSED_ON, {**DENSE, **settings})
