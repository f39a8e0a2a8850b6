"""Times at which a worker's backward passes begin, with the byte counts of its host's interface, noted by the task.

In that moment a step's weights are all there, so that its predecessor's gradients are, too, wherever they had to go, and none
of its own gradients is under way: between two marks lies the traffic of whole steps, whatever else overlaps.

The same task runs under psnode and under its peers, so that both are timed and counted by the same lines: by the
worker's clock, which emulated hosts share, and by the interface, which knows nothing of anybody's own accounts.
"""

from __future__ import annotations

import json
import os
import socket
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from psnode.config.plain_json import to_json
from psnode.task import Batch
from psnode.tasks.classification import Classification
from psnode.transport.mpi.environment import place

if TYPE_CHECKING:
    import torch

INTERFACE = "eth0"  # of an emulated host
# Bytes of a packet beside its payload: Ethernet 14, IPv4 20, TCP 20 and its timestamps 12. A packet counted by the
# interface may be a large one that the network card of a real host would cut; its headers are then counted once too.
HEADER_BYTES = 66


class Mark(NamedTuple):
    """`seconds` on the monotonic clock; bytes, headers included, and packets since the host was made."""

    seconds: float
    rx_bytes: int
    rx_packets: int
    tx_bytes: int
    tx_packets: int

    @classmethod
    def now(cls) -> Mark:
        """That of this host at this moment; zeros where it has no such interface."""
        for line in Path("/proc/net/dev").read_text().splitlines():
            name, _, counts = line.partition(":")
            if name.strip() == INTERFACE:
                found = [int(word) for word in counts.split()]
                return cls(time.monotonic(), found[0], found[1], found[8], found[9])
        return cls(time.monotonic(), 0, 0, 0, 0)


class HostTraffic(NamedTuple):
    """Bytes of one host between two marks, headers included; the payloads are without the headers of packets."""

    sent: int
    received: int
    sent_payload: int
    received_payload: int

    @classmethod
    def between(cls, first: Mark, last: Mark) -> HostTraffic:
        sent, received = last.tx_bytes - first.tx_bytes, last.rx_bytes - first.rx_bytes
        out, back = last.tx_packets - first.tx_packets, last.rx_packets - first.rx_packets
        return cls(sent, received, sent - HEADER_BYTES * out, received - HEADER_BYTES * back)


class Metered(Classification):
    """Image classification that leaves a mark in the directory `marks` whenever a loss is to be differentiated.

    `options`: marks, network, dataset, data_dir, seed; the others go to the data set.
    """

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        rest = dict(options or {})
        own = {name: rest.pop(name, None) for name in ("marks", "network", "dataset", "data_dir", "seed")}
        self._path = Path(own["marks"] or ".") / f"{socket.gethostname()}-{_rank()}.jsonl"
        super().__init__(
            own["network"] or "LeNet", own["dataset"] or "digits", own["data_dir"], seed=int(own["seed"] or 0), options=rest
        )

    def loss(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """As of Classification; the mark is left when the backward pass comes by."""
        loss, outputs = super().loss(model, batch)
        loss.register_hook(self._mark)  # type: ignore[no-untyped-call]
        return loss, outputs

    def _mark(self, gradient: torch.Tensor) -> None:
        with self._path.open("a") as file:
            file.write(to_json(Mark.now()) + "\n")


class Exchange(Metered):
    """The same weights and gradients of the same size, fixed ones, at no cost: the rest of a step is the exchange.

    The loss of weights w is <w, c>, whose gradient is c: normal values, other ones on every host.
    """

    def loss(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss, and nothing else; the mark is left as in Metered."""
        import torch

        if not hasattr(self, "_gradients"):
            generator = torch.Generator().manual_seed(zlib.crc32(socket.gethostname().encode()))
            self._gradients = [1e-3 * torch.randn(weights.numel(), generator=generator) for weights in model.parameters()]
        products = [torch.dot(w.reshape(-1), c) for w, c in zip(model.parameters(), self._gradients, strict=True)]
        loss = torch.stack(products).sum()
        loss.register_hook(self._mark)  # type: ignore[no-untyped-call]
        return loss, loss.detach()

    def metrics(self, outputs: torch.Tensor, batch: Batch) -> dict[str, float]:
        """None."""
        return {}


def _rank() -> int:
    """This process's rank, by its launcher, or by what torch.distributed goes by; 0 if it is alone."""
    found = place()
    return found.rank if found is not None else int(os.environ.get("RANK", "0"))


def read_marks(directory: Path, steps: int) -> list[list[Mark]]:
    """The marks of the last `steps` steps of every worker, by its rank.

    Passes before the first step, such as a trial pass, are left out.
    """
    files = sorted(directory.glob("*.jsonl"), key=lambda path: int(path.stem.rpartition("-")[2]))
    return [[Mark(*json.loads(line)) for line in path.read_text().splitlines()][-steps:] for path in files]
