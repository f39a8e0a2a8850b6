"""Growth of the master in a long run: scripts/endurance.py [--steps N] [--workers P]

The script prints memory, descriptors and threads of rank 0. LeNet trains on the embedded digits under `psnode launch`, and rank
0 is inspected after every tenth of the run. The exit code is 1 if, between the second and the last inspection, resident memory
grew by more than 4 MiB, or the number of descriptors or threads grew.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from running import Job

ROOM = 4096  # KiB
FLAGS = ["--batch-size", "2", "--lr", "0.002", "--threads", "1", "--no-tensorboard", "--eval-freq", "1000", "--keep-last", "2"]


def figures(pid: int) -> tuple[int, int, int]:
    """Return the resident memory in KiB, and the numbers of file descriptors and threads, of process `pid`."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return int(status["VmRSS"].split()[0]), len(os.listdir(f"/proc/{pid}/fd")), int(status["Threads"])


def main() -> int:
    """Run the job, inspect rank 0, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("flags", nargs="*", help="of psnode train, after --")
    args = parser.parse_args()
    print("| step | resident MiB | descriptors | threads |\n|---:|---:|---:|---:|", flush=True)
    looks = list[tuple[int, int, int]]()
    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder) / "run", args.workers, [*FLAGS, "--max-steps", str(args.steps), *args.flags])
        job.wait_for(1)
        master = job.ranks()[0]
        for tenth in range(1, 10):
            job.wait_for(tenth * args.steps // 10 + 5)  # 5 steps later, when no checkpoint is being written
            looks.append(figures(master))
            resident, descriptors, threads = looks[-1]
            print(f"| {job.step} | {resident / 1024:.1f} | {descriptors} | {threads} |", flush=True)
        begin = time.monotonic()
        code = job.process.wait()
        print(f"\nended with {code}, {time.monotonic() - begin:.0f} s after the last look", file=sys.stderr)
        if code:
            print(job.log.read_text()[-2000:], file=sys.stderr)
    first, last = looks[1], looks[-1]
    grown = last[0] > first[0] + ROOM or last[1] > first[1] or last[2] > first[2]
    return int(bool(code) or grown)


if __name__ == "__main__":
    sys.exit(main())
