"""Records, in a run's directory, of a training under DistributedDataParallel, for `psnode report` and `psnode runs`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch.distributed as dist
from torch import nn

import psnode
from psnode.config.plain_json import to_json
from psnode.config.scheme import Scheme
from psnode.ddp.hook import HookState
from psnode.errors import ConfigurationError
from psnode.plans.groups import Plan, Tensor
from psnode.plans.rule import make_plan
from psnode.records.directory import CONFIG, installed_versions
from psnode.records.directory_lock import at_work, locked
from psnode.records.journal import Journal
from psnode.records.metrics import EVALUATIONS, METRICS, SUMMARY, compression_ratio, cut_after, totals, write_atomically
from psnode.tasks.tensor_names import parameters

_FLOAT32 = 4  # bytes


class RunRecords:
    """Writes config.json, metrics.jsonl, evaluations.jsonl and summary.json of a DDP training, in a with statement.

    All ranks enter the statement and may call the methods. Only rank 0 writes, and arguments of other ranks are ignored. `model`:
    the network; the records count its parameters that require gradients. `state`: the state of psnode's hook, or None for DDP
    without the hook; then every rank's all-reduce counts as one float32 gradient sent and one received. `settings`: values of
    JSON types, by name, which reports compare. Completed runs that differ only by the setting `seed` are one line of a report.
    `step`: the number of updates before this start. If it is not 0, the run continues, and its records of later updates are
    deleted.

    Entering raises ConfigurationError if `directory` holds a run and `step` is 0, or if another program records in `directory`.
    """

    def __init__(
        self,
        directory: str | Path,
        model: nn.Module,
        state: HookState | None = None,
        *,
        settings: Mapping[str, Any] | None = None,
        step: int = 0,
    ) -> None:
        self._path, self._model, self._state, self._step = Path(directory).resolve(), model, state, step
        self._settings = dict(settings or {})

    def __enter__(self) -> Self:
        self._rank, self._ranks = self._state.place() if self._state is not None else _place()
        if self._rank == 0:
            self._begin()
        self._since, self._traffic = time.monotonic(), self._counted()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._rank != 0:
            return
        self._metrics.close()
        self._evaluations.close()
        self._write_summary("completed" if kind is None else f"ended by {kind.__name__}", int(kind is not None))
        self._lock.release()

    def step(self, *, loss: float | None = None, lr: float | None = None, examples: int | None = None, **metrics: float) -> None:
        """Record an update. Call this after `optimizer.step()`.

        `loss` and `metrics`: values of this batch; only the values that rank 0 passes are recorded. `examples`: number of
        examples on all ranks together. The recorded time of the update is the time since the last call, or since the with
        statement was entered.
        """
        self._step += 1
        now, traffic = time.monotonic(), self._counted()
        seconds, self._since = now - self._since, now
        sent, received = (after - before for after, before in zip(traffic, self._traffic, strict=True))
        if self._state is None:
            sent = received = (
                _FLOAT32 * self._ranks * sum(each.numel() for _, each in parameters(self._model) if each.requires_grad)
            )
        self._traffic = traffic
        if self._rank != 0:
            return
        rate = {} if examples is None else {"samples_per_second": examples / max(seconds, 1e-9)}
        record = {
            "step": self._step, "loss": loss, "lr": lr, "workers": self._ranks, "uplink_bytes": sent, "downlink_bytes": received,
            "seconds": {"step": seconds}, "metrics": metrics, **rate,
        }  # fmt: skip
        self._metrics.append(to_json(record).encode())

    def evaluated(self, *, loss: float | None = None, top1: float | None = None, **metrics: float) -> None:
        """Record an evaluation after the last update. `top1`: a fraction, not a percentage."""
        if self._rank == 0:
            record = {"step": self._step, "loss": loss, "top1": top1, "metrics": metrics}
            self._evaluations.append(to_json(record).encode())

    def _counted(self) -> tuple[int, int]:
        return (0, 0) if self._state is None else self._state.traffic

    def _begin(self) -> None:
        if (self._path / CONFIG).exists() and self._step == 0:
            raise ConfigurationError(f"{self._path} already holds a run: name another directory, or continue it with step=")
        if at_work(self._path):
            raise ConfigurationError(f"another program is at work in {self._path}: wait for its end, or name another directory")
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            self._lock = locked(self._path)
            for file in (METRICS, EVALUATIONS):
                cut_after(self._path / file, self._step)
            (self._path / SUMMARY).unlink(missing_ok=True)
            write_atomically(self._path / CONFIG, to_json(self._content(), indent=1).encode() + b"\n")
            self._metrics, self._evaluations = Journal(self._path / METRICS), Journal(self._path / EVALUATIONS)
        except OSError as error:
            raise ConfigurationError(f"{self._path} cannot be written: {error.strerror}; name another directory") from error

    def _content(self) -> dict[str, Any]:
        state = self._state
        codec, feedback = ("identity", "none") if state is None else (state.codec, state.feedback)
        name, down = ("ddp", "all-reduce") if state is None else ("ddp hook", "all-gather")
        scheme = Scheme(name, codec, summary="", paper="", feedback=feedback, downlink=down, momentum=0.0)
        tensors = [Tensor(name, tuple(each.shape)) for name, each in parameters(self._model) if each.requires_grad]
        least = 0 if state is None else state.min_compress_bytes
        self._plan: Plan = make_plan(tensors, codec, group_by="model", min_compress_bytes=least)
        return {
            "psnode": psnode.__version__, "workers": self._ranks, "config": self._settings, "scheme": scheme.to_dict(),
            "plan": self._plan.to_dict(), "versions": installed_versions(),
        }  # fmt: skip

    def _write_summary(self, reason: str, code: int) -> None:
        done = totals(self._path / METRICS, self._step)
        ratio = compression_ratio(self._plan.size, done.worker_steps, done.uplink_bytes + done.downlink_bytes)
        content = {
            "steps": done.steps,
            "seconds": done.seconds,
            "uplink_bytes": done.uplink_bytes,
            "downlink_bytes": done.downlink_bytes,
            "compression_ratio": ratio,
            "coordinates": self._plan.size,
            "stop_reason": reason,
            "exit_code": code,
        }
        write_atomically(self._path / SUMMARY, to_json(content, indent=2).encode() + b"\n")


def _place() -> tuple[int, int]:
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
