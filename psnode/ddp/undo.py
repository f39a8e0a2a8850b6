"""Copies of the feedback state from before a step, to undo a step whose gradients are not applied."""

from __future__ import annotations

import numpy as np

from psnode.ddp.buckets import Bucket
from psnode.feedback import State


class Undo:
    """Copies of each bucket's feedback state from before the bucket's last push. They are as large as the state itself."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[Bucket, list[State]]] = {}  # by bucket number
        self._step: set[int] = set()  # numbers of the buckets pushed in this step

    def begin(self) -> None:
        """Begin a step, and drop the copies of buckets that the last step did not have."""
        self._copies = {number: kept for number, kept in self._copies.items() if number in self._step}
        self._step = set()

    def keep(self, number: int, bucket: Bucket) -> None:
        """Copy a bucket's feedback state before the bucket's push changes it."""
        bucket_of, copies = self._copies.get(number, (None, []))
        if bucket_of is not bucket:
            copies = [
                {kind: np.empty_like(array) for kind, array in bucket.coders[k].state.items()} for k in range(len(bucket.coders))
            ]
            self._copies[number] = bucket, copies
        for k, copy in enumerate(copies):
            for kind, array in bucket.coders[k].state.items():
                np.copyto(copy[kind], array)
        self._step.add(number)

    def restore(self) -> None:
        """Restore the feedback state of all buckets pushed in this step."""
        for number in self._step:
            bucket, copies = self._copies[number]
            for k, copy in enumerate(copies):
                for kind, array in bucket.coders[k].state.items():
                    np.copyto(array, copy[kind])
        self._step = set()

    def forget(self) -> None:
        """Drop all copies, since the feedback state has been replaced."""
        self._copies, self._step = {}, set()

    def restore_part(self, number: int, place: slice) -> None:
        """Restore a part of the feedback state of bucket `number`. `place`: the part's slice of the bucket's plan."""
        bucket, copies = self._copies[number]
        for k, copy in enumerate(copies):
            segment = bucket.coders[k].segment
            within = slice(max(place.start - segment.start, 0), max(min(place.stop, segment.stop) - segment.start, 0))
            for kind, array in bucket.coders[k].state.items():
                array[within] = copy[kind][within]
