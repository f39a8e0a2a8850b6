"""Program on every spot node, a file without other modules: sends TERM to psnode's ranks before EC2 takes the node back.

A rank passes the TERM on to the master, which writes a checkpoint and ends with code 75. EC2 gives notice two minutes before it
takes the node back.

Sometimes EC2 first recommends leaving the node. The program logs this recommendation. If the file `rebalance` in DIRECTORY
says stop, the ranks that run at that moment get TERM too. Later ranks do not, since the node may still live for days.

The program looks for notices as long as the node runs, because notices may be unreachable for a while, and because a job may
begin after a notice.

    python watch_interruption.py DIRECTORY [SECONDS]    between looks [5]; a second process in the same directory exits
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

# _METADATA: AWS's own variable can override the address of the metadata service
_INTERRUPTION, _REBALANCE = "spot/instance-action", "events/recommendations/rebalance"
_METADATA = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254").rstrip("/") + "/latest"
# Matches a rank, but not mpirun, whose command line has the same end: after a TERM, mpirun would kill the ranks within half a
# second.
_RANK = re.compile(rb"[^\0]*python[^\0]*\0-m\0psnode\0train(\0|$)")


def notice(of: str) -> str | None:
    """Return the text of EC2's notice `of`; None if there is no such notice (404), or if EC2 cannot be reached."""
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
    """Return the process ids of this user's ranks on this node."""
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
            # only ranks that the previous look has seen too: a new rank may not handle TERM yet
            tell(now & seen & due - told)
            told |= now & seen & due
            seen, told, due = now, told & now, due & now
            time.sleep(float(seconds))


def stops() -> bool:
    """Return True if EC2's recommendation to leave the node is to stop the job."""
    with contextlib.suppress(OSError):
        return Path("rebalance").read_text().strip() == "stop"
    return False


def write(of: str, text: str) -> None:
    """Append the text of EC2's notice `of` to interruption.log."""
    with contextlib.suppress(OSError), Path("interruption.log").open("a") as log:  # continue even if the disk is full
        log.write(f"{datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds')} {of} {text}\n")


def tell(processes: set[int]) -> None:
    """Send TERM to `processes`. Callers do this only once for each process, which may take a while to end."""
    for process in processes:
        with contextlib.suppress(OSError):
            os.kill(process, signal.SIGTERM)


if __name__ == "__main__":
    main(*sys.argv[1:])
