"""Ranks per node: from the numbers of GPUs, or as set."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from typing import Any

import pytest

from psnode_ec2.cloud import Cloud
from psnode_ec2.cluster import Node
from psnode_ec2.ec2_errors import SettingsError
from psnode_ec2.rank_placement import lines, slots
from psnode_ec2.settings import Settings

NOW = datetime.datetime.now(datetime.UTC)


def node(name: str, kind: str) -> Node:
    role = name.partition("-")[0]
    return Node(name, role, f"i-{name}", kind, "b", "running", False, f"10.0.0.{len(name)}", "", NOW, "")


def cluster(master: str, *workers: str) -> list[Node]:
    return [node("master", master), *(node(f"worker-{n}", kind) for n, kind in enumerate(workers))]


@pytest.mark.parametrize(
    ("nodes", "settings", "counts"),
    [
        # NVIDIA GPUs as AWS states them: four in a g4dn.12xlarge, eight in a p4d.24xlarge, one in a g4dn.xlarge
        (cluster("m5.large", "g4dn.12xlarge", "p4d.24xlarge"), {}, [1, 4, 8]),
        (cluster("g4dn.12xlarge", "g4dn.12xlarge"), {}, [1, 4]),
        (cluster("g4dn.12xlarge", "g4dn.12xlarge"), {"workers_on_master": "auto"}, [5, 4]),
        (cluster("m5.large", "m5.large"), {"workers_on_master": "auto"}, [1, 1]),
        (cluster("m5.large", "g4dn.xlarge", "m5.large"), {}, [1, 1, 1]),
        (cluster("m5.large", "g4dn.12xlarge"), {"workers_per_node": 2, "workers_on_master": 1}, [2, 2]),
    ],
)
def test_a_node_has_a_worker_for_each_gpu_unless_the_settings_say_otherwise(
    aws: Any, nodes: list[Node], settings: dict[str, Any], counts: list[int]
) -> None:
    made = Settings(name="gpus", region="us-west-2", **settings)
    assert slots(Cloud(made), made, nodes) == counts


def test_a_master_alone_has_nobody_to_compute(aws: Any) -> None:
    made = Settings(name="gpus", region="us-west-2")
    with pytest.raises(SettingsError, match="no node has a worker"):
        slots(Cloud(made), made, cluster("m5.large"))


def test_the_hostfile_has_numbers_where_a_node_has_several() -> None:
    assert lines(cluster("m5.large", "m5.large"), [1, 1]) == ["10.0.0.6", "10.0.0.8"]
    assert lines(cluster("m5.large", "g4dn.12xlarge"), [1, 4]) == ["10.0.0.6 slots=1", "10.0.0.8 slots=4"]


def test_run_starts_a_worker_for_each_gpu(ec2: Callable[..., Any], aws: Any, tmp_path: Any) -> None:
    aws.prices["g4dn.12xlarge"] = 1.0
    big = ("--worker-type", "g4dn.12xlarge", "--no-placement-group")
    assert ec2("launch", "--yes", *big).code == 0
    done = ec2("run", "--dry-run", "--", "train", "--spares", "1")
    assert re.search(
        r"psnode launch -n 8 --hostfile hosts_address .* --map-by --mpirun-arg slot:OVERSUBSCRIBE -- train", done.out
    )
    assert re.search(r"'[0-9.]+ slots=1,[0-9.]+ slots=4,[0-9.]+ slots=4'", done.out)
    assert ec2("get_hosts", "--directory", tmp_path / "hosts", *big).code == 0
    assert [line.split()[1] for line in (tmp_path / "hosts/hostfile").read_text().splitlines()] == [
        "slots=1",
        "slots=4",
        "slots=4",
    ]
