"""Logger to TensorBoard: event files in the run's directory, for `tensorboard --logdir`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psnode.records.loggers.base import LoggedRun

TENSORBOARD = "tensorboard"  # folder in the run's directory


class TensorBoard:
    """Writer of scalars, of settings as text and as hyperparameters, and of events as text.

    Every process of a run writes its own files.
    """

    def begin(self, run: LoggedRun) -> None:
        """Open the event files; the master also writes the settings."""
        from tensorboard.summary import Writer
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = str(run.directory / TENSORBOARD)
        self._scalars = Writer(folder)
        self._others = EventFileWriter(folder, filename_suffix=".settings")
        if not run.evaluates:
            self._text("settings", 0, f"```toml\n{run.text}```")
            self._hyperparameters(run.settings)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Add one point per tag."""
        for tag, value in values.items():
            self._scalars.add_scalar(tag, value, step)

    def event(self, step: int, text: str) -> None:
        """Add `text` under the tag `events`."""
        self._text("events", step, text)

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """Write the summary as a table and close the files."""
        if summary is not None:
            rows = "".join(f"| {name} | {value} |\n" for name, value in summary.items())
            self._text("summary", summary["steps"], f"| | |\n|---|---|\n{rows}")
        self._scalars.close()
        self._others.close()

    def _text(self, tag: str, step: int, text: str) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.text.metadata import create_summary_metadata
        from tensorboard.util.tensor_util import make_tensor_proto

        metadata = create_summary_metadata(display_name=tag, description="")
        value = Summary.Value(tag=tag, metadata=metadata, tensor=make_tensor_proto(text.encode()))
        self._write(Summary(value=[value]), step)

    def _hyperparameters(self, settings: Mapping[str, Any]) -> None:
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        plain = {name: value if isinstance(value, (bool, int, float, str)) else str(value) for name, value in settings.items()}
        self._write(hparams_pb(plain), 0)

    def _write(self, summary: Any, step: int) -> None:
        import time

        from tensorboard.compat.proto.event_pb2 import Event

        self._others.add_event(Event(wall_time=time.time(), step=step, summary=summary))
