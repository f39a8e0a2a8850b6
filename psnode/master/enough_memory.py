"""Refusal of a job whose ranks will need more memory than their hosts have left."""

from __future__ import annotations

from collections.abc import Mapping

from psnode.config.amounts import amount, counted
from psnode.config.memory import free_memory
from psnode.errors import ConfigurationError
from psnode.exchange.footprint import Footprint
from psnode.exchange.machine import Machine
from psnode.protocol.messages import Ready


def require_memory(need: Footprint, ready: Mapping[int, Ready]) -> None:
    """ConfigurationError naming the first host that is short of memory. `ready`: the answers of all workers.

    Counted is what the exchange will take (psnode.exchange.footprint), not activations: a job that is refused cannot fit. A
    model that is built already becomes the weights.
    """
    here = Machine.here().host
    free: dict[str, int | None] = {here: free_memory()}
    takes: dict[str, float] = {here: need.master_bytes - need.vector}
    ranks: dict[str, int] = {here: 1}
    for answer in ready.values():
        host = answer.host
        known = [each for each in (free.get(host), answer.free) if each is not None]
        free[host] = min(known, default=None)
        takes[host] = takes.get(host, 0.0) + need.worker_bytes - need.vector
        ranks[host] = ranks.get(host, 0) + 1
    for host, left in free.items():
        if left is not None and takes[host] > left:
            raise ConfigurationError(
                f"{counted(ranks[host], 'rank')} on {host} will need {amount(takes[host])} of memory beside their activations, "
                f"and {amount(left)} are left there: start fewer ranks on it, or choose a scheme or an optimizer that keeps less "
                "(psnode train --dry-run lists it); --no-memory-check begins all the same"
            )
