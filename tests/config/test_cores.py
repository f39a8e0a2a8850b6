"""A thread's share of the processor."""

from __future__ import annotations

import os
import threading

import pytest

from psnode.config.cores import stand_back


@pytest.mark.skipif(not hasattr(os, "getpriority"), reason="this system has no niceness")
def test_a_thread_stands_back_for_all_others_and_no_further_when_it_does_so_again() -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    found = []

    def run() -> None:
        for _ in range(2):
            stand_back()
            found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [min(19, own + 10)] * 2
    assert os.getpriority(os.PRIO_PROCESS, 0) == own
