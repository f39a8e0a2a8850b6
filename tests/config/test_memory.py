"""Memory that is still free on this host."""

from __future__ import annotations

from pathlib import Path

from psnode.config.memory import free_memory, memory_left


def test_free_memory_is_less_than_what_the_machine_has() -> None:
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    free = free_memory()
    assert free is not None and 0 < free <= 1024 * int(total.split()[1]) * 2
    without = free_memory(swap=False)
    assert without is not None and 0 < without <= 1024 * int(total.split()[1])


def group(place: Path, limit: str, current: int, file: int, shmem: int) -> None:
    place.mkdir(parents=True, exist_ok=True)
    (place / "memory.max").write_text(f"{limit}\n")
    (place / "memory.current").write_text(f"{current}\n")
    (place / "memory.stat").write_text(f"anon {current - file}\nfile {file}\nshmem {shmem}\n")


def test_a_container_s_page_cache_is_no_memory_in_use(tmp_path: Path) -> None:
    """Check that file pages are not counted as used: of 800 bytes in use, 500 are file pages, 100 of these shared memory. So
    400 are used, and 600 of 1000 are left.
    """
    group(tmp_path / "job", "1000", current=800, file=500, shmem=100)
    assert memory_left(tmp_path, "job") == 600


def test_the_tightest_of_the_groups_around_a_process_counts(tmp_path: Path) -> None:
    group(tmp_path / "slice" / "job", "max", current=100, file=0, shmem=0)
    assert memory_left(tmp_path, "slice/job") is None
    group(tmp_path / "slice", "1000", current=900, file=0, shmem=0)
    assert memory_left(tmp_path, "slice/job") == 100
    group(tmp_path / "slice" / "job", "150", current=100, file=0, shmem=0)
    assert memory_left(tmp_path, "slice/job") == 50
