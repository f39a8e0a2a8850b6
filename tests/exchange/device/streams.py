"""Stand-ins for torch's CUDA streams that run nothing and note each wait, to test an order that does not show in results."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.rows.fake_cupy import STREAM


class Stream:
    """A stream by its name. `waits`: the events for which it was told to wait."""

    cuda_stream = STREAM

    def __init__(self, device: object = None, name: str = "coding") -> None:
        self.name = name


class Streams:
    """The current stream of each thread (at first "training"), and `notes` of all actions, in order.

    A note is (action, name of the stream, subject). Streams record and await events, and the host awaits them; a test may
    note other actions.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.notes: list[tuple[str, str, Any]] = []
        self.training = Stream(name="training")
        self._current = threading.local()
        notes, streams = self.notes, self

        class Event:
            def __init__(self, **options: object) -> None:
                pass

            def record(self, stream: Stream | None = None) -> None:
                notes.append(("record", (stream or streams.current).name, self))

            def synchronize(self) -> None:
                notes.append(("synchronize", streams.current.name, self))

        def wait_event(stream: Stream, event: Event) -> None:
            notes.append(("wait", stream.name, event))

        monkeypatch.setattr(Stream, "wait_event", wait_event, raising=False)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "Stream", Stream)
        monkeypatch.setattr(torch.cuda, "stream", self.entered)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: self.current)

    @property
    def current(self) -> Stream:
        return getattr(self._current, "stream", self.training)

    @contextlib.contextmanager
    def _within(self, stream: Stream) -> Iterator[None]:
        before, self._current.stream = self.current, stream
        try:
            yield
        finally:
            self._current.stream = before

    def entered(self, stream: Stream) -> _Again:
        """Return a reusable context in which `stream` is the current one."""
        return _Again(self, stream)

    def note(self, what: str, subject: object = None) -> None:
        """Add a note of `what` and `subject` for the current stream."""
        self.notes.append((what, self.current.name, subject))


class _Again(contextlib.AbstractContextManager[None]):
    def __init__(self, streams: Streams, stream: Stream) -> None:
        self._streams, self._stream = streams, stream
        self._open: list[contextlib.AbstractContextManager[None]] = []

    def __enter__(self) -> None:
        self._open.append(self._streams._within(self._stream))
        self._open[-1].__enter__()

    def __exit__(self, *found: Any) -> None:
        self._open.pop().__exit__(*found)
