"""One of two ranks whose DDP trainings are recorded: python recorded.py RANK FOLDER.

The program trains with each of three codecs and without a hook, and records each training in FOLDER/CODEC. It writes the payload
bytes of this rank after each step to FOLDER/RANK.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from psnode import ddp
from tests.ddp.program import RANKS, gradients, wrapped

CODECS = ("lss", "qsgd", "countmean", "none")
STEPS, LR = 4, 0.5


def main() -> None:
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=RANKS)
    torch.set_num_threads(1)
    own: dict[str, list[int]] = {}
    for codec in CODECS:
        network, model = wrapped()
        state = None
        if codec != "none":
            state, hook = ddp.comm_hook(codec, model=network)
            model.register_comm_hook(state, hook)
        own[codec] = []
        with ddp.RunRecords(folder / codec, network, state, settings={"seed": 1, "batch_size": 8}) as records:
            for step in range(STEPS):
                model.zero_grad()
                model(gradients(rank, step)).backward()
                records.step(loss=10.0 * rank + step, lr=LR, examples=16, top5=0.25)
                own[codec].append(state.sent_bytes if state is not None else 0)
            records.evaluated(loss=2.5, top1=0.75)
    (folder / f"{rank}.json").write_text(json.dumps(own))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
