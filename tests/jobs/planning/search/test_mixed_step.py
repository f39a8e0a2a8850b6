"""A worker and its master under a plan whose groups have different codecs, through the rig that `psnode plan` measures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from psnode.config.load import load
from psnode.config.resolve import resolve
from psnode.jobs.planning import step_rigs
from psnode.jobs.planning.search.grouping import GroupChoice, grouped_plan
from psnode.jobs.planning.step_rigs import Exchanging, TimedModel
from psnode.plans.groups import Plan, Tensor
from psnode.protocol.wire import HEADER_BYTES
from psnode.tasks.loading import make_task
from psnode.worker import inspection
from psnode.worker.computation import Computation

MODEL = {"network": "FC", "dataset": "synthetic", "synthetic_shape": (1, 8, 8), "batch_size": 4, "threads": 1, "scheme": "topk"}
RATE = 0.05
CODECS = {"topk": "topk:ratio=0.01", "dense": "identity", "bf16": "bf16"}


def test_tensors_sent_as_they_are_move_as_under_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the first step against plain gradient descent: top-k has error feedback and no momentum, so tensors without a
    codec take such a step.
    """
    monkeypatch.setattr(inspection, "unwatchable", lambda model: "")  # other tests compile models in this process
    config = replace(load(MODEL | {"lr": RATE}, {}), log_interval=10**9, hash_every=0)
    ground = TimedModel(make_task(config), 4, torch.device("cpu"), coded_there=False, seed=config.seed)

    def mixed(tensors: list[Tensor], scheme: Any, settings: Any) -> Plan:
        assert [len(tensor.shape) for tensor in tensors] in ([1, 2] * 3, [2, 1] * 3)
        names = [tensor.name for tensor in tensors]
        chosen = zip((names[:2], names[2:4], names[4:]), ("bf16", "topk", "dense"), strict=True)
        return grouped_plan(tensors, [GroupChoice(tuple(inside), flags) for inside, flags in chosen], CODECS)

    monkeypatch.setattr(step_rigs, "plan_of", mixed)
    rig = Exchanging(ground, config, resolve(config))
    try:
        rig.step()
        rig.between()
        rig.step()  # its forward pass takes the first change
        found = {name: value.detach().clone() for name, value in rig._worker.model.parameters.items()}
        plan, sizes = rig.plan, [group.size for group in rig.plan.groups]
        up, down = rig.gradient_bytes, rig.weight_bytes
    finally:
        rig.close()
    coded = [segment.size for segment in plan.segments if segment.codec != "identity"]
    assert up[0] - 2 * coded[0] - 4 * (sizes[0] - coded[0]) < 2 * HEADER_BYTES + 100
    assert up[1] < 0.2 * 4 * sizes[1]
    assert 0 < up[2] - 4 * sizes[2] < 2 * HEADER_BYTES + 100
    assert 0 < down[2] - 4 * sizes[2] < 2 * HEADER_BYTES + 100
    reference = ground.model()
    computation: Computation = ground.computation(reference)
    computation.run(1, [ground.batch], None)
    moved = {}
    for name, value in reference.named_parameters():
        assert value.grad is not None
        moved[name] = (value - RATE * value.grad).detach()
    bare = []
    for segment in plan.segments:
        for name in plan.covering(segment.start, segment.stop):
            if segment.codec == "identity":
                torch.testing.assert_close(found[name], moved[name])
                bare.append(name)
            else:
                assert not torch.equal(found[name], moved[name]), name
    assert len(bare) == 4  # three vectors and a matrix
