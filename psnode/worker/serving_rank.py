"""A server: a rank other than the master that updates a part of the weights and computes no gradients."""

from __future__ import annotations

from collections.abc import Callable

from psnode.errors import DeadlineExceededError
from psnode.exchange.shard.remote.shard_server import ShardServer
from psnode.plans.roles import MASTER
from psnode.protocol.channel import FrameChannel, StopRequest
from psnode.protocol.messages import Start
from psnode.protocol.wire import Frame, Kind
from psnode.transport.clock import Clock


class ServingRank:
    """A server after the start-up. It waits for the end of the job while `server` does the work in a separate thread.

    `server`: None if this rank has no group, since the plan has fewer groups than there are servers. `patience`: the longest
    silence of the master, in seconds. `start`: the start of the job. `rate`: the learning rate by step. After the job,
    `version` is the number of updates.
    """

    gradient_norm = None  # only the master and the workers know it

    def __init__(
        self, link: FrameChannel, server: ShardServer | None, patience: float, start: Start, rate: Callable[[int], float]
    ) -> None:
        self._link, self._server, self._patience = link, server, patience
        self._shift, self._rate = start.shift, rate
        self.version, self.steps_per_epoch, self.total_steps = start.step, start.steps_per_epoch, start.last_step

    @property
    def epoch(self) -> int:
        """The number of finished epochs."""
        return (self.version + self._shift) // self.steps_per_epoch

    @property
    def lr(self) -> float:
        """The learning rate of the last step; before the first step, the rate of the first step."""
        return self._rate(max(self.version - 1, 0))

    def train(self) -> None:
        """Wait until the master dismisses this rank, and pass requests to stop on to the master.

        Raises DeadlineExceededError if the master is silent for too long, or the error that ends the job.
        """
        clock = Clock()
        end = clock.now() + self._patience
        while True:
            try:
                with clock.listening(end) as seconds:
                    event = self._link.next(seconds)
            except DeadlineExceededError:
                if clock.now() < end:
                    continue
                raise DeadlineExceededError(
                    f"rank {self._link.rank} heard nothing of the master for {self._patience:g} s: it is gone or stuck; raise "
                    "--pause-deadline if it is only slow"
                ) from None
            end = clock.now() + self._patience
            if isinstance(event, StopRequest):
                self._link.send(MASTER, Kind.STOP_REQUEST, event.reason.encode())
            elif isinstance(event, Frame):
                event.release()
                if event.kind is Kind.END:
                    self.version = event.version
                    return

    def close(self) -> None:
        """Finish all queued work and end the threads."""
        if self._server is not None:
            self._server.close()
