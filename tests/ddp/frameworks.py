"""One of two ranks of a training by Lightning or Accelerate: python frameworks.py FRAMEWORK PART RANK FOLDER.

PART is `whole`, which writes a checkpoint to FOLDER after half of the steps, or `resumed`, which continues from that checkpoint.
Writes weights, memories and the number of payload bytes to FOLDER/PART-RANK.safetensors.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from psnode import ddp
from psnode.errors import ConfigurationError
from psnode.tasks.torchvision_ops import import_torchvision
from tests.ddp.program import RANKS, STEPS, Linear, gradients, tensors

CODEC = "topk:ratio=0.05"
HALF = STEPS // 2
Trained = tuple[Linear, ddp.HookState, dict[str, torch.Tensor]]


def by_lightning(part: str, rank: int, folder: Path) -> Trained:
    """Train on the CPU for two epochs with a Trainer and psnode's callback, with a checkpoint after each epoch."""
    if importlib.util.find_spec("torchvision") is not None:
        # Lightning imports torchvision through torchmetrics; with a CPU build of torch a plain import would fail
        import_torchvision()
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import Callback, ModelCheckpoint
    from lightning.pytorch.overrides.distributed import _register_ddp_comm_hook
    from lightning.pytorch.strategies import DDPStrategy

    from psnode.ddp.lightning import CodedGradients

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = Linear()

        def training_step(self, step: torch.Tensor) -> torch.Tensor:
            return self.network(gradients(rank, HALF * self.current_epoch + int(step)))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1.0)

    class OnCpu(DDPStrategy):
        """A strategy that registers the hook of DDPStrategy's arguments by Lightning's own function, which Lightning itself
        calls only on GPUs.
        """

        def _register_ddp_hooks(self) -> None:
            _register_ddp_comm_hook(self.model, self._ddp_comm_state, self._ddp_comm_hook, self._ddp_comm_wrapper)

    def trained(*callbacks: Callback, kind: type[DDPStrategy] = DDPStrategy, **hook: Any) -> Module:
        module = Module()
        quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
        more = {"max_epochs": 2, "use_distributed_sampler": False, "strategy": kind(bucket_cap_mb=0.01, **hook)}
        keeps = any(isinstance(each, ModelCheckpoint) for each in callbacks)
        trainer = Trainer(
            accelerator="cpu", devices=RANKS, callbacks=list(callbacks), enable_checkpointing=keeps, **more, **quiet
        )
        path = folder / "epoch=0.ckpt" if part == "resumed" else None
        trainer.fit(module, torch.utils.data.DataLoader(torch.arange(HALF), batch_size=None), ckpt_path=path)
        return module

    coded = CodedGradients(CODEC)
    if part == "resumed":
        module = trained(coded)
        return module.network, coded.state, {"refused": torch.tensor(list(refusal(coded, module).encode()), dtype=torch.uint8)}
    module = trained(coded, ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1))
    other, handed = ddp.comm_hook(CODEC), ddp.comm_hook(CODEC)
    trained(ddp_comm_state=other[0], ddp_comm_hook=other[1])
    by_strategy = trained(kind=OnCpu, ddp_comm_state=handed[0], ddp_comm_hook=handed[1])
    same = all(torch.equal(value, by_strategy.network.weights[name]) for name, value in module.network.weights.items())
    facts = {"by strategy": other[0].sent_bytes, "on the cpu": handed[0].sent_bytes, "same": same}
    return module.network, coded.state, {name: torch.tensor(fact) for name, fact in facts.items()}


def refusal(callback: Any, module: Any) -> str:
    """Return the error message of the callback for a strategy that does not wrap the module in DDP."""
    try:
        callback.on_fit_start(SimpleNamespace(strategy=SimpleNamespace(model=module)), module)
    except ConfigurationError as error:
        return str(error)
    return ""


def by_accelerate(part: str, rank: int, folder: Path) -> Trained:
    """Train in a loop over a model wrapped by Accelerator.prepare."""
    from accelerate import Accelerator, DistributedDataParallelKwargs

    accelerator = Accelerator(cpu=True, kwargs_handlers=[DistributedDataParallelKwargs(bucket_cap_mb=0.01)])
    network = Linear()
    model, optimizer = accelerator.prepare(network, torch.optim.SGD(network.parameters(), lr=1.0))
    state, hook = ddp.comm_hook(CODEC, model=network)
    model.register_comm_hook(state, hook)
    accelerator.register_for_checkpointing(ddp.AllRanks(state))
    if part == "resumed":
        accelerator.load_state(str(folder / "half"))
    for step in range(HALF if part == "resumed" else 0, STEPS):
        if step == HALF and part == "whole":
            accelerator.save_state(str(folder / "half"))
        optimizer.zero_grad()
        accelerator.backward(model(gradients(rank, step)))
        optimizer.step()
    return accelerator.unwrap_model(model), state, {}


def main(framework: str, part: str, rank: int, folder: Path) -> None:
    """Train, and write the results."""
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS, "GROUP_RANK": 0}
    os.environ |= {name: str(value) for name, value in places.items()}
    os.environ |= {"TORCHELASTIC_RUN_ID": "psnode", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}  # unused: a file is used
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting-{part}", rank=rank, world_size=RANKS)
    network, state, more = {"lightning": by_lightning, "accelerate": by_accelerate}[framework](part, rank, folder)
    out = {f"weights/{name}": value.detach().contiguous() for name, value in network.weights.items()}
    out |= tensors("state", state)
    save_file({**out, **more, "sent": torch.tensor(state.sent_bytes)}, folder / f"{part}-{rank}.safetensors")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
