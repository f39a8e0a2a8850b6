"""Detection of divergence: a loss that is not finite, or weights that differ between ranks.

The report on a loss includes the losses of other workers on the same weights.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import numpy as np
import xxhash

from psnode.codecs.arrays import Floats
from psnode.errors import DeadlineExceededError, DivergedError, PeerLostError, PsnodeError
from psnode.protocol.channel import FrameChannel, RemoteFailureError
from psnode.protocol.wire import Frame, Kind

_KEPT = 16  # hashes of compared versions that are kept for late reports
_SECONDS = 10.0
_BEHIND_THE_LOSS = (Kind.GRADIENT, Kind.REPORT, Kind.SKIP_STEP)  # frames that a worker sends only after a finite loss


class ReplicaHashes:
    """The xxh3_64 hashes of the weights y at every `every`-th version; if `every` is 0, no version is hashed."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._hashes: dict[int, int | None] = {}

    def due(self, version: int) -> bool:
        """True if the weights of `version` are compared."""
        return bool(self._every) and version % self._every == 0

    def note(self, version: int, replica: Floats | None) -> None:
        """Hash the weights y of `version` if it is due. Version 0 is skipped, since all ranks agree on it at the start.

        If `replica` is None, the workers' hashes are compared with the first hash that comes from a worker.
        """
        if version and self.due(version):
            self._hashes[version] = None if replica is None else xxhash.xxh3_64_intdigest(replica.data)
            self._hashes.pop(version - _KEPT * self._every, None)

    def compare(self, rank: int, step: int, version: int, found: int | None) -> None:
        """Raise DivergedError if `found` differs from the hash of the published weights of `version`.

        `found`: the hash of the weights on which `rank` computed `step`; None if the rank has reported no hash.
        """
        if found is not None and self._hashes.get(version, found) is None:
            self._hashes[version] = found
        expected = self._hashes.get(version)
        if found is not None and expected is not None and found != expected:
            raise DivergedError(
                f"rank {rank} computed step {step} on weights that differ from the published version {version}: its memory or a "
                "message was corrupted; go on with --resume"
            )


def diverged(
    link: FrameChannel,
    first: RemoteFailureError,
    finite: Iterable[int],
    others: Iterable[int],
    weights: Floats | None,
    outlier: str = "",
) -> DivergedError:
    """Return the error that ends the job after a worker has reported, in `first`, a loss that is not finite.

    `finite`: ranks whose loss in the same step is known to be finite. All other ranks in `others` have ten seconds to report
    their losses. `weights`: the weights on which the loss was computed, or None if they are no longer known. `outlier`: a
    line about a gradient of unusual size that these weights contain, or "".
    """
    losses = {first.rank: str(first.failure.loss)}
    fine = set(finite) - {first.rank}
    silent = set(others) - fine - {first.rank}
    end = time.monotonic() + _SECONDS
    while silent:
        try:
            event = link.next(end - time.monotonic())
        except DeadlineExceededError:
            break
        except RemoteFailureError as failure:
            if failure.failure.loss is not None and failure.step == first.step:
                losses[failure.rank] = failure.failure.loss
                silent.discard(failure.rank)
        except PeerLostError as lost:
            silent.discard(lost.rank)
        except PsnodeError:  # a malformed frame gives no information
            continue
        else:
            if isinstance(event, Frame) and event.step == first.step and event.kind in _BEHIND_THE_LOSS:
                fine.add(event.sender)
                silent.discard(event.sender)
    sound = None if weights is None else bool(np.isfinite(weights).all())
    return DivergedError(_told(first.step - 1, losses, fine, silent, sound, outlier))


def _told(version: int, losses: dict[int, str], fine: set[int], silent: set[int], sound: bool | None, outlier: str) -> str:
    """Return the text of the error: the losses by rank, a word on whether the weights are finite, and a remedy."""
    values = sorted(set(losses.values()))
    found = [f"{value} on {_ranks(rank for rank in losses if losses[rank] == value)}" for value in values]
    found += [f"finite on {_ranks(fine)}"] if fine else []
    found += [f"not heard of {_ranks(silent)}"] if silent else []
    weights = "" if sound is None else f"; the weights themselves are {'finite' if sound else 'not'}"
    remedy = "if the loss had risen before (metrics.jsonl), lower --lr or warm it up; if not, one update was out of place"
    if fine:
        remedy = f"look at the batch and the host of {_ranks(losses)}"
    elif outlier:
        remedy = f"{outlier}: look at its batch and its host; --norm-cap 10 refuses such"
    return f"the loss on the weights published as step {version} is not finite: {', '.join(found)}{weights}: {remedy}"


def _ranks(ranks: Iterable[int]) -> str:
    names = [str(rank) for rank in sorted(ranks)]
    return f"rank{'s' if len(names) > 1 else ''} {', '.join(names)}"
