"""Marks of steps: the times at which a worker's backward passes begin, with the byte counts of its host's interface.

When a backward pass begins, all weights of its step have arrived. So all gradients of the previous step are delivered, and no
gradient of this step has been sent. The traffic between two marks is therefore that of whole steps, even if work and transfers
overlap.

The same task runs under psnode and under its peers, so the same lines of code time all of them and count their bytes. Times
come from the worker's clock, which all emulated hosts share. Byte counts come from the interface, independently of the
programs' own counts.
"""

from __future__ import annotations

import json
import os
import socket
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from psnode.config.plain_json import to_json
from psnode.task import Batch, Task, load_task
from psnode.tasks.classification import Classification
from psnode.transport.mpi.environment import place

if TYPE_CHECKING:
    import torch

INTERFACE = "eth0"  # the network interface of an emulated host
# Header bytes of a packet: Ethernet 14, IPv4 20, TCP 20 and its timestamps 12. A packet that the interface counts may be large;
# the network card of a real host would split it. Its headers are then counted only once.
HEADER_BYTES = 66


class Mark(NamedTuple):
    """A time in seconds on the monotonic clock, and the bytes (headers included) and packets since the host was created."""

    seconds: float
    rx_bytes: int
    rx_packets: int
    tx_bytes: int
    tx_packets: int

    @classmethod
    def now(cls) -> Mark:
        """Return the mark of this host at this moment, with zero counts if the host has no INTERFACE."""
        for line in Path("/proc/net/dev").read_text().splitlines():
            name, _, counts = line.partition(":")
            if name.strip() == INTERFACE:
                found = [int(word) for word in counts.split()]
                return cls(time.monotonic(), found[0], found[1], found[8], found[9])
        return cls(time.monotonic(), 0, 0, 0, 0)


class HostTraffic(NamedTuple):
    """Bytes of one host between two marks. They include packet headers, except in the payload fields."""

    sent: int
    received: int
    sent_payload: int
    received_payload: int

    @classmethod
    def between(cls, first: Mark, last: Mark) -> HostTraffic:
        sent, received = last.tx_bytes - first.tx_bytes, last.rx_bytes - first.rx_bytes
        out, back = last.tx_packets - first.tx_packets, last.rx_packets - first.rx_packets
        return cls(sent, received, sent - HEADER_BYTES * out, received - HEADER_BYTES * back)


class _MarkFile:
    """The file in the directory `folder` with this rank's marks."""

    def __init__(self, folder: str | None) -> None:
        self._path = Path(folder or ".") / f"{socket.gethostname()}-{_rank()}.jsonl"

    def mark(self, loss: torch.Tensor) -> None:
        """Write a mark when the backward pass of `loss` begins."""
        loss.register_hook(self._write)  # type: ignore[no-untyped-call]

    def _write(self, gradient: torch.Tensor) -> None:
        with self._path.open("a") as file:
            file.write(to_json(Mark.now()) + "\n")


class Metered(Classification):
    """Image classification that writes a mark to the directory `marks` at the beginning of every backward pass.

    `options`: marks, network, dataset, data_dir, seed. All other options are passed to the data set.
    """

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        rest = dict(options or {})
        own = {name: rest.pop(name, None) for name in ("marks", "network", "dataset", "data_dir", "seed")}
        self._marks = _MarkFile(own["marks"])
        super().__init__(
            own["network"] or "LeNet", own["dataset"] or "digits", own["data_dir"], seed=int(own["seed"] or 0), options=rest
        )

    def loss(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return loss and outputs of Classification; the backward pass of the loss writes a mark."""
        loss, outputs = super().loss(model, batch)
        self._marks.mark(loss)
        return loss, outputs


class Exchange(Metered):
    """A task with fixed gradients of the network's sizes. They cost almost no time, so a step consists of the exchange.

    For the weights w the loss is the inner product <w, c>, whose gradient is c: fixed normal values that differ between hosts.
    """

    def loss(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return only the loss. Its backward pass writes a mark, as in Metered."""
        import torch

        if not hasattr(self, "_gradients"):
            generator = torch.Generator().manual_seed(zlib.crc32(socket.gethostname().encode()))
            self._gradients = [1e-3 * torch.randn(weights.numel(), generator=generator) for weights in model.parameters()]
        products = [torch.dot(w.reshape(-1), c) for w, c in zip(model.parameters(), self._gradients, strict=True)]
        loss = torch.stack(products).sum()
        self._marks.mark(loss)
        return loss, loss.detach()

    def metrics(self, outputs: torch.Tensor, batch: Batch) -> dict[str, float]:
        """Return no metrics."""
        return {}


class MeteredTask(Task):
    """Another task, of which every backward pass writes a mark as in Metered.

    `options`: marks; task, which names the other task (psnode.task.load_task); and the other task's own options. Parameter
    groups, an optimizer, a learning rate or a constraint of the other task do not count.
    """

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        super().__init__(options)
        rest = dict(self.options)
        self._marks, self._task = _MarkFile(rest.pop("marks", None)), load_task(rest.pop("task"), rest)

    def model(self) -> torch.nn.Module:
        return self._task.model()

    def train_data(self) -> Any:
        return self._task.train_data()

    def eval_data(self) -> Any:
        return self._task.eval_data()

    def loss(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, Any]:
        """Return loss and outputs of the other task; the backward pass of the loss writes a mark."""
        loss, outputs = self._task.loss(model, batch)
        self._marks.mark(loss)
        return loss, outputs

    def metrics(self, outputs: Any, batch: Batch) -> dict[str, float]:
        return self._task.metrics(outputs, batch)

    def statistics(self, model: torch.nn.Module) -> dict[str, str]:
        return self._task.statistics(model)

    def size(self, batch: Batch) -> int:
        return self._task.size(batch)


def metered(options: Mapping[str, str]) -> Task:
    """Return the task that `options` describe: MeteredTask if they name a task, otherwise Metered."""
    return (MeteredTask if "task" in options else Metered)(options)


def _rank() -> int:
    """Return this process's rank, as its launcher or torch.distributed's variable RANK states it; 0 if neither does."""
    found = place()
    return found.rank if found is not None else int(os.environ.get("RANK", "0"))


def read_marks(directory: Path, steps: int) -> list[list[Mark]]:
    """Return the marks of the last `steps` steps of every worker, in the order of ranks.

    Marks of earlier passes, such as a trial pass before the first step, are left out.
    """
    files = sorted(directory.glob("*.jsonl"), key=lambda path: int(path.stem.rpartition("-")[2]))
    return [[Mark(*json.loads(line)) for line in path.read_text().splitlines()][-steps:] for path in files]
