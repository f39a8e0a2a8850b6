"""Account of the bytes of gradients and weights that pass the link of every rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from psnode.codecs.registry import known_codec
from psnode.exchange.routes.route import Route
from psnode.plans.groups import Group
from psnode.plans.roles import MASTER
from psnode.protocol import wire

_IDENTITY = known_codec("identity")
_WAYS = ("gradients_out", "weights_out", "gradients_in", "weights_in")


class LinkBytes:
    """Bytes of group frames, headers included, that left and entered each rank since this start of the run.

    Gradients are counted by their senders and by their receivers. Weights are counted by the ranks that update them;
    `routes` (one per group) gives the ranks between which the weights travel. Frames that stay on their rank do not count.
    """

    def __init__(self, groups: Sequence[Group] = (), routes: Sequence[Route] = ()) -> None:
        self._groups, self._routes = groups, routes
        self._ranks = {MASTER}.union(*({*route.readers, *route.roots} for route in routes))
        self._bytes: dict[str, Counter[int]] = {way: Counter() for way in _WAYS}
        self._weights: Counter[tuple[int, tuple[int, ...]]] = Counter()  # bytes by group and by the ranks that get the group
        self._recipients = tuple(sorted(self._ranks - {MASTER}))

    def send_gradients(self, rank: int, nbytes: int) -> None:
        """Count gradients that `rank` has sent to other ranks."""
        self._bytes["gradients_out"][rank] += nbytes

    def receive_gradients(self, rank: int, nbytes: int) -> None:
        """Count gradients that `rank` has received from other ranks."""
        self._bytes["gradients_in"][rank] += nbytes

    def send_to(self, ranks: Iterable[int]) -> None:
        """Count new versions only for `ranks` from now on; see WeightsHandle.send_to."""
        self._recipients = tuple(ranks)

    def send_weights(self, group: int, nbytes: int) -> None:
        """Count `nbytes` for every recipient of a group's new version."""
        if nbytes:
            self._weights[group, self._recipients] += nbytes

    def send_whole(self, ranks: Collection[int]) -> None:
        """Count uncoded weights of all groups, sent to `ranks` straight from the roots of the groups."""
        for group, route in zip(self._groups, self._routes, strict=True):
            frame = wire.HEADER_BYTES + wire.group_table_bytes(1) + wire.padded(_IDENTITY.max_nbytes((group.size,)))
            for root in route.roots:
                readers = set(route.of_root(root).readers).intersection(ranks)
                self._pass(((root, rank) for rank in readers if rank != root), frame)

    def facts(self, steps: int) -> dict[str, Any]:
        """Return the account for summary.json: the number of steps, and the bytes of each rank in each direction."""
        weights, self._weights = self._weights, Counter()
        for (group, ranks), nbytes in weights.items():
            hops = list(_hops(self._routes[group], ranks))
            if hops:
                self._pass(hops, nbytes // len(hops))
        found = {str(rank): {way: self._bytes[way][rank] for way in _WAYS} for rank in sorted(self._ranks)}
        return {"steps": steps, "ranks": found}

    def _pass(self, hops: Iterable[tuple[int, int]], nbytes: int) -> None:
        for source, target in hops:
            self._bytes["weights_out"][source] += nbytes
            self._bytes["weights_in"][target] += nbytes


def _hops(route: Route, ranks: Collection[int]) -> Iterator[tuple[int, int]]:
    """Yield pairs (sender, receiver): the transfers of a group's weights to those of `ranks` that are on its `route`."""
    sends = route.sends(ranks)
    yield from ((route.root, rank) for rank in (*sends.passed_on, *sends.used) if rank != route.root)
    ahead = list(sends.passed_on)
    while ahead:
        heirs = route.heirs(source := ahead.pop())
        yield from ((source, heir) for heir in heirs)
        ahead += heirs
