"""Bytes through the link of every rank: the counts of senders and receivers, compared with the sizes of frames by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from psnode.exchange.routes.topologies import routes_of
from psnode.master.link_bytes import LinkBytes
from psnode.plans.groups import Tensor
from psnode.plans.roles import Layout
from psnode.plans.rule import make_plan
from psnode.records.metrics import read_records
from tests.master.test_dealt_weights import trained

TOPOLOGIES = ["star", "mesh", "gather", "star:down=tree"]
_WAYS = ("gradients_out", "weights_out", "gradients_in", "weights_in")


def link_bytes(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())["link_bytes"]
    return found


def frames(folder: Path) -> list[int]:
    """Return for each group the bytes of a frame of float32, if all segments are flat (docs/wire-format.md,
    payload-format.md).
    """
    header, count, length, payload_header = 52, 4, 4, 8 + 4
    groups = json.loads((folder / "config.json").read_text())["plan"]["groups"]
    assert all(len(shape) == 1 for group in groups for _, _, shape in group)
    return [header + count + sum(length + payload_header + 4 * shape[0] for _, _, shape in group) for group in groups]


@pytest.mark.parametrize("scheme", ["dense", "topk:ratio=0.1", "signum"])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_all_that_leaves_enters_somewhere_and_adds_up_to_the_bytes_of_the_run(tmp_path: Path, topology: str, scheme: str) -> None:
    trained(tmp_path, 4, topology, {"scheme": scheme, "lr": None})
    found = link_bytes(tmp_path)
    records = list(read_records(tmp_path / "metrics.jsonl"))
    up, down = (sum(record[name] for record in records) for name in ("uplink_bytes", "downlink_bytes"))
    totals = {way: sum(rank[way] for rank in found["ranks"].values()) for way in _WAYS}
    assert found["steps"] == 4
    assert totals == {"gradients_out": up, "weights_out": down, "gradients_in": up, "weights_in": down}
    assert up > 0


def test_dense_frames_of_a_star_all_pass_the_master(tmp_path: Path) -> None:
    trained(tmp_path, 3, "star", {"scheme": "dense"})
    whole = 3 * sum(frames(tmp_path))
    assert link_bytes(tmp_path)["ranks"] == {
        "0": {"gradients_out": 0, "weights_out": 3 * whole, "gradients_in": 3 * whole, "weights_in": 0},
        **{r: {"gradients_out": whole, "weights_out": 0, "gradients_in": 0, "weights_in": whole} for r in "123"},
    }


def test_dense_frames_of_a_tree_pass_the_master_twice_and_rank_1_once_more(tmp_path: Path) -> None:
    """Check the bytes of weights for three workers: the first two get weights from rank 0, and worker 1 passes them on to
    worker 3.
    """
    trained(tmp_path, 3, "star:down=tree", {"scheme": "dense"})
    ranks, whole = link_bytes(tmp_path)["ranks"], 3 * sum(frames(tmp_path))
    assert {rank: each["weights_out"] for rank, each in ranks.items()} == {"0": 2 * whole, "1": whole, "2": 0, "3": 0}
    assert {rank: each["weights_in"] for rank, each in ranks.items()} == {"0": 0, "1": whole, "2": whole, "3": whole}


def test_dense_frames_of_a_gather_pass_every_worker_alike_and_never_the_master(tmp_path: Path) -> None:
    trained(tmp_path, 3, "gather", {"scheme": "dense"})
    whole = 3 * 2 * sum(frames(tmp_path))
    assert link_bytes(tmp_path)["ranks"] == {
        "0": dict.fromkeys(("gradients_out", "weights_out", "gradients_in", "weights_in"), 0),
        **{r: {"gradients_out": whole, "weights_out": 0, "gradients_in": whole, "weights_in": 0} for r in "123"},
    }


def test_a_worker_of_a_mesh_keeps_its_own_part_from_its_link(tmp_path: Path) -> None:
    """Check that a worker of three sends the gradients of all parts but its own, and gets those of its own part from both
    others; weights go back.
    """
    trained(tmp_path, 3, "mesh", {"scheme": "dense"})
    sizes, loads, own = frames(tmp_path), dict.fromkeys("123", 0), dict.fromkeys("123", 0)
    groups = json.loads((tmp_path / "config.json").read_text())["plan"]["groups"]
    coordinates = [sum(shape[0] for _, _, shape in group) for group in groups]
    for group in sorted(range(len(sizes)), key=lambda group: -coordinates[group]):
        rank = min(loads, key=lambda rank: loads[rank])
        loads[rank] += coordinates[group]
        own[rank] += 3 * sizes[group]
    whole = 3 * sum(sizes)
    assert link_bytes(tmp_path)["ranks"] == {
        "0": dict.fromkeys(("gradients_out", "weights_out", "gradients_in", "weights_in"), 0),
        **{
            rank: {
                "gradients_out": whole - part, "weights_out": 2 * part, "gradients_in": 2 * part, "weights_in": whole - part,
            }
            for rank, part in own.items()
        },
    }  # fmt: skip


def test_a_resumed_run_tells_of_its_last_part(tmp_path: Path) -> None:
    trained(tmp_path, 3, "star", {"scheme": "dense"})
    trained(tmp_path, 5, "star", {"scheme": "dense"}, resume=True)
    found = link_bytes(tmp_path)
    assert found["steps"] == 2
    assert found["ranks"]["1"]["gradients_out"] == 2 * sum(frames(tmp_path))


PLAN = make_plan([Tensor(f"{index}.weight", (8, 8)) for index in range(3)], "identity", group_by="layer", min_compress_bytes=0)
FRAME = 52 + 4 + 4 + (8 + 4) + 4 * 64  # of one group


def test_ranks_without_the_weights_get_all_groups_from_their_roots() -> None:
    account = LinkBytes(PLAN.groups, routes_of(Layout(3), PLAN, "mesh"))
    account.send_whole([2, 3])
    found = account.facts(1)["ranks"]
    assert {rank: each["weights_out"] for rank, each in found.items()} == {"0": 0, "1": 2 * FRAME, "2": FRAME, "3": FRAME}
    assert {rank: each["weights_in"] for rank, each in found.items()} == {"0": 0, "1": 0, "2": 2 * FRAME, "3": 2 * FRAME}


def test_weights_go_only_to_ranks_that_take_part() -> None:
    """Check a tree of three workers: rank 0 itself sends to rank 3 once rank 1, which passes weights on to it, is gone."""
    account = LinkBytes(PLAN.groups, routes_of(Layout(3), PLAN, "star:down=tree"))
    account.send_to([2, 3])
    account.send_weights(0, 2 * FRAME)
    found = account.facts(1)["ranks"]
    assert {rank: each["weights_out"] for rank, each in found.items()} == {"0": 2 * FRAME, "1": 0, "2": 0, "3": 0}
    assert {rank: each["weights_in"] for rank, each in found.items()} == {"0": 0, "1": 0, "2": FRAME, "3": FRAME}
