"""A profile of round figures, and directories of runs with given figures, for tests of refits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from psnode.config import Config
from psnode.config.plain_json import to_json
from psnode.config.resolve import resolve
from psnode.jobs.planning.profile import GroupCosts, HostCosts, Profile, SchemeCosts, TensorTimes
from psnode.plans.groups import IDENTITY, Group, Plan, Segment, Tensor
from psnode.records.directory import CONFIG
from psnode.records.metrics import METRICS

QSGD = resolve(Config(scheme="qsgd")).codec
TENSORS = (Tensor("weight", (100, 10)), Tensor("bias", (1000,)))


def plan_of_codecs(*groups: tuple[str, ...]) -> Plan:
    """Return a plan of groups. Each tuple of `codecs` is a group with a segment per codec; all segments have equal size."""
    size, made = 2000 // sum(map(len, groups)), list[Group]()
    for codecs in groups:
        first = sum(len(group.segments) for group in made)
        segments = [Segment(first + n, codec, size * (first + n), (size,)) for n, codec in enumerate(codecs)]
        made.append(Group(len(made), tuple(segments)))
    return Plan(TENSORS, tuple(made))


HALVES = plan_of_codecs((QSGD,), (QSGD,))


def profile() -> Profile:
    """Return a profile of two tensors, each a group, under three schemes, on a host whose messages cost nothing."""

    def costs(scheme: str, factor: float, *, lossy: bool) -> SchemeCosts:
        groups = tuple(
            GroupCosts(
                1000 if lossy else 4052, 500 if lossy else 4052, 0.002 * factor, 0.001, 0.001 * factor, 0.003 * factor,
                ready, needed, coded=1000 * lossy, plain=1000 * (not lossy),
            )
            for ready, needed in ((0.1, 0.04), (0.2, 0.0))
        )  # fmt: skip
        codec = QSGD if lossy else IDENTITY
        plan = plan_of_codecs((codec,), (codec,)).to_dict()
        return SchemeCosts(groups, 0.0, 0.0, lossy, settings={"scheme": scheme}, plan=plan)

    schemes = {
        "qsgd": costs("qsgd", 1, lossy=True),
        "topk": costs("topk", 5, lossy=True),
        "dense": costs("dense", 1, lossy=False),
    }
    tensors = (TensorTimes((100, 10), 0.1, 0.04, "weight"), TensorTimes((1000,), 0.2, 0.0, "bias"))
    return Profile("LeNet", 1, 0.1, 0.2, 0.01, tensors, HostCosts(0.0, 0.0, 0.0, 0.0, 16, 1.0), schemes, {"fp32": 0.02})


def record(step: int, **changes: Any) -> dict[str, Any]:
    """Return a record of three workers.

    Passes take twice the profile's time, coding three times, decoding four times, and updates five times. A worker sends one
    and a half times the profile's bytes, and gets half of them.
    """
    parts = {"step": 1.5, "forward_backward": 2 * 0.302, "encode": 3 * 0.004, "wait": 0.1, "decode": 4 * 3 * 0.002}
    found = {
        "step": step, "workers": 3, "contributing": 3, "uplink_bytes": 3 * 3000, "downlink_bytes": 3 * 500,
        "seconds": {**parts, "update": 0.02, "downlink": 0.01},
    }  # fmt: skip
    return found | changes


def make_run(
    path: Path, records: list[dict[str, Any]] | None = None, *, plan: Plan = HALVES, more: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Path:  # fmt: skip
    """Write the files of a run of three workers under qsgd, with 14 equal steps unless `records` are given."""
    config = Config(**{"scheme": "qsgd", "network": "LeNet", **settings})
    content = {"workers": 3, "config": config.to_dict(), "scheme": resolve(config).to_dict(), "plan": plan.to_dict()}
    path.mkdir(parents=True)
    (path / CONFIG).write_text(to_json(content | dict(more or {})))
    lines = records if records is not None else [record(step) for step in range(1, 15)]
    (path / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
