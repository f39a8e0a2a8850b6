"""Functions that load the task named by a configuration."""

from __future__ import annotations

from psnode.config import Config
from psnode.config.names import PASSED
from psnode.errors import ConfigurationError
from psnode.task import Task, load_task


def passed_task(task: Task) -> str:
    """Return the value of the setting `task` for a task that a program passes to psnode.run."""
    return PASSED + type(task).__name__


def make_task(config: Config) -> Task:
    """Return the task that the configuration names: the user's task, or the built-in image classification.

    Raises ConfigurationError if the task cannot be loaded, for example because a program passed it to psnode.run.
    """
    if config.task is not None and config.task.startswith(PASSED):
        raise ConfigurationError(
            f"the run trains {config.task.removeprefix(PASSED)}, which a program passed to psnode.run: "
            "continue with that program, and evaluate with psnode.evaluator.follow(train_dir, task=...)"
        )
    if config.task is not None:
        return load_task(config.task, config.task_options())
    from psnode.tasks.classification import Classification

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
