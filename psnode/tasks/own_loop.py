"""A task whose loop is the program's own: model and data, and no loss that anybody else could ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from psnode.errors import ConfigurationError
from psnode.task import Batch, Data, Task

if TYPE_CHECKING:
    import torch

    from psnode.config.schedules import OwnRate

Constraint = Callable[["torch.nn.Module"], None]
MakeOptimizer = Callable[[str, "torch.nn.Parameter"], "torch.optim.Optimizer"]
ParameterGroups = Sequence[Mapping[str, Any]]


class OwnLoop(Task):
    """The task of psnode.session. `constraint`: as Task.constrain; `groups`: what Task.parameter_groups returns; `rate`,
    `optimizer`: as Task.learning_rate and Task.optimizer; `examples`: those of a batch, if that is known; `steps`: as
    Task.steps_per_epoch."""

    def __init__(
        self,
        model: torch.nn.Module,
        data: Data | None,
        constraint: Constraint | None,
        groups: ParameterGroups = (),
        rate: OwnRate | None = None,
        optimizer: MakeOptimizer | None = None,
        *,
        examples: int = 0,
        steps: int | None = None,
    ) -> None:
        super().__init__()
        self._model, self._data, self._constraint, self._groups = model, data, constraint, groups
        self._rate, self._optimizer, self._examples, self._steps = rate, optimizer, examples, steps

    def model(self) -> torch.nn.Module:
        """The program's model itself."""
        return self._model

    def train_data(self) -> Data:
        """The data that the program's loop draws from."""
        assert self._data is not None
        return self._data

    def eval_data(self) -> Data:
        """None: the program evaluates its model itself."""
        raise ConfigurationError("the run was trained by a loop of its own: evaluate its checkpoints in that program")

    def loss(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, Any]:
        """None: only the program knows it."""
        raise ConfigurationError("the run was trained by a loop of its own, which alone knows its loss")

    def size(self, batch: Batch) -> int:
        """Number of examples in `batch`, as far as its loader tells; else the length of its first tensor, 1 if there is none."""
        return self._examples or length(batch) or 1

    def constrain(self, model: torch.nn.Module) -> None:
        """Apply the program's constraint."""
        if self._constraint is not None:
            self._constraint(model)

    def parameter_groups(self, model: torch.nn.Module) -> ParameterGroups:
        """The program's groups."""
        return self._groups

    @property
    def own_optimizer(self) -> MakeOptimizer | None:
        """The program's optimizer, if there is one."""
        return self._optimizer

    @property
    def own_rate(self) -> OwnRate | None:
        """The program's schedule, if there is one."""
        return self._rate

    @property
    def steps_per_epoch(self) -> int | None:
        """Steps of an epoch of an iterable."""
        return self._steps

    @property
    def constrains(self) -> bool:
        """True if there is a constraint."""
        return self._constraint is not None


def length(batch: Batch) -> int | None:
    """Length of the first tensor with dimensions in `batch`, also inside tuples, lists and mappings."""
    import torch

    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else None
    if isinstance(batch, Mapping):
        return length(list(batch.values()))
    if isinstance(batch, (tuple, list)):
        return next((found for part in batch if (found := length(part)) is not None), None)
    return None
