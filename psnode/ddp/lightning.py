"""The communication hook as a callback of Lightning: a single argument of the Trainer, checkpoints included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from torch.nn.parallel import DistributedDataParallel

from psnode.ddp.hook import comm_hook
from psnode.ddp.ranks import AllRanks
from psnode.errors import ConfigurationError, installing

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    Callback = object  # Lightning is imported when a callback is made, which is then a subclass of its Callback


class CodedGradients(Callback):
    """Registers the hook when Lightning has wrapped the module in DDP, and keeps the memories of all ranks in its checkpoints.

    `codec`, and `options` as those of `psnode.ddp.comm_hook`. Strategies other than DDP are refused. Raises ConfigurationError
    without Lightning.
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
        """Register the hook."""
        model = trainer.strategy.model
        if not isinstance(model, DistributedDataParallel):
            raise ConfigurationError(
                f"gradients are coded under DDP, not {type(trainer.strategy).__name__}: write Trainer(strategy='ddp')"
            )
        self.state.name(pl_module)
        model.register_comm_hook(self.state, self._hook)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all ranks; Lightning calls this on every rank and writes that of rank 0."""
        return self._ranks.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue with this rank's own state."""
        self._ranks.load_state_dict(state_dict)
