"""The books of a run: a record of each step once it is complete, and verdicts on checkpoints by the losses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from psnode.master.checkpoints.pending import PendingCheckpoints
from psnode.master.checkpoints.soundness import Soundness
from psnode.master.lines.progress import Fanout
from psnode.master.recorder import StepRecorder


@dataclass
class Books:
    """`final_loss`: that of the last record."""

    recorder: StepRecorder
    observer: Fanout
    soundness: Soundness
    pending: PendingCheckpoints
    final_loss: float | None = None

    def write(self) -> None:
        """Write the records that are due."""
        for record in self.recorder.due():
            self.final_loss = record.loss
            self.soundness.take(record.step, record.loss)
            self.observer.write(record)

    def judge(self, verdicts: Iterable[tuple[int, str]]) -> None:
        """Versions are sound, or unsound for a reason."""
        for version, reason in verdicts:
            self.pending.judge(version, reason)
