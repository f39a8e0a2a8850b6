"""A rank's reports about its machine."""

from __future__ import annotations

import os
import socket

import numpy as np
import torch

from psnode.exchange.machine import Machine
from psnode.exchange.update.sgd import descend


def test_a_machine_is_this_host_with_the_cores_of_this_process() -> None:
    found = Machine.here()
    assert (found.host, found.cores) == (socket.gethostname(), len(os.sched_getaffinity(0)))
    assert found.arithmetic["aten"] == torch.backends.cpu.get_cpu_capability()


def test_fma_says_how_often_an_update_rounds() -> None:
    """Check the reported fact `fma` by an update with a = 1 + 2^-12: a * a = 1 + 2^-11 + 2^-24 loses its last bit if the
    product is rounded before the subtraction.
    """
    a = np.float32(1 + 2.0**-12)
    x, total = np.array([-(1 + 2.0**-11)], np.float32), np.array([a], np.float32)
    descend(x, np.empty(0, np.float32), total, factor=1.0, lr=-float(a), momentum=0.0, weight_decay=0.0, nesterov=False)
    assert x[0] == (2.0**-24 if Machine.here().arithmetic["fma"] else 0.0)
