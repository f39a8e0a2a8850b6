"""Downloads into a directory that several processes, on several hosts, may share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from psnode.errors import ConfigurationError


@contextmanager
def one_at_a_time(directory: Path, name: str) -> Iterator[None]:
    """Hold a lock on `directory` inside the context, so that only one process at a time downloads into it.

    The directory is created if necessary. Errors inside the context become a ConfigurationError that names the data set `name`.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with FileLock(directory / ".psnode-download.lock", fallback_to_soft=False):
            yield
    except (OSError, RuntimeError) as error:  # urllib's errors are OSErrors; torchvision raises RuntimeError
        reason = " ".join(str(error).split())
        raise ConfigurationError(f"data set {name} cannot be downloaded to {directory}: {reason}") from error
