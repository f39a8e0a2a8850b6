"""examples/finetune.py with psnode's communication hook, which needs three more lines.

torchrun --nproc-per-node 2 examples/finetune_hook.py TEXT FOLDER
"""

import math
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel

import psnode.ddp

LENGTH, BATCH, ACCUMULATE, EPOCHS, LR, WARMUP, CLIP = 64, 8, 2, 3, 3e-3, 10, 1.0


def blocks(path):
    """Return the rows of tokens to train on, and those to evaluate on."""
    tokens = torch.tensor(list(Path(path).read_bytes()))
    rows = tokens[: len(tokens) // LENGTH * LENGTH].view(-1, LENGTH)
    return rows[len(rows) // 10 :], rows[: len(rows) // 10]


def cosine(step, total):
    """Return the factor of the learning rate after `step` of `total` steps, as in get_cosine_schedule_with_warmup."""
    rise = step / WARMUP
    return rise if rise < 1 else (1 + math.cos(math.pi * (step - WARMUP) / (total - WARMUP))) / 2


def evaluate(model, rows):
    """Return the mean loss over `rows`."""
    model.eval()
    with torch.no_grad():
        loss = model(input_ids=rows, labels=rows).loss.item()
    model.train()
    return loss


def main(text, folder):
    """Train on the file `text`, and keep the best model in `folder`."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train, held_out = blocks(text)
    off = dict.fromkeys(["resid_pdrop", "embd_pdrop", "attn_pdrop"], 0.0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4, **off))
    network = DistributedDataParallel(model)
    state, hook = psnode.ddp.comm_hook("polar:rate=2", model=model)
    network.register_comm_hook(state, hook)
    sampler = DistributedSampler(train)
    loader = DataLoader(TensorDataset(train), batch_size=BATCH, sampler=sampler, drop_last=True)
    groups = [
        {"params": [value for value in model.parameters() if value.dim() > 1], "weight_decay": 0.1},
        {"params": [value for value in model.parameters() if value.dim() <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LR)
    total = EPOCHS * (len(loader) // ACCUMULATE)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: cosine(step, total))
    step, best = 0, math.inf
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for number, (batch,) in enumerate(loader, 1):
            last = number % ACCUMULATE == 0
            with nullcontext() if last else network.no_sync():
                with torch.autocast("cpu", torch.bfloat16):
                    loss = network(input_ids=batch, labels=batch).loss
                (loss / ACCUMULATE).backward()
            if last:
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
                optimizer.step()
                step += 1
                if dist.get_rank() == 0 and step % 10 == 0:
                    print(f"step {step}: lr {scheduler.get_last_lr()[0]:.3e}, norm {norm:.3f}")
                scheduler.step()
                optimizer.zero_grad()
        if dist.get_rank() == 0:
            found = evaluate(model, held_out)
            print(f"epoch {epoch + 1}: loss {found:.4f}, perplexity {math.exp(found):.2f}", flush=True)
            if found < best:
                best = found
                model.save_pretrained(folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
