"""Runs on every spot node, as a file of its own: when EC2 says that it will take the node back, psnode's ranks here get TERM.

Any rank passes that on to the master, which writes a checkpoint and ends with code 75; EC2 leaves it two minutes.

Earlier, and not always, EC2 recommends to leave the node. That is noted; where the file `rebalance` of DIRECTORY says stop, the
ranks that run then get TERM too, but none that begin later: the node may live for days.

It goes on looking as long as the node runs, for the notice may be out of reach for a while, and a job may begin after it.

    python watch_interruption.py DIRECTORY [SECONDS]    between looks [5]; a second one in the same directory leaves
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import http.client
import os
import re
import signal
import sys
import time
import urllib.request
from pathlib import Path

# AWS's own variable for it
_INTERRUPTION, _REBALANCE = "spot/instance-action", "events/recommendations/rebalance"
_METADATA = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254").rstrip("/") + "/latest"
# A rank. Not mpirun, whose command line ends like this, and which would kill the ranks half a second after a TERM.
_RANK = re.compile(rb"[^\0]*python[^\0]*\0-m\0psnode\0train(\0|$)")


def notice(of: str) -> str | None:
    """Notice of EC2 about this; None if there is none (it answers 404), or if it cannot be asked."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        wanted = urllib.request.Request(
            f"{_METADATA}/api/token", method="PUT", headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"}
        )
        with opener.open(wanted, timeout=3) as answer:
            token = answer.read(4096).decode()
        asked = urllib.request.Request(f"{_METADATA}/meta-data/{of}", headers={"X-aws-ec2-metadata-token": token})
        with opener.open(asked, timeout=3) as answer:
            return str(answer.read(4096).decode())
    except (OSError, ValueError, http.client.HTTPException):
        return None


def ranks() -> list[int]:
    """Process ids of this user's ranks on this node."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == os.getuid() and _RANK.match((folder / "cmdline").read_bytes()):
                found.append(int(folder.name))
    return found


def main(directory: str, seconds: str = "5") -> None:
    os.chdir(directory)
    with Path("interruption.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        said, seen, told, due = dict[str, str](), set[int](), set[int](), set[int]()
        while True:
            now = set(ranks())
            for of in (_INTERRUPTION, _REBALANCE):
                text = notice(of)
                if text is not None and text != said.get(of):
                    write(of, text)
                    said[of] = text
                    due |= now if of == _REBALANCE and stops() else set()
                if text is not None and of == _INTERRUPTION:
                    due |= now
            # one that has just begun may not listen yet
            tell(now & seen & due - told)
            told |= now & seen & due
            seen, told, due = now, told & now, due & now
            time.sleep(float(seconds))


def stops() -> bool:
    """That a recommendation to leave is one to stop."""
    with contextlib.suppress(OSError):
        return Path("rebalance").read_text().strip() == "stop"
    return False


def write(of: str, text: str) -> None:
    """Note EC2's answer."""
    with contextlib.suppress(OSError), Path("interruption.log").open("a") as log:  # a full disk is no reason to say nothing
        log.write(f"{datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds')} {of} {text}\n")


def tell(processes: set[int]) -> None:
    """Send them TERM: once to each, for they may take a while."""
    for process in processes:
        with contextlib.suppress(OSError):
            os.kill(process, signal.SIGTERM)


if __name__ == "__main__":
    main(*sys.argv[1:])
