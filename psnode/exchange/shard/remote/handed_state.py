"""State of a checkpoint that the master sends to a shard on another rank."""

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
    """The tensors of a checkpoint that a shard needs, by file, and entries of its manifest. Names are those of layout 2."""

    files: Mapping[str, Tensors] = field(default_factory=dict)

    @classmethod
    def of(cls, files: Mapping[str, Tensors], facts: Mapping[str, Any]) -> HandedState:
        """Return the state that consists of tensors, by file, and of entries of the manifest, which include `step`.

        A file without tensors is not sent by the master. The optimizer's file is therefore added as an empty file if it is
        missing.
        """
        known = {OPTIMIZER: Tensors(), **files}
        return cls(Path("the state from the master"), int(facts["step"]), {**facts, "layout": LAYOUT}, files=known)

    def tensors(self, name: str) -> Tensors:
        """Return the tensors of a file. Raises CheckpointError if the master has not sent the file."""
        if name not in self.files:
            raise CheckpointError(f"{self.path} lacks {name}")
        return dict(self.files[name])

    @cached_property
    def renaming(self) -> Rename:
        """The function that renames tensors. It is `str`, since all names are already those of the present layout."""
        return str

    def has(self, name: str) -> bool:
        """Return True if the master has sent the file `name`."""
        return name in self.files
