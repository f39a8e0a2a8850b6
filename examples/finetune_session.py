"""examples/finetune.py as a session of psnode: the same loop on the parameter server.

psnode launch -n 2 -- examples/finetune_session.py TEXT FOLDER
psnode export FOLDER/run --checkpoint best --format huggingface --config FOLDER --output FOLDER/best
"""

import math
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel

import psnode

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
    torch.manual_seed(0)
    train, held_out = blocks(text)
    off = dict.fromkeys(["resid_pdrop", "embd_pdrop", "attn_pdrop"], 0.0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4, **off))
    loader = DataLoader(TensorDataset(train), batch_size=BATCH, shuffle=True)
    groups = [
        {"params": [value for value in model.parameters() if value.dim() > 1], "weight_decay": 0.1},
        {"params": [value for value in model.parameters() if value.dim() <= 1], "weight_decay": 0.0},
    ]
    with psnode.session(
        model, train_dir=Path(folder) / "run", resume="auto", epochs=EPOCHS, batches_per_step=ACCUMULATE, clip_grad_norm=CLIP,
        optimizer="adamw", lr=LR, momentum=0.9, parameter_groups=groups,
        learning_rate=lambda step, lr, total_steps, **_: lr * cosine(step, total_steps),
    ) as s:  # fmt: skip
        for (batch,) in s.batches(loader):
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(input_ids=batch, labels=batch).loss
            s.backward(loss)
            if s.step(loss) and s.rank == 1:
                if s.version % 10 == 0:
                    print(f"step {s.version}: lr {s.lr:.3e}, norm {s.gradient_norm:.3f}")
                if s.version % s.steps_per_epoch == 0:
                    found = evaluate(model, held_out)
                    print(f"epoch {s.epoch}: loss {found:.4f}, perplexity {math.exp(found):.2f}", flush=True)
                    if s.evaluated(loss=found):
                        model.save_pretrained(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
