"""The worker: compute a gradient, have it sent, wait for the weights it helped to make."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from psnode import checkpoint, wire
from psnode.codecs import Codec, Payload, get_codec
from psnode.config import Config
from psnode.data.prefetch import Prefetch
from psnode.errors import DeadlineExceededError, WireError
from psnode.link import Link, StopRequest
from psnode.messages import Report, Start
from psnode.plan import Plan
from psnode.timeline import Tracer
from psnode.wire import Flag, Frame, Kind
from psnode.worker.computation import Computation, Outcome
from psnode.worker.hooks import GroupHooks
from psnode.worker.replica import Replica
from psnode.worker.sender import GradientSender

_IDENTITY = get_codec("identity")
_FIRST_ROUNDS = 3  # with a longer deadline: kernels compile, caches fill


@dataclass
class Worker:
    """One worker after the start-up, ready to take steps."""

    link: Link
    config: Config
    plan: Plan
    start: Start
    directory: Path | None  # the run's, if this rank sees it
    downlink: Sequence[Codec] | None  # of the segments in DELTA frames
    replica: Replica
    sender: GradientSender
    hooks: GroupHooks
    computation: Computation
    batches: Prefetch
    tracer: Tracer

    def train(self) -> None:
        """Take all steps, up to the round that the master declares the last; then wait to be told to leave."""
        self._receive_version(self.start.step)
        for step in range(self.start.step + 1, self.start.last_step + 1):
            outcome, encode, digest = self._compute(step)
            begin = time.perf_counter()
            flags = self._receive_version(step)
            wait = time.perf_counter() - begin
            self._report(step, outcome, encode, wait, digest)
            if Flag.CHECKPOINT in flags:
                self._contribute(step)
            if Flag.STOP in flags:
                break
        self._leave()

    def _compute(self, step: int) -> tuple[Outcome, float, int | None]:
        version = step - 1
        every = self.config.hash_every
        digest = self.replica.digest() if every and version and version % every == 0 else None
        with self.tracer.span("load", step=step):
            batches = next(self.batches)
        self.sender.begin(step, version, measure=step % self.config.log_interval == 0)
        with self.tracer.span("forward_backward", step=step):
            outcome = self.computation.run(step, batches, self.hooks)
        with self.tracer.span("drain", step=step):
            encode = self.sender.drain()
        return outcome, encode, digest

    def _receive_version(self, version: int) -> Flag:
        """Apply the groups of `version` as they come; returns the flags of the frame that closes the round."""
        missing = {group.index for group in self.plan.groups}
        patience = self.config.deadline * (3 if version < self.start.step + _FIRST_ROUNDS else 1)
        end = time.monotonic() + patience
        with self.tracer.span("wait", step=version):
            while True:
                try:
                    event = self.link.next(end - time.monotonic())
                except DeadlineExceededError:
                    raise DeadlineExceededError(
                        f"rank {self.link.rank} waited {patience:g} s for version {version} of the weights: "
                        "the master or a worker is gone or stuck; raise --deadline if it is only slow"
                    ) from None
                if isinstance(event, StopRequest):
                    self.link.send(0, Kind.REQUEST, event.reason.encode())
                    continue
                if not isinstance(event, Frame) or event.version != version:
                    raise WireError(f"rank {self.link.rank} expected version {version} of the weights and got {_describe(event)}")
                if event.kind is Kind.ROUND and not missing:
                    return event.flags
                if event.kind not in (Kind.WEIGHTS, Kind.DELTA) or event.group not in missing:
                    raise WireError(f"rank {self.link.rank} did not expect {_describe(event)}")
                self._apply(event)
                missing.remove(event.group)

    def _apply(self, frame: Frame) -> None:
        """Put a group's weights in place, or add their change. Only called between backward and the next forward pass."""
        group = self.plan.groups[frame.group]
        with self.tracer.span("apply", group=frame.group):
            weights = self.replica.weights
            if frame.kind is Kind.WEIGHTS:
                [data] = wire.split_group(frame.body, 1, frame.sender)
                _IDENTITY.decode(Payload.from_bytes(data), out=weights[group.start : group.stop])
            elif self.downlink is not None:
                parts = wire.split_group(frame.body, len(group.segments), frame.sender)
                for segment, data in zip(group.segments, parts, strict=True):
                    codec = self.downlink[segment.index]
                    codec.decode_add(Payload.from_bytes(data), weights[segment.start : segment.stop])
            frame.release()
            self.replica.publish(group)

    def _report(self, step: int, outcome: Outcome, encode: float, wait: float, digest: int | None) -> None:
        report = Report(
            loss=outcome.loss,
            samples=outcome.samples,
            metrics=outcome.metrics,
            forward_backward=outcome.seconds,
            encode=encode,
            wait=wait,
            relative_error=self.sender.relative_error,
            replica_hash=digest,
        )
        self.link.send(0, Kind.REPORT, report.to_bytes(), step=step, version=step - 1)

    def _contribute(self, step: int) -> None:
        """This worker's part of the checkpoint: all of it into the shared directory, or to the master; buffers to the master."""
        with self.tracer.span("checkpoint", step=step):
            buffers = {f"buffer/{name}": value for name, value in self.replica.buffers().items()}
            if self.directory is None:
                content = checkpoint.dump({**self.sender.state(), **buffers})
            else:
                path = checkpoint.draft_path(self.directory, step) / checkpoint.worker_file(self.link.rank)
                checkpoint.write_tensors(path, {**self.sender.state(), **buffers})
                content = checkpoint.dump(buffers)
            self.link.send(0, Kind.STATE, content, step=step, version=step)

    def _leave(self) -> None:
        """Hand over the trace and wait for the master's word that everything is written."""
        if self.tracer.enabled:
            self.link.send(0, Kind.TRACE, self.tracer.to_bytes())
        while True:
            event = self.link.next(self.config.deadline * 3)
            if isinstance(event, Frame) and event.kind is Kind.END:
                return

    def close(self) -> None:
        """End the threads."""
        self.batches.close()
        self.sender.close()
        self.hooks.remove()


def _describe(event: object) -> str:
    if isinstance(event, Frame):
        return f"a {event.kind.name} frame of group {event.group}, step {event.step}, version {event.version}"
    return type(event).__name__
