"""Records of a run: step records, one for each complete step, and verdicts on checkpoints, which follow from the losses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from psnode.master.checkpoints.pending import PendingCheckpoints
from psnode.master.checkpoints.soundness import Soundness
from psnode.master.lines.progress import Fanout
from psnode.master.recorder import StepRecorder


@dataclass
class Books:
    """Writes the records of steps and the verdicts on checkpoints.

    `final_loss`: the loss in the last record written.
    """

    recorder: StepRecorder
    observer: Fanout
    soundness: Soundness
    pending: PendingCheckpoints
    final_loss: float | None = None

    def write(self) -> None:
        """Write the step records that are complete, and add their losses to `soundness`."""
        for record in self.recorder.due():
            self.final_loss = record.loss
            self.soundness.take(record.step, record.loss)
            self.observer.write(record)

    def judge(self, verdicts: Iterable[tuple[int, str]]) -> None:
        """Pass `verdicts` on to the pending checkpoints.

        A verdict is a pair: a version, and the reason why its checkpoint is unsound, or "" if the checkpoint is sound.
        """
        for version, reason in verdicts:
            self.pending.judge(version, reason)
