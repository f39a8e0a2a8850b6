"""A worker in virtual time: its passes, which wait for weights, its coder, and the choice of the version for its next step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from psnode.exchange.routes.route import Route
from psnode.jobs.planning.profile import GroupCosts, Profile, SchemeCosts
from psnode.jobs.simulating.disturbances import Standstill, through
from psnode.jobs.simulating.event_loop import EventLoop
from psnode.jobs.simulating.host_cores import SharedCores, SharingThread
from psnode.jobs.simulating.message_paths import MessagePaths
from psnode.jobs.simulating.simulated_spans import SimulatedSpans


class WorkerReport(NamedTuple):
    """The figures of a worker's step: seconds of its passes, of the coding of its gradient, and of its waits for weights."""

    passes: float
    encode: float
    wait: float


class Hearer(Protocol):
    """The methods of the master that a worker calls."""

    def hear_answer(self, rank: int, number: int) -> None:
        """Handle the answer of worker `rank` to question `number`."""

    def count(self, version: int, nbytes: int) -> None:
        """Count the bytes of a frame that a worker sends in its step on `version`."""

    def report(self, rank: int, version: int, time: float, report: WorkerReport) -> None:
        """Store the figures of the step of worker `rank` on `version`, which ends at `time`."""


class GradientHearer(Protocol):
    """The method of a shard that a worker calls."""

    def hear_gradient(self, rank: int, group: int, version: int) -> None:
        """Take a frame with a group's gradient, which worker `rank` computed on `version`."""


@dataclass(frozen=True)
class StepOrder:
    """The parts of a worker's step, in seconds. They are the same for all workers.

    `forward`: for each group, in the order of use, the seconds of the forward pass since the use of the previous group, and
    the group. `backward`: the same for the backward pass, in the order in which gradients finish. `last_forward`,
    `last_backward`: the seconds of each pass after the last group. `extra`: see SchemeCosts.
    """

    groups: Sequence[GroupCosts]
    forward: Sequence[tuple[float, int]]
    last_forward: float
    backward: Sequence[tuple[float, int]]
    last_backward: float
    extra: float

    @classmethod
    def of(cls, profile: Profile, costs: SchemeCosts) -> StepOrder:
        """Return the parts of a step of the model in `profile`, under a scheme with the costs `costs`."""
        needed = [min(group.needed, profile.forward) for group in costs.groups]
        ready = [group.ready for group in costs.groups]
        forward, last_forward = _gaps(needed, profile.forward)
        backward, last_backward = _gaps(ready, profile.backward)
        return cls(costs.groups, forward, last_forward, backward, last_backward, costs.extra)


def _gaps(times: Sequence[float], end: float) -> tuple[list[tuple[float, int]], float]:
    """Return a pair for each group, sorted by their times: the seconds since the previous group's time, and the group.

    Also returns the seconds from the last time to `end`.
    """
    order = sorted(range(len(times)), key=lambda index: times[index])
    before = [0.0, *(times[index] for index in order)]
    gaps = [(times[index] - earlier, index) for index, earlier in zip(order, before, strict=False)]
    return gaps, max(0.0, end - before[-1])


class SimulatedWorker:
    """The worker on `rank`. `goes_on`: True if rounds close without the slowest workers, so that a worker may skip versions.

    `routes`: the route of each group. `shards`: the shards that take gradients, by rank. `cores`: the cores that the
    worker's threads share with a shard on this rank; they stop during pauses of this rank. `cores` is None if the worker's
    threads never wait for a core. Then the worker's own time, `_clock`, runs ahead of the loop's time as long as no
    message can change the worker's work.
    """

    def __init__(
        self,
        rank: int,
        loop: EventLoop,
        paths: MessagePaths,
        master: Hearer,
        order: StepOrder,
        spans: SimulatedSpans,
        *,
        routes: Sequence[Route],
        shards: Mapping[int, GradientHearer],
        goes_on: bool,
        cores: SharedCores | None = None,
        factor: Callable[[], float] = lambda: 1.0,
        standstills: Sequence[Standstill] = (),
    ) -> None:
        self.rank, self._loop, self._paths, self._master, self._order = rank, loop, paths, master, order
        self._spans, self._goes_on, self._factor, self._standstills = spans, goes_on, factor, standstills
        self._routes, self._shards, self._cores = routes, shards, cores
        self._coder = None if cores is None else SharingThread(cores)
        self._coding = 0  # number of groups that the coder has not finished, if it shares cores
        self._coded = 0.0  # the time at which the coder has finished, if it has a core of its own
        self._alive = True
        self._clock = self._waited = 0.0
        self._version = 0  # the version that is expected or in place
        self._arrived: dict[int, set[int]] = defaultdict(set)  # by version, the groups that have arrived
        self._complete: set[int] = {0}
        self._newest = 0  # the newest version that has arrived completely
        self._whole = 0  # the newest version that was sent as whole weights
        self._questions: list[int] = []  # questions that are not answered yet
        self._hold: int | None = None  # the question that must be answered before the next version
        self._arrived[0] = set(range(len(order.groups)))
        self._life = self._steps()

    def begin(self) -> None:
        """Begin the first step on the initial weights."""
        next(self._life)

    def die(self) -> None:
        """Stop all work on this rank."""
        self._alive = False
        if self._cores is not None:
            self._cores.end()

    # messages of the master

    def hear_weights(self, version: int, group: int) -> None:
        """Record that a group's weights of `version`, or their change, have arrived."""
        if version >= self._version:
            self._arrived[version].add(group)
            self._look(version)

    def hear_whole(self, version: int) -> None:
        """Record that the whole weights of `version` have arrived.

        With them, a worker can continue although it has missed earlier versions.
        """
        self._arrived[version].update(range(len(self._order.groups)))
        self._whole = version
        self._look(version)

    def hear_complete(self, version: int) -> None:
        """Record the master's message that `version` is complete."""
        if version >= self._version:
            self._complete.add(version)
            self._look(version)

    def hear_question(self, number: int, hold: bool) -> None:
        """Take a question of the master. It is answered when the worker has used everything that was sent before it.

        `hold`: True if the master holds the next version back until the answer arrives.
        """
        if hold:
            self._hold = number
        else:
            self._questions.append(number)
        self._wake()

    def _look(self, version: int) -> None:
        if version > self._newest and version in self._complete and len(self._arrived[version]) == len(self._order.groups):
            self._newest = version
        self._wake()

    def _wake(self) -> None:
        if self._alive:
            next(self._life)

    # this worker's own time

    def _spend(self, seconds: float) -> Iterator[None]:
        """Do work that takes `seconds` without waits, and advance this worker's time."""
        if self._cores is None:
            self._clock = through(self._standstills, self._clock, seconds)
            return
        if seconds > 0:
            over: list[bool] = []
            self._cores.run(seconds, self._end_work, over)
            while not over:
                yield
        self._clock = self._loop.now

    def _end_work(self, over: list[bool]) -> None:
        over.append(True)
        self._wake()

    def _span(self, name: str, start: float, **facts: int) -> None:
        self._spans.add(self.rank, "main", name, start, self._clock, **facts)

    def _until_clock(self) -> Iterator[None]:
        """Wait until the loop's time has reached this worker's time."""
        end = self._clock
        if end > self._loop.now:
            self._loop.at(end, self._wake)
            while self._loop.now < end:
                yield

    def _wait(self, there: Callable[[], bool]) -> Iterator[None]:
        """Wait until `there` returns True, or until whole weights of a later version have come in place of the expected ones."""
        if there():
            return
        before = self._clock
        while not there() and not self._is_passed_over:
            if self._hold is not None and self._hold <= self._version:
                self._tell(self._hold)
                self._hold = None
            yield
            self._clock = max(self._clock, self._loop.now)
        self._waited += self._clock - before
        self._span("wait", before, version=self._version)

    @property
    def _is_passed_over(self) -> bool:
        """True if the worker has got the whole weights of a later version, so that the expected version will not come."""
        return self._whole > self._version and self._whole in self._complete

    @property
    def _is_behind(self) -> bool:
        """True if a later version has arrived completely, or if the master waits for this worker's answer before the next
        version.
        """
        return self._newest > self._version or (self._hold is not None and self._hold > self._version)

    def _tell(self, number: int) -> None:
        """Send the answer to question `number` to the master."""
        self._paths.answer(self.rank, max(self._clock, self._loop.now), self._master.hear_answer, self.rank, number)

    # steps

    def _steps(self) -> Iterator[None]:
        """Take steps without end. Every `yield` waits for a message or for a time.

        A step that is given up for a later version leaves its factor to the next one.
        """
        factor = self._factor()
        while True:
            self._waited = 0.0
            begun = self._clock
            yield from self._take(0 if self._version == 0 else 1, self._order.forward, factor)
            if not self._is_passed_over:
                yield from self._spend(self._order.last_forward * factor)
                yield from self._wait(lambda: self._version in self._complete)
            if self._is_passed_over:
                self._expect(self._whole)
                continue
            self._answer()
            yield from self._backward(factor, begun)
            factor = self._factor()
            yield from self._until_clock()
            self._expect(self._version + 1)
            while self._goes_on and not self._is_passed_over and self._is_behind:
                yield from self._take(1, [(0.0, group) for _, group in self._order.forward], 0.0)
                yield from self._wait(lambda: self._version in self._complete)
                if self._is_passed_over:
                    break
                self._answer()
                yield from self._until_clock()
                self._expect(self._version + 1)
            if self._is_passed_over:
                self._expect(self._whole)

    def _take(self, applied: int, passes: Sequence[tuple[float, int]], factor: float) -> Iterator[None]:
        """Apply the expected version group by group, while the forward pass runs.

        `passes`: for each group, the seconds of the pass before its use, and the group. `applied`: 1 if applying weights
        takes time, 0 for the initial weights. `factor`: a factor for the seconds of the pass.
        """
        for gap, group in passes:
            yield from self._spend(gap * factor)
            arrived = self._arrived[self._version]
            if group not in arrived:
                yield from self._wait(lambda group=group, arrived=arrived: group in arrived)  # type: ignore[misc]
                if self._is_passed_over:
                    return
            start = self._clock
            yield from self._spend(applied * self._order.groups[group].apply)
            self._span("apply", start, group=group)

    def _expect(self, version: int) -> None:
        """Expect `version` as the next one, and forget all earlier versions."""
        for earlier in range(self._version, version):
            self._arrived.pop(earlier, None)
            self._complete.discard(earlier)
        self._version = version

    def _answer(self) -> None:
        """Answer all questions that have come, because the worker has the weights of the version that they refer to."""
        for number in self._questions:
            self._tell(number)
        self._questions = []

    def _backward(self, factor: float, begun: float) -> Iterator[None]:
        """Run the backward pass. The coder codes and sends each group when its gradient is finished, in parallel to the pass."""
        waited = self._waited
        for gap, group in self._order.backward:
            yield from self._spend(gap * factor)
            self._code(group)
        yield from self._spend(self._order.last_backward * factor)
        passes = self._clock - begun - waited
        self._span("forward_backward", begun, step=self._version + 1)
        while self._coding:
            yield
        self._clock = max(self._clock, self._coded)
        yield from self._spend(self._order.extra)
        encode = sum(self._order.groups[group].encode for _, group in self._order.backward)
        self._master.report(self.rank, self._version, self._clock, WorkerReport(passes, encode, waited))

    def _code(self, group: int) -> None:
        """Make the coder code a group's gradient and send it."""
        seconds = self._order.groups[group].encode
        if self._coder is not None:
            self._coding += 1
            self._coder.run(seconds, self._end_coding, group, self._version, self._loop.now)
            return
        start = max(self._coded, self._clock)
        self._coded = through(self._standstills, start, seconds)
        self._spans.add(self.rank, "coder", "encode", start, self._coded, group=group)
        self._loop.at(self._coded, self._send, group, self._version)

    def _end_coding(self, group: int, version: int, asked: float) -> None:
        start, self._coded = max(self._coded, asked), self._loop.now
        self._spans.add(self.rank, "coder", "encode", start, self._coded, group=group)
        self._coding -= 1
        self._send(group, version)
        self._wake()

    def _send(self, group: int, version: int) -> None:
        if self._alive:
            nbytes = self._order.groups[group].up
            for root in self._routes[group].up(self.rank):
                hear = self._shards[root].hear_gradient
                self._master.count(version, self._paths.up(self.rank, nbytes, hear, self.rank, group, version, to=root))
