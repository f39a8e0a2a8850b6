"""Trainings on one of two ranks under torch.distributed: python program.py RANK FOLDER. Writes the results to
FOLDER/RANK.safetensors.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from psnode import ddp

RANKS, STEPS = 2, 6
RESUMED: list[tuple[str, str, dict[str, Any]]] = [
    ("topk", "topk:ratio=0.05", {}),
    ("qsgd", "qsgd", {}),
    ("dgc", "topk:ratio=0.05", {"feedback": "dgc:momentum=0.5"}),
    ("lss", "lss:refit=4", {}),  # the codebook fitted at step 1 is in the state saved after step 3; it is fitted again at step 5
]
SHAPES = {"a": (40, 60), "b": (7,), "c": (70, 33), "d": (20, 50)}


class Linear(nn.Module):
    """A model whose loss has a given gradient c: the sum of <w, c> over the parameters, used in a different order than
    declared.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterDict({name: nn.Parameter(torch.zeros(shape)) for name, shape in SHAPES.items()})

    def forward(self, gradients: dict[str, torch.Tensor]) -> torch.Tensor:
        order = ("c", "a", "d", "b")
        return torch.stack([(self.weights[name] * gradients[name]).sum() for name in order]).sum()


def gradients(rank: int, step: int) -> dict[str, torch.Tensor]:
    """Return the heavy-tailed gradient of a rank at a step, by name."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return {name: torch.randn(shape, generator=generator) ** 3 for name, shape in SHAPES.items()}


def wrapped() -> tuple[Linear, DistributedDataParallel]:
    """Return a model, and the model in DDP. Its buckets are so small that there are several, which DDP rebuilds after the
    first step.
    """
    network = Linear()
    return network, DistributedDataParallel(network, bucket_cap_mb=0.01)


def steps(model: nn.Module, rank: int, first: int, last: int) -> None:
    """Take the steps `first` to `last` - 1 of SGD, with learning rate 1."""
    for step in range(first, last):
        model.zero_grad()
        model(gradients(rank, step)).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= parameter.grad


def trained(rank: int, codec: str | None, **named: Any) -> tuple[dict[str, torch.Tensor], ddp.HookState | None]:
    """Return the weights after all steps, and the hook's state (None without a codec)."""
    network, model = wrapped()
    state = None
    if codec is not None:
        state, hook = ddp.comm_hook(codec, model=network, **named)
        model.register_comm_hook(state, hook)
    steps(model, rank, 0, STEPS)
    return dict(network.weights), state


def resumed(rank: int, codec: str, together: bool, **named: Any) -> tuple[dict[str, torch.Tensor], ddp.HookState]:
    """Return the weights and the hook's state of a training whose state is saved halfway and loaded by the hook of a new
    model.

    If `together`, the states of all ranks are saved as one; otherwise each rank saves its own.
    """
    network, model = wrapped()
    state, hook = ddp.comm_hook(codec, model=network, **named)
    model.register_comm_hook(state, hook)
    steps(model, rank, 0, STEPS // 2)
    again, second = wrapped()
    again.load_state_dict(network.state_dict())
    other, hook = ddp.comm_hook(codec, model=again, **named)
    if together:
        ddp.AllRanks(other).load_state_dict(of_all(state))
    else:
        other.load_state_dict(state.state_dict())
    second.register_comm_hook(other, hook)
    steps(second, rank, STEPS // 2, STEPS)
    return dict(again.weights), other


def of_all(state: ddp.HookState) -> dict[str, Any]:
    """Gather the states of all ranks on rank 0, and return them on every rank."""
    found = [ddp.AllRanks(state).state_dict()]
    dist.broadcast_object_list(found)
    return found[0]


def alone(rank: int) -> ddp.HookState:
    """Return the state of a job with a single rank that continues from the states of both ranks."""
    groups = [dist.new_group([each]) for each in range(RANKS)]
    _, state = trained(rank, "topk:ratio=0.05")
    assert state is not None
    single, _ = ddp.comm_hook("topk:ratio=0.05", process_group=groups[rank])
    ddp.AllRanks(single).load_state_dict(of_all(state))
    return single


def different_starts(rank: int) -> str:
    """Return the error message of the first step if only rank 1 has loaded a state before it."""
    network, model = wrapped()
    state, hook = ddp.comm_hook("topk:ratio=0.05", model=network)
    model.register_comm_hook(state, hook)
    if rank == 1:
        state.load_state_dict({"step": 4, "buckets": []})
    try:
        steps(model, rank, 0, 1)
    except RuntimeError as error:
        return str(error)
    return ""


def tensors(case: str, state: ddp.HookState) -> dict[str, torch.Tensor]:
    """Return all tensors of a state; their names begin with `case`."""
    return {f"{case}/{key}": value for key, value in state.state_dict().items() if isinstance(value, torch.Tensor)}


def after_nan(rank: int, codec: str) -> tuple[dict[str, torch.Tensor], bool]:
    """Return the change of the memories through a step whose gradient is NaN on rank 1 only, and whether the mean gradient
    was then NaN.
    """
    network, model = wrapped()
    state, hook = ddp.comm_hook(codec, model=network)
    model.register_comm_hook(state, hook)
    steps(model, rank, 0, 3)
    before = state.state_dict()
    found = gradients(rank, 3)
    if rank == 1:
        found["c"][3, 3] = torch.nan
    model.zero_grad()
    model(found).backward()
    spoilt = bool(network.weights["c"].grad.isnan().any())
    after = state.state_dict()
    return {key: after[key] - before[key] for key in before if key.endswith(".c")}, spoilt


def main(rank: int, folder: Path) -> None:
    """Run all cases in sequence, and write the results."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    out: dict[str, torch.Tensor] = {}
    for case, codec, named in [
        ("plain", None, {}),
        ("identity", "identity", {}),
        ("svd", "svd:rank=2", {}),
        ("countmean", "countmean:ratio=0.5", {}),
        *RESUMED,
    ]:
        weights, state = trained(rank, codec, **named)
        out |= {f"{case}/weights/{name}": value.detach().contiguous() for name, value in weights.items()}
        if state is not None:
            out |= tensors(case, state)
            out[f"{case}/sent"] = torch.tensor(state.sent_bytes)
    for case, codec, named in RESUMED:
        for way in ("apart", "together"):
            weights, other = resumed(rank, codec, way == "together", **named)
            out |= {f"{case} {way}/weights/{name}": value.detach().contiguous() for name, value in weights.items()}
            out |= tensors(f"{case} {way}", other)
    out |= tensors("alone", alone(rank))
    out["refused"] = torch.tensor(list(different_starts(rank).encode()), dtype=torch.uint8)
    changed, spoilt = after_nan(rank, "topk:ratio=0.05")
    out |= {f"nan/{key}": value for key, value in changed.items()}
    out["nan/spoilt"] = torch.tensor(spoilt)
    save_file(out, folder / f"{rank}.safetensors")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]), Path(sys.argv[2]))
