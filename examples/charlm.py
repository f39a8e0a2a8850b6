"""A character-level language model, as an LSTM or a small transformer.

psnode train --task examples/charlm.py --task-option model=transformer --optimizer adam --lr 0.002 --max-steps 500

The text comes with Python: the topics of the reference manual that `help()` shows (pydoc_data), about half a million characters
of English and code. It is the same for the same version of Python, so all ranks must run the same version. The last tenth of the
text is for evaluation.

Options, as --task-option KEY=VALUE
    model    lstm (default) or transformer
    width    features of a position (128)
    layers   1 for the LSTM, 2 for the transformer
    length   characters per example (64)
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from psnode.errors import ConfigurationError
from psnode.task import Batch, Task

# Class 0 stands for all other characters. The alphabet is fixed, so that all ranks agree on the model's shape.
ALPHABET = "\n" + string.digits + string.ascii_letters + string.punctuation + " "
CLASSES = 1 + len(ALPHABET)
_HEADS = 4


def text() -> str:
    """Return the topics of Python's reference manual, in the order of their names."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


def encode(characters: str) -> npt.NDArray[np.int64]:
    """Return the class of each character as int64: 1 + its place in ALPHABET, or 0 for a character that ALPHABET lacks."""
    codes = np.frombuffer(characters.encode("latin-1", errors="replace"), np.uint8)
    table = np.zeros(256, np.int64)
    table[[ord(character) for character in ALPHABET]] = np.arange(1, CLASSES)
    return table[codes]


class Windows:
    """Neighbouring windows of `length` characters of a text; implements psnode.task.Data.

    A batch is (inputs, targets), both int64 (B, length). The target of a character is the next character of the text.
    """

    def __init__(self, codes: npt.NDArray[np.int64], length: int) -> None:
        self._count = (len(codes) - 1) // length
        used = self._count * length
        self._inputs = codes[:used].reshape(self._count, length)
        self._targets = codes[1 : used + 1].reshape(self._count, length)

    def __len__(self) -> int:
        return self._count

    def batch(self, indices: npt.NDArray[np.int64], rng: np.random.Generator | None) -> Batch:
        return torch.from_numpy(self._inputs[indices]), torch.from_numpy(self._targets[indices])


class Lstm(nn.Module):
    """An LSTM from (B, length) classes to (B, length, CLASSES) logits. Its state starts at zero for every window."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        features, _ = self.lstm(self.embedding(characters))
        logits: torch.Tensor = self.head(features)
        return logits


class Block(nn.Module):
    """A block of the transformer: causal self-attention, then a two-layer network.

    Each of the two has a layer norm before it and a residual connection around it (pre-norm).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.each = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.mix(self.norm1(x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (_HEADS, -1)).transpose(1, 2) for part in parts)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        result: torch.Tensor = x + self.each(self.norm2(x))
        return result


class Transformer(nn.Module):
    """A transformer from (B, length) classes to (B, length, CLASSES) logits, with learned positions.

    The decoder of Vaswani et al.: Attention is all you need, NeurIPS 2017.
    """

    def __init__(self, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, width)
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        x = self.embedding(characters) + self.position[: characters.shape[1]]
        logits: torch.Tensor = self.head(self.norm(self.blocks(x)))
        return logits


class CharacterModel(Task):
    """A task with the cross-entropy per character as its loss. Its metrics are top1 and bits per character."""

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        super().__init__(options)
        settings = {"model": "lstm", "width": "128", "layers": "", "length": "64"}
        if unknown := sorted(set(self.options) - set(settings)):
            raise ConfigurationError(f"unknown task option {unknown[0]!r}: the choices are {', '.join(settings)}")
        settings |= self.options
        self.kind = settings["model"]
        if self.kind not in ("lstm", "transformer"):
            raise ConfigurationError(f"task option model must be lstm or transformer, not {self.kind!r}")
        self.width = _number(settings, "width")
        self.length = _number(settings, "length")
        settings["layers"] = settings["layers"] or ("1" if self.kind == "lstm" else "2")
        self.layers = _number(settings, "layers")
        if self.kind == "transformer" and self.width % _HEADS:
            raise ConfigurationError(f"task option width must be a multiple of {_HEADS} for a transformer, not {self.width}")

    def model(self) -> nn.Module:
        if self.kind == "lstm":
            return Lstm(self.width, self.layers)
        return Transformer(self.width, self.layers, self.length)

    def train_data(self) -> Windows:
        codes = encode(text())
        return Windows(codes[: len(codes) * 9 // 10], self.length)

    def eval_data(self) -> Windows:
        codes = encode(text())
        return Windows(codes[len(codes) * 9 // 10 :], self.length)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = batch
        logits = model(inputs).float()
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten()), logits.detach()

    def metrics(self, outputs: torch.Tensor, batch: Batch) -> dict[str, float]:
        _, targets = batch
        nats = functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="sum")
        right = (outputs.argmax(dim=-1) == targets).sum()
        return {"top1": float(right), "bits": float(nats) / float(np.log(2))}

    def size(self, batch: Batch) -> int:
        """Return the number of characters, not of windows, since loss and metrics are averages over characters."""
        return int(batch[1].numel())


def _number(settings: Mapping[str, Any], name: str) -> int:
    if not settings[name].isdecimal() or int(settings[name]) < 1:
        raise ConfigurationError(f"task option {name} must be a whole number of at least 1, not {settings[name]!r}")
    return int(settings[name])
