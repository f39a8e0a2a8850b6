"""Memory pages: private, zeroed, and requested as large pages."""

from __future__ import annotations

import mmap
import platform
import re
import struct
from pathlib import Path

import numpy as np
import pytest

from psnode.codecs.pages import Pages, untouched

SIZE = 1 << 22
SMAPS = Path("/proc/self/smaps")


def flags_of(address: int) -> set[str]:
    """Return the kernel's flags of the mapping that contains an address of this process."""
    inside = False
    for line in SMAPS.read_text().splitlines():
        if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(match[1], 16) <= address < int(match[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return set(line.split()[1:])
    raise LookupError(hex(address))


def pages_of(address: int, size: int) -> int:
    """Return the number of resident pages between two addresses: bit 63 of their 8-byte entries in pagemap."""
    with Path("/proc/self/pagemap").open("rb") as file:
        file.seek(address // mmap.PAGESIZE * 8)
        return sum(entry >> 63 for (entry,) in struct.iter_unpack("<Q", file.read(size // mmap.PAGESIZE * 8)))


@pytest.mark.skipif(not SMAPS.exists(), reason="needs Linux's /proc")
@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this kernel has no large pages")
def test_large_pages_are_asked_for_where_the_system_has_them() -> None:
    """Check that the kernel's flags request large pages; shared memory (sh) has small pages unless an administrator has
    changed this.
    """
    pages = Pages(SIZE)
    found = flags_of(pages.raw.__array_interface__["data"][0])
    assert "hg" in found and "sh" not in found


def test_they_are_zeros_at_first_and_keep_what_is_written_until_it_is_released() -> None:
    pages = Pages(SIZE)
    assert not pages.raw.any()
    pages.raw[:] = 7
    assert (pages.raw == 7).all()
    pages.release(0, SIZE)
    pages.raw[:] = 9
    assert (pages.raw == 9).all()


@pytest.mark.skipif(not SMAPS.exists(), reason="needs Linux's /proc")
def test_they_can_be_had_before_they_are_used() -> None:
    pages = Pages(SIZE)
    address = pages.raw.__array_interface__["data"][0]
    assert pages_of(address, SIZE) == 0
    pages.touch(0, SIZE)
    assert pages_of(address, SIZE) == SIZE // mmap.PAGESIZE


def test_a_vector_of_no_length_has_no_pages() -> None:
    assert untouched(0).size == 0 and untouched(3).dtype == np.float32


@pytest.mark.skipif(not SMAPS.exists(), reason="needs Linux's /proc")
@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="MAP_NORESERVE is known on these")
def test_a_process_is_promised_nothing_that_it_has_not_written() -> None:
    """Check that memory is not reserved before it is written (flag nr): otherwise a process whose pages exceed the memory
    could not be forked.
    """
    pages = Pages(SIZE)
    assert "nr" in flags_of(pages.raw.__array_interface__["data"][0])
