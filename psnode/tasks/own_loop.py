"""A task whose training loop is in the program. It has a model and data, but no loss that psnode could compute."""

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
    """The task of psnode.session, whose training loop is in the program.

    `constraint`: see Task.constrain. `groups`: the result of Task.parameter_groups. `rate`, `optimizer`: see
    Task.learning_rate and Task.optimizer. `examples`: the number of examples in a batch; 0 if unknown. `steps`: see
    Task.steps_per_epoch.
    """

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

    def of(self, model: torch.nn.Module, groups: ParameterGroups) -> OwnLoop:
        """Return a copy of this task with another model and its parameter groups, and without data.

        A master that runs in the process of a worker uses this copy.
        """
        return OwnLoop(
            model, None, self._constraint, groups, self._rate, self._optimizer, examples=self._examples, steps=self._steps
        )

    def model(self) -> torch.nn.Module:
        """Return the program's model itself."""
        return self._model

    def train_data(self) -> Data:
        """Return the data from which the program's loop draws."""
        assert self._data is not None
        return self._data

    def eval_data(self) -> Data:
        """Raise ConfigurationError, since the program evaluates its model itself."""
        raise ConfigurationError("the run was trained by a loop of its own: evaluate its checkpoints in that program")

    def loss(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, Any]:
        """Raise ConfigurationError, since only the program knows the loss."""
        raise ConfigurationError("the run was trained by a loop of its own, which alone knows its loss")

    def size(self, batch: Batch) -> int:
        """Return the number of examples in `batch`.

        This is the loader's batch size if it is known, otherwise the length of the first tensor, otherwise 1.
        """
        return self._examples or length(batch) or 1

    def constrain(self, model: torch.nn.Module) -> None:
        """Apply the program's constraint."""
        if self._constraint is not None:
            self._constraint(model)

    def parameter_groups(self, model: torch.nn.Module) -> ParameterGroups:
        """Return the program's parameter groups."""
        return self._groups

    @property
    def own_optimizer(self) -> MakeOptimizer | None:
        """Return the program's optimizer, if there is one."""
        return self._optimizer

    @property
    def own_rate(self) -> OwnRate | None:
        """Return the program's schedule, if there is one."""
        return self._rate

    @property
    def steps_per_epoch(self) -> int | None:
        """Return the number of steps in an epoch, if the program has stated it."""
        return self._steps

    @property
    def constrains(self) -> bool:
        """Return True if the program has a constraint."""
        return self._constraint is not None


def length(batch: Batch) -> int | None:
    """Return the length of the first tensor in `batch` that has dimensions; None if there is no such tensor.

    Tensors inside tuples, lists and mappings count too.
    """
    import torch

    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else None
    if isinstance(batch, Mapping):
        return length(list(batch.values()))
    if isinstance(batch, (tuple, list)):
        return next((found for part in batch if (found := length(part)) is not None), None)
    return None
