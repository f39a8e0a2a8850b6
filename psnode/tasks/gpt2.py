"""A model with GPT-2's shapes in plain torch, on random tokens, for measurements that do not depend on the data.

The options are model, context and marks. model is 124m or 355m (GPT-2 small and medium; the head is the embedding) or tiny.
context is the number of tokens of an example, 32 by default. marks=DIRECTORY makes every rank append a line of JSON to a
file in this directory at the start of each backward pass, with the time and the rank's peak memory so far. From psnode, this
file imports only psnode.task and psnode.config.plain_json, so that the psnode of another checkout can train this model
(studies.checkpoint).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from psnode.config.plain_json import to_json
from psnode.task import Task

SHAPES = {"124m": (12, 768, 12), "355m": (24, 1024, 16), "tiny": (2, 64, 2)}  # layers, width, heads
_TOKENS, _PLACES, _EXAMPLES = 50257, 1024, 4096


class Block(nn.Module):
    """Transformer block: attention, then two linear layers, each after a layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.c_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the shape of `x`: examples, tokens, width."""
        batch, length, width = x.shape
        parts = self.c_attn(self.ln_1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.c_proj(mixed.transpose(1, 2).reshape(batch, length, width))
        found: torch.Tensor = x + self.c_out(functional.gelu(self.c_fc(self.ln_2(x))))
        return found


class Transformer(nn.Module):
    """Transformer that predicts the next token. The head shares the weights of the embedding."""

    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(_TOKENS, width), nn.Embedding(_PLACES, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.head = nn.Linear(width, _TOKENS, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        self.head.weight = self.wte.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of the token after each position of `tokens`, int64 of shape (examples, positions)."""
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        found: torch.Tensor = self.head(self.ln_f(x))
        return found


class RandomTokens:
    """Random examples, each of which depends only on its index."""

    def __init__(self, context: int) -> None:
        self._context = context

    def __len__(self) -> int:
        return _EXAMPLES

    def batch(self, indices: npt.NDArray[np.int64], rng: np.random.Generator | None) -> torch.Tensor:
        """Return tokens, int64 of shape (examples, context + 1)."""
        rows = [np.random.default_rng(int(index)).integers(0, _TOKENS, self._context + 1) for index in indices]
        return torch.from_numpy(np.stack(rows))


class Gpt2(Task):
    """Task of a model with GPT-2's shapes on random tokens."""

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        super().__init__(options)
        self._marks = Path(self.options["marks"]) if "marks" in self.options else None

    def model(self) -> nn.Module:
        return Transformer(*SHAPES[self.options.get("model", "124m")])

    def train_data(self) -> RandomTokens:
        return RandomTokens(int(self.options.get("context", "32")))

    eval_data = train_data

    def loss(self, model: nn.Module, batch: torch.Tensor) -> tuple[torch.Tensor, Any]:
        logits = model(batch[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        if loss.requires_grad and self._marks is not None:
            loss.register_hook(self._mark)  # type: ignore[no-untyped-call]
        return loss, None

    def size(self, batch: torch.Tensor) -> int:
        return len(batch)

    def _mark(self, gradient: torch.Tensor) -> None:
        peak = next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
        with (self._marks or Path()).joinpath(f"{os.getpid()}.jsonl").open("a") as file:
            file.write(to_json({"seconds": time.time(), "peak_bytes": 1024 * int(peak)}) + "\n")
