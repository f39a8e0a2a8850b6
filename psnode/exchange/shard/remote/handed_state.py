"""State of a checkpoint that the master hands to a shard on a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from psnode.errors import CheckpointError
from psnode.records.checkpoint import LAYOUT, OPTIMIZER, Checkpoint
from psnode.tasks.tensor_names import Rename

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class HandedState(Checkpoint):
    """Tensors by file of a checkpoint, as far as a shard needs them, and its manifest's entries. Names are those of layout 2."""

    files: Mapping[str, Tensors] = field(default_factory=dict)

    @classmethod
    def of(cls, files: Mapping[str, Tensors], facts: Mapping[str, Any]) -> HandedState:
        """Return the state made of tensors by file and of entries of the manifest, `step` among them.

        An optimizer may have no memories, and a file without tensors is not handed over.
        """
        known = {OPTIMIZER: Tensors(), **files}
        return cls(Path("the state from the master"), int(facts["step"]), {**facts, "layout": LAYOUT}, files=known)

    def tensors(self, name: str) -> Tensors:
        """Return the tensors of a file. CheckpointError if it was not handed over."""
        if name not in self.files:
            raise CheckpointError(f"{self.path} lacks {name}")
        return dict(self.files[name])

    @cached_property
    def renaming(self) -> Rename:
        """Return str, as all names are plain."""
        return str

    def has(self, name: str) -> bool:
        """Return True if `name` was handed over."""
        return name in self.files
