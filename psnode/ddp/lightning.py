"""The communication hook as a Lightning callback, which is one argument of the Trainer and also handles checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from torch.nn.parallel import DistributedDataParallel

from psnode.ddp.hook import comm_hook
from psnode.ddp.ranks import AllRanks
from psnode.errors import ConfigurationError, installing

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    Callback = object  # __new__ imports Lightning and makes a subclass of Lightning's Callback


class CodedGradients(Callback):
    """Registers the hook when Lightning has wrapped the module in DDP, and saves the states of all ranks in checkpoints.

    `codec` and `options`: the arguments of `psnode.ddp.comm_hook`. Raises ConfigurationError if Lightning is not installed, and,
    at the start of training, for a strategy other than DDP.
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:
        try:
            from lightning.pytorch import Callback
        except ModuleNotFoundError as error:
            raise ConfigurationError(f"{error.name} is not installed: {installing('frameworks')}") from None
        made: Self = object.__new__(type(cls.__name__, (cls, Callback), {}))
        return made

    def __init__(self, codec: str, **options: Any) -> None:
        self.state, self._hook = comm_hook(codec, **options)
        self._ranks = AllRanks(self.state)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Register the hook with DDP. Raises ConfigurationError for a strategy other than DDP."""
        model = trainer.strategy.model
        if not isinstance(model, DistributedDataParallel):
            raise ConfigurationError(
                f"gradients are coded under DDP, not {type(trainer.strategy).__name__}: write Trainer(strategy='ddp')"
            )
        self.state.name(pl_module)
        model.register_comm_hook(self.state, self._hook)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all ranks. Lightning calls this on every rank and writes the result of rank 0."""
        return self._ranks.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue with this rank's own state, or with the mean of all states if the number of ranks has changed."""
        self._ranks.load_state_dict(state_dict)
