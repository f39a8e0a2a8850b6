"""Verdicts on published checkpoints, by their values and by the losses on them."""

from __future__ import annotations

from psnode.master.checkpoint_thread import CheckpointThread
from psnode.master.events import Events
from psnode.records import checkpoint, retention
from psnode.records.directory import RunDirectory


class Verdicts:
    """Writes verdicts in the thread that publishes, behind what they are on, and tells each unsound version once."""

    def __init__(self, run: RunDirectory, thread: CheckpointThread, events: Events, workers: int) -> None:
        self._run, self._thread, self._events, self._workers = run, thread, events, workers
        self._wrecked = set[int]()  # versions with values that are not finite: no loss makes them sound
        self._told = set[int]()

    def condemn(self, version: int) -> None:
        """Note that the checkpoint of `version` holds values that are not finite. Called in the thread."""
        self._wrecked.add(version)

    def judge(self, version: int, reason: str) -> None:
        """The losses on `version`, which is published or about to be, are known: it is sound, or unsound for a `reason`."""

        def then(judged: str | None, error: Exception | None) -> None:
            if error is not None:
                self._events.tell("not judged", version, None, f"its manifest cannot be written: {error}")
            elif judged:
                self.tell(version, judged)

        self._thread.do(version, lambda: self._judge(version, reason), then)

    def tell(self, version: int, reason: str) -> None:
        """One line a version, whatever else is found out about it."""
        if version in self._told:
            return
        self._told.add(version)
        newest = retention.newest_not_unsound(self._run.path)
        step = version if newest is None else checkpoint.step_of(newest)
        where = f"--resume goes on from step {step}" if step != version else "there is no other one yet"
        self._events.tell("unsound", version, None, f"its checkpoint pushes no other one out: {reason}; {where}")

    def _judge(self, version: int, reason: str) -> str | None:
        """Write the verdict into the manifest; None if there is none to write it into."""
        path = self._run.path / checkpoint.CHECKPOINTS / checkpoint.step_directory(version)
        if version in self._wrecked or not path.is_dir():
            return None
        retention.judge(path, reason)
        retention.prune(self._run.path, version, self._run.config.keep_last, self._workers)
        return reason
