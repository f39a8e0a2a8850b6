"""A job on three emulated hosts whose last worker is cut off for a while: `python cut_program.py TRAIN_DIR`, run beside the
hosts.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
from running import Job, cut, host_port, mend  # noqa: E402

from psnode.records.history import violations  # noqa: E402

COMPARED = 400  # steps; a round that compares weights has the longer deadline of pauses, so it must not be the one cut
FLAGS = [
    "--batch-size",
    "4",
    "--lr",
    "0.005",
    "--threads",
    "1",
    "--no-tensorboard",
    "--hash-every",
    str(COMPARED),
    "--record-history",
]
FLAGS += ["--scheme", "qsgd", "--feedback", "ef", "--max-steps", "100000", "--eval-freq", "0", "--deadline", "5"]


def wait_for(job: Job, event: str) -> None:
    """Block until the job has recorded `event`; exit with its log if the job ends first, or after 90 s."""
    end = time.monotonic() + 90
    while event not in [found["event"] for found in job.events()]:
        if not job.running or time.monotonic() > end:
            raise SystemExit(f"{event} was not told\n{job.log.read_text()[-3000:]}")
        time.sleep(0.05)


def main(train_dir: Path) -> None:
    """Cut the link and restore it, wait for the event of each, and stop the job."""
    job = Job(train_dir, 2, FLAGS, ["--kill-after", "5"])
    try:
        job.wait_for(8)
        port = host_port(2)
        assert port is not None
        cut(port)
        wait_for(job, "suspended")
        job.wait_for(job.step + 5)
        mend(port)
        wait_for(job, "returned")
        job.wait_for((job.step // COMPARED + 1) * COMPARED + 5)
    finally:
        code = job.stop()
    told = [event["event"] for event in job.events() if event["rank"] == 2]
    print(f"ended with {code}, told {' '.join(told)}, violations {violations(train_dir)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
