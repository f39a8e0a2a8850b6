"""Edge cases on one of two ranks under torch.distributed: python edges.py RANK FOLDER. Writes the results to FOLDER/RANK.json."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from psnode import ddp
from psnode.errors import ConfigurationError
from tests.ddp.program import RANKS, Linear, gradients, steps, wrapped

RULES = ("ef", "ef:decay=0.5", "ecq", "dgc:momentum=0.9", "ema", "momentum")
# "ema" adds only a tenth of 3e38, so that its average and the sum stay finite
LEFT_OUT = [(rule, why) for rule in RULES for why in ("infinite", "overflow", "told") if (rule, why) != ("ema", "overflow")]


def memories(state: ddp.HookState) -> dict[str, torch.Tensor]:
    return {key: value for key, value in state.state_dict().items() if key.startswith("memories/")}


def change(before: dict[str, torch.Tensor], state: ddp.HookState) -> float:
    """Return the largest absolute difference between a memory and its value in `before`."""
    after = memories(state)
    assert before.keys() == after.keys()
    assert before
    return max(float((after[key] - before[key]).abs().max()) for key in before)


def left_out(rank: int, rule: str, why: str) -> float:
    """Return the change of the memories through a step that is not taken. At most one bucket of its gradient has values that
    are not finite.
    """
    network, model = wrapped()
    state, hook = ddp.comm_hook("topk:ratio=0.05", feedback=rule, model=network)
    model.register_comm_hook(state, hook)
    steps(model, rank, 0, 3)
    before = memories(state)
    found = gradients(rank, 3)
    if why == "infinite" and rank == 1:
        found["c"][3, 3] = torch.inf
    if why == "overflow":
        found["c"][3, 3] = 3e38  # finite on each rank, but the sum over the ranks is infinite
    model.zero_grad()
    model(found).backward()
    if why == "told":
        assert change(before, state) > 0
        state.take_back()
    return change(before, state)


def scaled(rank: int, way: str) -> float:
    """Return the largest difference between the memories of a training with a growing loss scale and of a training without a
    scale.
    """
    network, model = wrapped()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    other = torch.amp.GradScaler("cpu")
    if way == "named":
        other.scale(torch.ones(1))  # a second scaler is in use too
    state, hook = ddp.comm_hook("topk:ratio=0.05", model=network, scaler=scaler if way == "named" else None)
    model.register_comm_hook(state, hook)
    plain, bare = wrapped()
    second, hook = ddp.comm_hook("topk:ratio=0.05", model=plain, scaler=False)
    bare.register_comm_hook(second, hook)
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    for step in range(6):
        if way == "resumed" and step == 3:  # resumes from a state that was saved after the scale had grown again
            saved = state.state_dict()
            again, model = wrapped()
            again.load_state_dict(network.state_dict())
            network = again
            optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
            state, hook = ddp.comm_hook("topk:ratio=0.05", model=network)
            state.load_state_dict(saved)
            model.register_comm_hook(state, hook)
        optimizer.zero_grad()
        scaler.scale(model(gradients(rank, step))).backward()
        scaler.step(optimizer)
        scaler.update()
        steps(bare, rank, step, step + 1)
    assert scaler.get_scale() == 1024.0 * 8
    right, scale = memories(second), state.state_dict()["scale"]
    return max(float((value / scale - right[key]).abs().max()) for key, value in memories(state).items())


def refused(rank: int, what: str, groups: list[dist.ProcessGroup]) -> str:
    """Return the error message of the first step after a misuse of the hook, or an empty text if no error is raised."""
    network = Linear()
    state, hook = ddp.comm_hook("topk:ratio=0.05", model=network)
    scalers = [torch.amp.GradScaler("cpu") for _ in range(2)]
    if what == "scalers":
        for each in scalers:
            each.scale(torch.ones(1))
    if what == "late":
        ddp.AllRanks(state).state_dict()  # among all ranks, since no DDP is known yet
    model = DistributedDataParallel(network, process_group=groups[rank] if what == "late" else None)
    model.register_comm_hook(state, hook)
    try:
        steps(model, rank, 0, 1)
    except ConfigurationError as error:
        return str(error)
    return ""


def copied(rank: int) -> bool:
    """Return True if a copy of the watched model has equal weights and can be trained on its own."""
    network, model = wrapped()
    model.register_comm_hook(*ddp.comm_hook("topk", model=model))
    steps(model, rank, 0, 1)
    again = copy.deepcopy(network)
    again(gradients(rank, 1)).backward()
    return all(torch.equal(value, again.weights[name]) for name, value in network.weights.items())


def main(rank: int, folder: Path) -> None:
    """Run all cases in sequence, and write the results."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    groups = [dist.new_group([each]) for each in range(RANKS)]
    out: dict[str, Any] = {
        "left out": {f"{rule} {why}": left_out(rank, rule, why) for rule, why in LEFT_OUT},
        "scaled": {way: scaled(rank, way) for way in ("found", "named", "resumed")},
        "refused": {what: refused(rank, what, groups) for what in ("scalers", "late")},
        "copied": copied(rank),
    }
    (folder / f"{rank}.json").write_text(json.dumps(out))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]), Path(sys.argv[2]))
