"""The number of BLAS threads inside and after `one_thread`."""

from __future__ import annotations

import ctypes
import glob
import threading
from pathlib import Path

import numpy as np
import pytest

from psnode.codecs.lowrank.blas_threads import one_thread

BUNDLED = glob.glob(str(Path(np.__file__).parents[1] / "numpy.libs" / "libscipy_openblas64_*"))
pytestmark = pytest.mark.skipif(not BUNDLED, reason="numpy does not come with its own OpenBLAS")


def blas_threads() -> int:
    return int(ctypes.CDLL(BUNDLED[0]).scipy_openblas_get_num_threads64_())


@pytest.fixture(autouse=True)
def _two_threads():
    before = blas_threads()
    ctypes.CDLL(BUNDLED[0]).scipy_openblas_set_num_threads64_(2)
    yield
    ctypes.CDLL(BUNDLED[0]).scipy_openblas_set_num_threads64_(before)


def test_blas_has_one_thread_inside_and_the_former_number_after():
    assert blas_threads() == 2
    with one_thread():
        assert blas_threads() == 1
        with one_thread():
            assert blas_threads() == 1
        assert blas_threads() == 1
    assert blas_threads() == 2


def test_an_exception_restores_it_too():
    with pytest.raises(RuntimeError), one_thread():
        raise RuntimeError
    assert blas_threads() == 2


def test_who_leaves_first_does_not_take_it_from_who_stays():
    inside, leave, seen = threading.Event(), threading.Event(), []

    def stay() -> None:
        with one_thread():
            inside.set()
            leave.wait(120)
            seen.append(blas_threads())

    thread = threading.Thread(target=stay)
    with one_thread():
        thread.start()
        inside.wait(120)
    leave.set()
    thread.join(120)
    assert seen == [1]
    assert blas_threads() == 2
