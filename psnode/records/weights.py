"""Weights of a run: functions that read weights to initialise a model, and write them for other programs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from psnode.errors import CheckpointError, ConfigurationError
from psnode.records import checkpoint, tensorfile
from psnode.records.checkpoint import Checkpoint
from psnode.records.retention import best_evaluated
from psnode.tasks import model_tensors, tensor_names

if TYPE_CHECKING:
    import torch

_LOG = logging.getLogger(__name__)

_PICKLES = (".pt", ".pth")


def initialise(model: torch.nn.Module, source: Path, *, new_head: bool = False) -> None:
    """Give `model` the weights and buffers of `source`: a run, a checkpoint, or a safetensors file of a state dict.

    With `new_head`, one layer of the model may have another number of outputs than in `source`. This layer then keeps its
    present values, and the log says so. Raises ConfigurationError if tensors are missing or do not fit, and CheckpointError
    if the source is damaged.
    """
    own = tensor_names.state(model)
    found = tensor_names.matched(_tensors(source), own)
    model_tensors.fit(model, {name: found[name] for name in model_tensors.not_sized_yet(model) if name in found})
    own = tensor_names.state(model)
    problems = [f"it lacks {name}" for name in own if name not in found]
    problems += [f"it has {name}, which the network lacks" for name in found if name not in own]
    other = [name for name in own if name in found and _differs(own[name], found[name])]
    if new_head and _is_a_head(other, own, found):
        _LOG.info(
            "%s are reinitialised: %d outputs here, %d in %s",
            " and ".join(other),
            len(own[other[0]]),
            len(found[other[0]]),
            source,
        )
        found |= {name: own[name] for name in other}
        other = []
    elif new_head and not other and not problems:
        raise ConfigurationError(f"--new-head has no meaning: every layer in {source} is as in the network; leave it out")
    for name in other:
        there, here = (f"{value.dtype} of shape {tuple(value.shape)}" for value in (found[name], own[name]))
        problems.append(f"{name} is {there} in it and {here} in the network")
    if problems:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise ConfigurationError(f"--init-from {source} does not fit the network: {problems[0]}{more}")
    model_tensors.load(model, found)


def _differs(own: torch.Tensor, other: torch.Tensor) -> bool:
    return own.shape != other.shape or own.dtype != other.dtype


def _is_a_head(names: list[str], own: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]) -> bool:
    """Return True if the tensors `names` belong to one layer and differ only in the number of outputs."""
    one_layer = len({name.rpartition(".")[0] for name in names}) == 1
    return one_layer and all(own[name].shape[1:] == found[name].shape[1:] and own[name].dim() for name in names)


def _tensors(source: Path) -> dict[str, torch.Tensor]:
    if source.is_dir():
        return (_of_run(source, None) if (source / checkpoint.CHECKPOINTS).is_dir() else Checkpoint.open(source)).tensors(
            checkpoint.MODEL
        )
    if source.suffix in _PICKLES and source.is_file():
        there, here = repr(str(source)), repr(str(source.with_suffix(".safetensors")))
        raise ConfigurationError(
            f'--init-from {source} is a pickle, and psnode executes none: if you trust it, python -c "import torch, '
            f'safetensors.torch as s; s.save_file(torch.load({there}, weights_only=True), {here})"'
        )
    try:
        return tensorfile.parse(source.read_bytes(), str(source))
    except OSError as error:
        raise ConfigurationError(
            f"--init-from {source} cannot be read ({error.strerror}): name a run, a checkpoint, or a safetensors file"
        ) from error


def _of_run(train_dir: Path, which: str | None) -> Checkpoint:
    """Return a run's checkpoint: the newest if `which` is None, the best evaluated one for `best`, or the one of step `which`."""
    if which == "best":
        path = best_evaluated(train_dir)
        remedy = f"psnode evaluate --train-dir {train_dir} determines it, or s.evaluated(loss=...) in the loop of a session"
    elif which is None:
        path, remedy = checkpoint.latest(train_dir), "train it further"
    else:
        path = train_dir / checkpoint.CHECKPOINTS / checkpoint.step_directory(int(which)) if which.isdecimal() else None
        remedy = (
            f"existing ones: {', '.join(str(checkpoint.step_of(found)) for found in checkpoint.complete(train_dir)) or 'none'}"
        )
    if path is None or not path.is_dir():
        raise ConfigurationError(f"{train_dir} has no {which or 'newest'} checkpoint: {remedy}")
    return Checkpoint.open(path)


def weights_of(train_dir: Path, which: str | None) -> tuple[int, dict[str, torch.Tensor]]:
    """Return the step and the state dict of a run's checkpoint. `which`: a step, `best`, or None for the newest.

    Raises ConfigurationError if the checkpoint does not exist, CheckpointError if it is damaged.
    """
    found = _of_run(train_dir, which)
    return found.step, found.tensors(checkpoint.MODEL)


def export(train_dir: Path, output: Path, which: str | None) -> tuple[int, int]:
    """Write the state dict of a run's checkpoint to `output`, a .safetensors, .pt or .pth file.

    Returns the step and the number of tensors. `which`: a step, `best`, or None for the newest. Raises ConfigurationError if the
    checkpoint does not exist or `output` has another suffix, and CheckpointError if the checkpoint is damaged or `output` cannot
    be written.
    """
    if output.suffix not in (".safetensors", *_PICKLES):
        raise ConfigurationError(f"--output {output} must end in .safetensors, or in .pt for torch.load")
    step, tensors = weights_of(train_dir, which)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        unfinished = output.with_name(f".{output.name}.unfinished")
        if output.suffix in _PICKLES:
            import torch

            torch.save(tensors, unfinished)
        else:
            tensorfile.write_tensors(unfinished, tensors)
        unfinished.replace(output)
    except OSError as error:
        raise CheckpointError(f"{output} cannot be written: {error.strerror or error}") from error
    return step, len(tensors)
