"""The number of processors that a thread may use."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from psnode.config.cores import asked_threads, pool, stand_back, usable_cores
from psnode.config.quotas import quota


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


def system(root: Path, member: str, mount: str, files: dict[str, str]) -> Path:
    """Make a directory that stands for the file system's root, with one hierarchy of control groups."""
    (root / "proc" / "self").mkdir(parents=True)
    (root / "proc" / "self" / "cgroup").write_text(f"5:devices:/elsewhere\n{member}\n")
    (root / "proc" / "self" / "mountinfo").write_text(f"23 1 0:5 / / rw - ext4 /dev/sda rw\n30 23 0:26 {mount}\n")
    for name, text in files.items():
        (root / "sys" / "fs" / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "sys" / "fs" / "cgroup" / name).write_text(text + "\n")
    return root


SECOND = "/ /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
FIRST = "/ /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct"
INSIDE = "/docker/ab /sys/fs/cgroup/cpu ro master:9 - cgroup cgroup rw,cpu,cpuacct"


@pytest.mark.parametrize(
    ("member", "mount", "files", "cores"),
    [
        ("0::/", SECOND, {"cpu.max": "150000 100000"}, 1.5),
        ("0::/", SECOND, {"cpu.max": "max 100000"}, None),
        ("0::/", SECOND, {}, None),
        ("0::/pod/box", SECOND, {"pod/cpu.max": "200000 100000", "pod/box/cpu.max": "max 100000"}, 2),
        ("0::/pod/box", SECOND, {"cpu.max": "50000 50000", "pod/cpu.max": "200000 100000", "pod/box/cpu.max": "8 2"}, 1),
        ("4:cpu,cpuacct:/a/b", FIRST, {"cpu/a/cpu.cfs_quota_us": "300000", "cpu/a/cpu.cfs_period_us": "100000"}, 3),
        ("4:cpu,cpuacct:/", FIRST, {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("4:cpu,cpuacct:/docker/ab", INSIDE, {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 0.5),
        ("4:cpu,cpuacct:/other", INSIDE, {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 0.5),
        ("0::/", SECOND, {"cpu.max": "nonsense"}, None),
    ],
)
def test_the_smallest_quota_of_the_groups_around_a_process_holds(
    member: str, mount: str, files: dict[str, str], cores: float | None, tmp_path: Path
) -> None:
    assert quota(system(tmp_path, member, mount, files)) == cores


def test_a_quota_counts_in_whole_cores_and_one_at_least(tmp_path: Path) -> None:
    scheduled = usable_cores(tmp_path / "nothing")
    for number, (granted, cores) in enumerate([(20_000, 1), (199_000, 1), (100_000 * (scheduled + 3), scheduled)]):
        root = system(tmp_path / str(number), "0::/", SECOND, {"cpu.max": f"{granted} 100000"})
        assert usable_cores(root) == min(cores, scheduled)


def test_openmp_s_variable_is_a_number_or_a_list_of_them() -> None:
    assert [asked_threads({"OMP_NUM_THREADS": text}) for text in ("3", " 4,2", "0", "-1", "many", "")] == [
        3,
        4,
        None,
        None,
        None,
        None,
    ]
    assert asked_threads({}) is None


def test_processes_share_a_pool_unless_a_quota_or_other_cores_are_their_own(tmp_path: Path) -> None:
    program = "from psnode.config.cores import pool; print(pool())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == pool()
    for name, member in (("one", "0::/"), ("other", "0::/other")):
        system(tmp_path / name, member, SECOND, {"cpu.max": "50000 100000"})
    wide = system(tmp_path / "wide", "0::/", SECOND, {"cpu.max": "max 100000"})
    if len(os.sched_getaffinity(0)) > 1:
        assert len({pool(tmp_path / "one"), pool(tmp_path / "other"), pool(wide)}) == 3
    found: list[str] = []

    def bound() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        found.append(pool())

    thread = threading.Thread(target=bound)
    thread.start()
    thread.join()
    assert (found == [pool()]) == (len(os.sched_getaffinity(0)) == 1)
