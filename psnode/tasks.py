"""From a configuration to the task that it names."""

from __future__ import annotations

from psnode.config import Config
from psnode.task import Task, load_task


def make_task(config: Config) -> Task:
    """The task that the configuration names: the user's file, or the built-in image classification."""
    if config.task is not None:
        return load_task(config.task, config.task_options())
    from psnode.classification import Classification

    options = config.task_options()
    if config.dataset.casefold() == "synthetic":
        options = {
            "shape": ",".join(map(str, config.synthetic_shape)),
            "classes": str(config.synthetic_classes),
            "examples": str(config.synthetic_examples),
            **options,
        }
    return Classification(
        network=config.network,
        dataset=config.dataset,
        data_dir=config.data_dir,
        download=config.download,
        seed=config.seed,
        options=options,
    )
