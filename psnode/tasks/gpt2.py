"""GPT-2's shapes in plain torch, on random tokens: a large model for measurements that do not depend on its data.

Options: model=124m or 355m (GPT-2 small and medium; the head is the embedding), context=32 (tokens of an example), and
marks=DIRECTORY. In this directory every rank appends a line of JSON when it begins a backward pass: the time, and its peak memory
so far. The file imports only psnode.task, so that another checkout's psnode can train it (studies.checkpoint).
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
    """Attention and two linear layers, each after a layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.c_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x`: examples, tokens, width; so is the result."""
        batch, length, width = x.shape
        parts = self.c_attn(self.ln_1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.c_proj(mixed.transpose(1, 2).reshape(batch, length, width))
        found: torch.Tensor = x + self.c_out(functional.gelu(self.c_fc(self.ln_2(x))))
        return found


class Transformer(nn.Module):
    """Next-token logits; the head shares the embedding's weights."""

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
        """`tokens`: int64, examples and places; the result has a logit for every token after them."""
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        found: torch.Tensor = self.head(self.ln_f(x))
        return found


class RandomTokens:
    """Examples that depend only on their numbers."""

    def __init__(self, context: int) -> None:
        self._context = context

    def __len__(self) -> int:
        return _EXAMPLES

    def batch(self, indices: npt.NDArray[np.int64], rng: np.random.Generator | None) -> torch.Tensor:
        """int64, examples and context + 1."""
        rows = [np.random.default_rng(int(index)).integers(0, _TOKENS, self._context + 1) for index in indices]
        return torch.from_numpy(np.stack(rows))


class Gpt2(Task):
    """GPT-2's shapes on random tokens."""

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
