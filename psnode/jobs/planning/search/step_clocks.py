"""A model of a step for the search among groupings: every group passes five stages in order, each with its own clock.

All clocks count seconds from the beginning of the backward pass. For a group of a job with P workers and l lanes, whose master
is the only root:

    coder   starts when the group's last gradient is ready and the coder is free; takes encode
    inward  starts when the group is coded and the master's link is free; takes P frames. A frame takes as long as the slowest of
            the wire, the thread that calls MPI, and the master's main thread
    lanes   the work w = P decode + update advances the lanes' clock by w / l, not earlier than from the first frame on. The group
            is done at the latest of three times: this clock, the first frame + w, and the last frame + decode + update. The clock
            is then at least the latest of these times minus w (1 - 1 / l)
    outward starts when the group is done and the link is free; takes P frames
    home    after the latency of a message, the group can be applied when the next forward pass uses it

Under other topologies the frames are those of StageLoads, and R roots work on different groups at the same time. So there are
R l lanes, and R links: a group's f frames advance the clock of the links by f / R frames, and the group has passed after at
least f frames. The clock is then at least this time minus f (1 - 1 / R) frames. This model ignores two things: gradients to
and weights from a root on a worker share its link with the worker's own frames, and weights that are passed on arrive later.

The forward pass begins when the backward pass has ended and all groups are coded. It waits for each group at its first use.
If the groups are first used in the reverse order of their gradients, the step ends at

    max over groups k of  home_k + (applications of k and of groups ready before it) + forward - needed_k,

where home_k is the last clock of group k, forward is the duration of the forward pass, and needed_k is the time in it at
which group k is first used. For any other order an upper bound is taken, so that the modelled forward pass is never too
short: a group that is not used before all groups that are ready earlier adds its application to the terms of these groups as
well. The `extra` of a group counts as application. A group may travel in several equal parts. Each part then passes the
stages by itself.

Every stage consists of sums and maxima of clocks, so a later clock never makes a step shorter. If ranks share the cores of
one machine, a step also takes at least the sum of all work divided by the rate of all cores together. Of the work on reports,
the master's bookkeeping is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from psnode.exchange.shard.executor import most_lanes
from psnode.jobs.planning.profile import HostCosts, Profile, TensorTimes, of_slowest
from psnode.jobs.planning.scenario import GOODPUT, Scenario
from psnode.jobs.planning.search.grouping import CodecCandidate, GroupChoice, Grouping, SmallTensorRules
from psnode.jobs.planning.search.stage_loads import StageLoads

Floats = npt.NDArray[np.float64]
CLOCKS = CODER, INWARD, LANES, OUTWARD, APPLIED, HOME, WORK, ERROR = range(8)
_CONTROL = 4  # ends of messages for each worker and step: of its report, and of the message that the version is complete
_MANY_GROUPS = 1 << 20  # more than any plan has, so that only the cores limit the lanes


class FrameTimes(NamedTuple):
    """Seconds that a frame takes at the master, in one direction.

    `byte_on_wire`: for each byte on the link. `message`, `byte_in_thread`: for the frame and for each of its bytes in the
    thread that calls MPI.
    """

    byte_on_wire: float
    message: float
    byte_in_thread: float

    def at(self, nbytes: Floats, bookkeeping: Floats | float = 0.0) -> Floats:
        """Return the seconds of frames of `nbytes` bytes.

        They are the longest of three times: on the wire, in the thread that calls MPI, and for `bookkeeping`.
        """
        slowest = np.maximum(nbytes * self.byte_on_wire, self.message + nbytes * self.byte_in_thread)
        found: Floats = np.maximum(slowest, bookkeeping)
        return found


@dataclass(frozen=True)
class GroupTimes:
    """Seconds of groups in every stage, as arrays with one entry for each group.

    `frame_in`, `frame_out`: for one frame. `ready`, `needed`: as in GroupCosts. `reversed`: True if the group is used before
    all groups that are ready earlier. `work`: core seconds of all ranks. `error`: the group's part of the error of the
    grouping.
    """

    encode: Floats
    frame_in: Floats
    decode: Floats
    update: Floats
    frame_out: Floats
    apply: Floats
    ready: Floats
    needed: Floats
    reversed: npt.NDArray[np.bool_]
    work: Floats
    error: Floats

    def of(self, places: npt.NDArray[np.int64]) -> GroupTimes:
        """Return the times of the groups with the indices `places`."""
        return GroupTimes(*(getattr(self, each.name)[places] for each in fields(self)))


class StepClocks:
    """The model of a step for the tensors of `profile`, in the order in which their gradients finish.

    `shares`: each tensor's share of |gradient|^2; by default its share of the coordinates. `loads`: the load of the stages; by
    default that of a star. Raises ConfigurationError if the codec of a candidate cannot code a tensor.
    """

    def __init__(
        self,
        profile: Profile,
        candidates: Sequence[CodecCandidate],
        scenario: Scenario,
        rules: SmallTensorRules | None = None,
        shares: Sequence[float] | None = None,
        loads: StageLoads | None = None,
    ) -> None:
        self.loads = loads or StageLoads.of_one_root(scenario.workers)
        self._passes, self.latency = profile.passes, scenario.latency(profile.host)
        self.profile = profile = of_slowest(profile, scenario.workers)
        self.tensors, self.candidates, self.scenario = profile.tensors, tuple(candidates), scenario
        self.lanes = self.loads.roots * most_lanes(scenario.cores, _MANY_GROUPS)
        self.rules = chosen = rules or SmallTensorRules()
        sizes = np.array([tensor.nbytes // 4 for tensor in self.tensors], float)
        part = sizes / max(sizes.sum(), 1.0) if shares is None else np.asarray(shares, float) / max(sum(shares), 1e-300)
        coded = np.array(
            [[chosen.codes(each.name, each.shape, other.codec) for each in self.tensors] for other in self.candidates], float
        )
        self._sizes, self._coded, self._shares = _sums(sizes), _sums(coded * sizes), _sums(coded * part)
        self._ready = np.maximum.accumulate([tensor.ready for tensor in self.tensors])
        self._needed = np.array([tensor.needed for tensor in self.tensors])
        self._earlier = np.minimum.accumulate(np.concatenate([[np.inf], self._needed]))  # earliest use before each tensor
        wire = 0.0 if scenario.rate is None else 8 / (scenario.rate * GOODPUT)
        host = profile.host
        self._inward = FrameTimes(wire, host.message, host.takes)
        self._outward = FrameTimes(wire, host.message, host.sends)

    def size(self, starts: npt.NDArray[np.int64], stop: int) -> Floats:
        """Return the number of coordinates of the tensors [start, stop), for every start."""
        found: Floats = self._sizes[stop] - self._sizes[starts]
        return found

    def coded(self, starts: npt.NDArray[np.int64], stop: int, candidate: int) -> Floats:
        """Return the number of coordinates of the tensors [start, stop) that a candidate codes, for every start."""
        found: Floats = self._coded[candidate, stop] - self._coded[candidate, starts]
        return found

    def times(self, starts: npt.NDArray[np.int64], stop: int, candidate: int, parts: int = 1) -> GroupTimes:
        """Return the times of groups of the tensors [start, stop) under one candidate, for every start.

        `parts`: the number of equal parts in which the groups are sent. If it is more than 1, the times are those of one
        part.
        """
        chosen, workers = self.candidates[candidate], self.scenario.workers
        curves, coded = chosen.curves, self.coded(starts, stop, candidate) / parts
        plain = self.size(starts, stop) / parts - coded
        encode, apply = curves.encode.at(coded, plain), curves.apply.at(coded, plain) + curves.extra.at(coded, plain)
        decode, update = curves.decode.at(coded, plain), curves.update.at(coded, plain)
        up, down, kept = curves.up.at(coded, plain), curves.down.at(coded, plain), curves.bookkeeping.at(coded, plain)
        needed = np.minimum.accumulate(self._needed[:stop][::-1])[::-1][starts]
        last_needed = np.maximum.accumulate(self._needed[:stop][::-1])[::-1][starts]
        transport = _transport(up, self.profile.host) + _transport(down, self.profile.host)
        on_workers = workers * (encode + apply + transport + kept + self.loads.copies * decode)
        return GroupTimes(
            encode, self._inward.at(up, kept), decode, update, self._outward.at(down), apply,
            np.full(len(starts), self._ready[stop - 1]), needed, last_needed <= self._earlier[starts],
            on_workers + self.loads.copies * update if self.scenario.shared else np.zeros(len(starts)),
            chosen.error / parts * (self._shares[candidate, stop] - self._shares[candidate, starts]),
        )  # fmt: skip

    def frames(self, candidate: CodecCandidate, coded: float, plain: float) -> tuple[float, float]:
        """Return the seconds that a frame to the master takes at the master, and those that a frame from the master takes there.

        The frames are those of a group with `coded` coded and `plain` uncoded coordinates.
        """
        curves = candidate.curves
        up, down, kept = (np.array([line.at(coded, plain)]) for line in (curves.up, curves.down, curves.bookkeeping))
        return float(self._inward.at(up, kept)[0]), float(self._outward.at(down)[0])

    def extend(self, labels: Floats, group: GroupTimes, parts: int = 1) -> Floats:
        """Return the labels that follow from `labels` when one more group has passed the stages.

        A label is a row of clocks, in the order of CLOCKS. `group`: the times of the group, or of each of its parts if
        `parts` is more than 1.
        """
        for _ in range(parts):
            labels = self._extend(labels, group)
        return labels

    def _extend(self, labels: Floats, group: GroupTimes) -> Floats:
        loads, half = self.loads, self.latency
        found = np.empty_like(labels)
        found[:, CODER] = coded = np.maximum(labels[:, CODER], group.ready) + group.encode
        first = np.maximum(labels[:, INWARD], coded) + min(1, loads.inward) * group.frame_in + half
        inside, found[:, INWARD] = self._through_links(labels[:, INWARD], coded, loads.inward * group.frame_in)
        work = loads.gradients * group.decode + group.update
        clock = np.maximum(labels[:, LANES], first) + work / self.lanes
        done = np.maximum(np.maximum(clock, first + work), inside + half + group.decode + group.update)
        found[:, LANES] = np.maximum(clock, done - work * (1 - 1 / self.lanes))
        home, found[:, OUTWARD] = self._through_links(labels[:, OUTWARD], done, loads.outward * group.frame_out)
        found[:, APPLIED] = applied = labels[:, APPLIED] + group.apply
        own = home + half + applied + self.profile.forward - np.minimum(group.needed, self.profile.forward)
        found[:, HOME] = np.maximum(labels[:, HOME] + np.where(group.reversed, 0.0, group.apply), own)
        found[:, WORK] = labels[:, WORK] + group.work
        found[:, ERROR] = labels[:, ERROR] + group.error
        return found

    def _through_links(self, clock: Floats, begin: Floats, frames: Floats) -> tuple[Floats, Floats]:
        """Return the time at which a group has passed the links, and their clock after it.

        `clock`: the clock before. `begin`: the earliest time at which the group can be sent. `frames`: the seconds of all its
        frames.
        """
        found = np.maximum(clock, begin) + frames / self.loads.roots
        passed = np.maximum(found, begin + frames)
        return passed, np.maximum(found, passed - frames * (1 - 1 / self.loads.roots))

    def seconds(self, labels: Floats) -> Floats:
        """Return the seconds of the step for labels that contain all groups."""
        passes = np.maximum(labels[:, CODER], self.profile.backward) + self.profile.forward + labels[:, APPLIED]
        found: Floats = np.maximum(np.maximum(passes, labels[:, HOME]), self.shared_work(labels[:, WORK]))
        return found

    def shared_work(self, work: Floats) -> Floats:
        """Return the least seconds of a step on shared cores. `work`: the core seconds of all work on groups.

        The cores are taken not to switch between ranks, which would make them slower. The result is 0 if ranks do not share
        cores.
        """
        if not self.scenario.shared:
            return np.zeros_like(work)
        always = self._passes + _CONTROL * self.profile.host.message
        found: Floats = (self.scenario.workers * always + work) / (self.scenario.cores * self.profile.host.crowded)
        return found

    def start(self) -> Floats:
        """Return the label before the first group, as an array of one row."""
        return np.zeros((1, len(CLOCKS)))

    def along(self, stops: Sequence[int], chosen: Sequence[int], parts: Sequence[int] | None = None) -> Floats:
        """Return the label after the given groups, as an array of one row.

        `stops`: for each group, the number of the tensor before which it ends. `chosen`: the number of each group's
        candidate. `parts`: the number of parts of each group; None: every group has one part.
        """
        label, start = self.start(), 0
        for stop, candidate, count in zip(stops, chosen, parts or [1] * len(stops), strict=True):
            label = self.extend(label, self.times(np.array([start]), stop, candidate, count), count)
            start = stop
        return label

    def grouping(self, stops: Sequence[int], chosen: Sequence[int], parts: Sequence[int] | None = None) -> Grouping:
        """Return the grouping, including its seconds and its error, whose groups the arguments describe as in `along`."""
        label, found, start = self.along(stops, chosen, parts), [], 0
        for stop, candidate, count in zip(stops, chosen, parts or [1] * len(stops), strict=True):
            names = tuple(tensor.name for tensor in self.tensors[start:stop])
            found.append(GroupChoice(names, self.candidates[candidate].flags, count))
            start = stop
        return Grouping(tuple(found), float(self.seconds(label)[0]), float(label[0, ERROR]))

    @property
    def reversed_from(self) -> npt.NDArray[np.bool_]:
        """For every tensor: True if it and every later tensor are used before all tensors whose gradients are ready earlier.

        One more entry, which is True, stands for the end.
        """
        own = np.append(self._needed <= self._earlier[:-1], True)
        found: npt.NDArray[np.bool_] = np.logical_and.accumulate(own[::-1])[::-1]
        return found

    def least(self) -> GroupTimes:
        """Return lower bounds of the times of each tensor. They hold for a part of any group, under any candidate."""
        count = len(self.tensors)
        one, zero = np.zeros(count), np.zeros(count)
        sizes, coded = np.diff(self._sizes), np.diff(self._coded, axis=1)
        wire = self._inward.byte_on_wire

        def slopes(name: str) -> Floats:
            lines = [getattr(candidate.curves, name) for candidate in self.candidates]
            found: Floats = np.min(
                [line.coded * own + line.plain * (sizes - own) for line, own in zip(lines, coded, strict=True)], axis=0
            )
            return found

        return GroupTimes(
            slopes("encode"), wire * slopes("up"), slopes("decode"), slopes("update"), wire * slopes("down"),
            slopes("apply") + slopes("extra"), self._ready, self._needed, np.zeros(count, bool), zero, one,
        )  # fmt: skip


def joined_small(tensors: Sequence[TensorTimes], least: int) -> list[int]:
    """Return the numbers of tensors after which a group may end, in ascending order.

    A group may end after each tensor of at least `least` coordinates. So small tensors join the next large tensor, and those
    at the end join the last large tensor. The last number is that of all tensors.
    """
    ends = [place + 1 for place, tensor in enumerate(tensors) if tensor.nbytes // 4 >= least]
    return [*ends[:-1], len(tensors)]


def _sums(values: Floats) -> Floats:
    """Return, for every position on the last axis and for its end, the sum of the values before it."""
    zeros = np.zeros((*values.shape[:-1], 1))
    return np.concatenate([zeros, np.cumsum(values, axis=-1)], axis=-1)


def _transport(nbytes: Floats, host: HostCosts) -> Floats:
    return 2 * host.message + nbytes * (host.sends + host.takes)
