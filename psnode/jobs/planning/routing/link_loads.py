"""The frames of a step on the routes of its groups, and the bytes that these frames add to the link of every rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from psnode.exchange.routes.route import Route


class RoutedFrame(NamedTuple):
    """A frame with a group's gradient or weights, from rank `source` to rank `target`, which may be the same rank."""

    source: int
    target: int
    group: int
    is_gradient: bool


def frames_of(routes: Sequence[Route], senders: Sequence[int]) -> Iterator[RoutedFrame]:
    """Yield the frames of a step, group by group: first gradients from the ranks `senders`, then weights from the roots.

    If readers pass weights on to other readers, their frames are included.
    """
    for group, route in enumerate(routes):
        yield from (RoutedFrame(rank, root, group, is_gradient=True) for rank in senders for root in route.up(rank))
        ahead, reached = list(route.roots), set(route.roots)
        while ahead:
            source = ahead.pop(0)
            for target in route.heirs(source):
                yield RoutedFrame(source, target, group, is_gradient=False)
                if target not in reached:
                    reached.add(target)
                    ahead.append(target)


@dataclass
class LinkLoad:
    """The groups and the bytes that one step of a job puts on `rank`.

    `groups`: the groups of which the rank is a root; `coordinates`: their total size. `gradients_in`, `weights_in`,
    `gradients_out`, `weights_out`: bytes on its link. A frame from a rank to itself uses no link.
    """

    rank: int
    groups: list[int] = field(default_factory=list)
    coordinates: int = 0
    gradients_in: int = 0
    weights_in: int = 0
    gradients_out: int = 0
    weights_out: int = 0

    @property
    def received(self) -> int:
        """Bytes that enter the rank over its link."""
        return self.gradients_in + self.weights_in

    @property
    def sent(self) -> int:
        """Bytes that leave the rank over its link."""
        return self.gradients_out + self.weights_out


def link_loads(
    routes: Sequence[Route], senders: Sequence[int], *, sizes: Sequence[int], ups: Sequence[int], downs: Sequence[int]
) -> list[LinkLoad]:
    """Return the loads of all ranks, including the master, in the order of ranks. `senders`: the ranks that send gradients.

    For each group, `sizes` is its number of coordinates, `ups` the bytes of a frame with its gradient, and `downs` the bytes
    of a frame with its weights.
    """
    frames = list(frames_of(routes, senders))
    count = 1 + max((max(frame.source, frame.target) for frame in frames), default=0)
    found = [LinkLoad(rank) for rank in range(count)]
    for group, route in enumerate(routes):
        for root in route.roots:
            found[root].groups.append(group)
            found[root].coordinates += sizes[group]
    for frame in frames:
        if frame.source == frame.target:
            continue
        if frame.is_gradient:
            found[frame.source].gradients_out += ups[frame.group]
            found[frame.target].gradients_in += ups[frame.group]
        else:
            found[frame.source].weights_out += downs[frame.group]
            found[frame.target].weights_in += downs[frame.group]
    return found
