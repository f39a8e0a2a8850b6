"""Settings used together to train transformers: the loss of each step equals that of a plain PyTorch loop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

import psnode
from psnode.config import Config
from psnode.task import load_task
from psnode.tasks.data.sampler import Sampler

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "charlm.py")
STEPS, BATCH, SEED, LR, CLIP = 12, 8, 5, 0.01, 1.0


def task() -> Any:
    return load_task(EXAMPLE, {"model": "transformer", "width": "32", "length": "32"})


def by_torch() -> tuple[list[float], list[float]]:
    """Return loss and gradient norm of each step of a plain PyTorch loop: AdamW without decay on norms and biases, bf16,
    clipping, WSD.
    """
    charlm = task()
    torch.manual_seed(SEED)
    model, data = charlm.model(), charlm.train_data()
    decayed = [value for name, value in model.named_parameters() if "norm" not in name and not name.endswith("bias")]
    rest = [value for name, value in model.named_parameters() if "norm" in name or name.endswith("bias")]
    groups = [{"params": decayed}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, LR, betas=(0.9, 0.95), weight_decay=0.1, foreach=False)
    up, stay = lr_scheduler.LinearLR(optimizer, 0.25, 1.0, 3), lr_scheduler.ConstantLR(optimizer, 1.0, 1)
    down = lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 4)
    schedule = lr_scheduler.SequentialLR(optimizer, [up, stay, down], [4, STEPS - 4])
    sampler, losses, norms = Sampler(len(data), 0, 1, BATCH, 1, SEED), [], []
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss, _ = charlm.loss(model, data.batch(sampler.indices(step)[0], None))
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    return losses, norms


def test_the_loss_of_every_step_is_torchs(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "scheme": "dense", "optimizer": "adamw", "momentum": 0.9, "beta2": 0.95, "weight_decay": 0.1,
        "no_decay": ("norm", "bias"), "clip_grad_norm": CLIP, "precision": "bf16", "lr": LR, "lr_schedule": "wsd",
        "warmup_steps": 4, "lr_decay_steps": 4, "lr_end_factor": 0.1, "ema_decay": 0.9, "group_by": "layer",
    }  # fmt: skip
    same = {"batch_size": BATCH, "seed": SEED, "max_steps": STEPS, "local": 1, "threads": torch.get_num_threads()}
    assert psnode.run(task(), Config(train_dir=tmp_path, tensorboard=False, eval_freq=0, **settings, **same)) == 0
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    losses, norms = by_torch()
    assert losses[-1] < losses[0] - 0.3
    assert min(norms) < CLIP < max(norms)
    assert [record["loss"] for record in records] == pytest.approx(losses, rel=2e-3)
    assert [record["gradient_norm"] for record in records] == pytest.approx(norms, rel=2e-2)
