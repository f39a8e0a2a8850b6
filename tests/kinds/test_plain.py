"""docs/models.md row by row: a model of a supported kind ends with plain PyTorch's weights, and a refusal is one line.

One worker in this process, dense, SGD: the weights after 20 steps equal those of a torch loop.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from psnode.config import Config
from psnode.errors import PsnodeError
from psnode.worker.computation import seed_torch
from tests.kinds.table import KINDS, REFUSED, Kind
from tests.kinds.task import Constrained, Points, Trains, loss_of, weights_after

EXAMPLES, STEPS, SEED, LR = 16, 20, 3, 0.05


def trained_by_torch(kind: Kind) -> dict[str, torch.Tensor]:
    """Return the trainable parameters after the same steps in plain PyTorch, with psnode's seeds of steps."""
    torch.manual_seed(SEED)
    model = kind.make()
    model.train()
    examples = EXAMPLES * int(kind.settings.get("batches_per_step", 1))  # the mean over batches equals the mean over their union
    optimizer = torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad], LR)
    batch = Points(examples).batch(torch.arange(examples).numpy(), None)
    for step in range(1, STEPS + 1):
        seed_torch(SEED, 1, step, torch.device("cpu"))
        optimizer.zero_grad()
        loss_of(model, *batch).backward()
        optimizer.step()
        with torch.no_grad():
            getattr(model, "constrain", lambda: None)()
    return {name.replace("_orig_mod.", ""): weight.detach() for name, weight in model.named_parameters() if weight.requires_grad}


def trained_by_psnode(kind: Kind, folder: Path) -> dict[str, torch.Tensor]:
    passes = int(kind.settings.get("batches_per_step", 1))
    settings = {"lr": LR, "momentum": 0.0, "seed": SEED, "batch_size": EXAMPLES, "max_steps": STEPS, "local": 1, **kind.settings}
    config = Config(scheme="dense", tensorboard=False, threads=1, train_dir=folder, hash_every=1, **settings)
    task = (Constrained if hasattr(kind.make(), "constrain") else Trains)(kind.make, EXAMPLES * passes)
    return weights_after(task, config)


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in KINDS])
def test_a_model_trains_as_in_plain_pytorch_or_is_refused_in_one_line(kind: Kind, tmp_path: Path) -> None:
    if kind.verdict == REFUSED:
        with pytest.raises(PsnodeError, match=kind.refusal) as caught:
            trained_by_psnode(kind, tmp_path / "run")
        assert "\n" not in str(caught.value)
        return
    expected = trained_by_torch(kind)
    found = trained_by_psnode(kind, tmp_path / "run")
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")
