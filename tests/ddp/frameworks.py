"""One of two ranks of a training by Lightning or Accelerate: python frameworks.py FRAMEWORK RANK FOLDER.

Writes weights, memories and payload bytes to FOLDER/RANK.safetensors.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from psnode import ddp
from psnode.tasks.torchvision_ops import import_torchvision
from tests.ddp.program import RANKS, STEPS, Linear, gradients

CODEC = "topk:ratio=0.05"


def by_lightning(rank: int) -> tuple[Linear, ddp.HookState, dict[str, torch.Tensor]]:
    """A LightningModule that registers the hook when DDP has wrapped it, under a Trainer on the CPU."""
    if importlib.util.find_spec("torchvision") is not None:
        import_torchvision()  # torchmetrics, and so Lightning, imports it, which alone fails beside the CPU build of torch
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.overrides.distributed import _register_ddp_comm_hook
    from lightning.pytorch.strategies import DDPStrategy

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = Linear()
            self.state, self.hook = ddp.comm_hook(CODEC, model=self.network)

        def on_train_start(self) -> None:
            self.trainer.strategy.model.register_comm_hook(self.state, self.hook)

        def training_step(self, step: torch.Tensor) -> torch.Tensor:
            return self.network(gradients(rank, int(step)))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1.0)

    class OnCpu(DDPStrategy):
        """Hands the arguments of DDPStrategy on, by Lightning's own function, where Lightning does so on a GPU alone."""

        def _register_ddp_hooks(self) -> None:
            _register_ddp_comm_hook(self.model, self._ddp_comm_state, self._ddp_comm_hook, self._ddp_comm_wrapper)

    def trained(module: LightningModule, kind: type[DDPStrategy] = DDPStrategy, **hook: Any) -> None:
        quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
        strategy = kind(bucket_cap_mb=0.01, **hook)
        trainer = Trainer(
            accelerator="cpu", devices=RANKS, max_epochs=1, use_distributed_sampler=False, strategy=strategy, **quiet
        )
        trainer.fit(module, torch.utils.data.DataLoader(torch.arange(STEPS), batch_size=None))

    class ByStrategy(Module):
        def on_train_start(self) -> None:
            pass

    module, other, handed = Module(), ByStrategy(), ByStrategy()
    trained(module)
    trained(other, ddp_comm_state=other.state, ddp_comm_hook=other.hook)
    trained(handed, OnCpu, ddp_comm_state=handed.state, ddp_comm_hook=handed.hook)
    same = all(torch.equal(value, handed.network.weights[name]) for name, value in module.network.weights.items())
    facts = {"by strategy": other.state.sent_bytes, "on the cpu": handed.state.sent_bytes, "same": same}
    return module.network, module.state, {name: torch.tensor(fact) for name, fact in facts.items()}


def by_accelerate(rank: int) -> tuple[Linear, ddp.HookState, dict[str, torch.Tensor]]:
    """A loop over a model that Accelerator.prepare has wrapped."""
    from accelerate import Accelerator, DistributedDataParallelKwargs

    accelerator = Accelerator(cpu=True, kwargs_handlers=[DistributedDataParallelKwargs(bucket_cap_mb=0.01)])
    network = Linear()
    model, optimizer = accelerator.prepare(network, torch.optim.SGD(network.parameters(), lr=1.0))
    state, hook = ddp.comm_hook(CODEC, model=network)
    model.register_comm_hook(state, hook)
    for step in range(STEPS):
        optimizer.zero_grad()
        accelerator.backward(model(gradients(rank, step)))
        optimizer.step()
    return accelerator.unwrap_model(model), state, {}


def main(framework: str, rank: int, folder: Path) -> None:
    """Train, and write down what came of it."""
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS, "GROUP_RANK": 0}
    os.environ |= {name: str(value) for name, value in places.items()}
    os.environ |= {"TORCHELASTIC_RUN_ID": "psnode", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}  # who meets in a file
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    network, state, more = {"lightning": by_lightning, "accelerate": by_accelerate}[framework](rank)
    out = {f"weights/{name}": value.detach().contiguous() for name, value in network.weights.items()}
    out |= {key: value for key, value in state.state_dict().items() if key != "step"}
    save_file({**out, **more, "sent": torch.tensor(state.sent_bytes)}, folder / f"{rank}.safetensors")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
