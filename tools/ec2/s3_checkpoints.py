"""Program on the master, in one file: it stores checkpoints of runs below DIR in a bucket, and restores them.

The bucket has the same layout as the disk. The files of a checkpoint are written first, then its manifest, then the run's
records, and `latest` at the end. So all files that `latest` names exist, even if the node is taken away during an upload. If the
run has deleted a checkpoint, the checkpoint is also deleted in the bucket, once a newer one is complete. boto3 finds the
credentials of the node's instance profile.

    python s3_checkpoints.py keep DIR s3://BUCKET/PREFIX [SECONDS]    until no job runs and all is uploaded; checks every 5 s
    python s3_checkpoints.py restore DIR s3://BUCKET/PREFIX RUN       prints the checkpoint's name if one was fetched
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_STEP = re.compile(r"step-\d{8,}")
_MANIFEST = "manifest.json"
_PASSED_BY = ("checkpoints", "jobs")
_SLOWEST = 60.0  # longest pause after a failed try, in seconds


class ClusterPrefix:
    """The part of a bucket that belongs to one cluster: the objects whose names begin with its prefix."""

    def __init__(self, url: str) -> None:
        import boto3

        self._name, _, prefix = url.removeprefix("s3://").partition("/")
        self._prefix = prefix.strip("/") + "/"
        self._client = boto3.client("s3")

    def names(self, below: str) -> list[str]:
        """Return the sorted names of objects that begin with `below`. Names are relative to the cluster's prefix."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._name, Prefix=self._prefix + below)
        return sorted(each["Key"].removeprefix(self._prefix) for page in pages for each in page.get("Contents", []))

    def write(self, name: str, content: bytes) -> None:
        self._client.put_object(Bucket=self._name, Key=self._prefix + name, Body=content)

    def upload(self, name: str, path: Path) -> None:
        self._client.upload_file(str(path), self._name, self._prefix + name)

    def read(self, name: str) -> bytes:
        return bytes(self._client.get_object(Bucket=self._name, Key=self._prefix + name)["Body"].read())

    def download(self, name: str, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._client.download_file(self._name, self._prefix + name, str(path))

    def delete(self, name: str) -> None:
        self._client.delete_object(Bucket=self._name, Key=self._prefix + name)


def keep(root: Path, url: str, seconds: float) -> None:
    """Upload the newest checkpoint of each run whenever it has changed. Return once no job runs and all are uploaded.

    The caller makes sure that only one process at a time does this.
    """
    kept: dict[str, tuple[str, bytes]] = {}
    pause = seconds
    while True:
        over = not job_runs(root)
        try:
            bucket = ClusterPrefix(url)
            for run in runs(root):
                bring_up(bucket, root, run, kept, over=over)
            if over:
                note(root, "everything is kept")
                return
            pause = seconds
        except Exception as error:  # an error of the network, the bucket or the credentials, which may all be temporary
            note(root, f"{type(error).__name__}: {' '.join(str(error).split())}")
            pause = min(2 * pause, _SLOWEST)
        time.sleep(pause)


def runs(root: Path) -> Iterator[str]:
    """Yield the folders of runs with a checkpoint, relative to `root`."""
    for folder, folders, _ in os.walk(root):
        if Path(folder, "checkpoints", "latest").is_file():
            yield os.path.relpath(folder, root)
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _PASSED_BY]


def bring_up(bucket: ClusterPrefix, root: Path, run: str, kept: dict[str, tuple[str, bytes]], *, over: bool) -> None:
    """Upload a run's newest checkpoint unless the bucket has it.

    The records of the run are uploaded with the checkpoint, or when the job is `over`.
    """
    folder = root / run
    step = (folder / "checkpoints" / "latest").read_text().strip()
    if not _STEP.fullmatch(step):
        return
    source, target = folder / "checkpoints" / step, f"{run}/checkpoints/{step}"
    try:
        manifest = (source / _MANIFEST).read_bytes()
        if (
            run not in kept
            and f"{target}/{_MANIFEST}" in bucket.names(target)
            and bucket.read(f"{target}/{_MANIFEST}") == manifest
        ):
            kept[run] = step, manifest
        before = kept.get(run)
        if before != (step, manifest):
            for path in sorted(source.rglob("*")):
                # if the checkpoint was uploaded before, only its manifest can have changed
                if path.is_file() and path.name != _MANIFEST and (before is None or before[0] != step):
                    bucket.upload(f"{target}/{path.relative_to(source)}", path)
            bucket.write(f"{target}/{_MANIFEST}", manifest)
    except FileNotFoundError:  # the run has just deleted the file: the next look finds a newer checkpoint
        return
    if before != (step, manifest) or over:
        for path in sorted(folder.iterdir()):
            if path.is_file() and not path.is_symlink() and not path.name.startswith("."):
                bucket.write(f"{run}/{path.name}", path.read_bytes())
        bucket.write(f"{run}/checkpoints/latest", f"{step}\n".encode())
        clear(bucket, folder, run, step)
        kept[run] = step, manifest
        note(root, f"{run}: {step} is kept")


def clear(bucket: ClusterPrefix, folder: Path, run: str, newest: str) -> None:
    """Delete from the bucket the checkpoints that the run has deleted. The manifest of each checkpoint is deleted first."""
    names = [name for name in bucket.names(f"{run}/checkpoints/") if _STEP.fullmatch(step_of(name, run))]
    there = {path.name for path in (folder / "checkpoints").iterdir()}
    gone = [name for name in names if step_of(name, run) not in there | {newest}]
    for name in sorted(gone, key=lambda name: not name.endswith(f"/{_MANIFEST}")):
        bucket.delete(name)


def step_of(name: str, run: str) -> str:
    return name.removeprefix(f"{run}/checkpoints/").partition("/")[0]


def restore(root: Path, url: str, run: str) -> str:
    """Fetch a run's newest checkpoint and its records. Return the checkpoint's name, or "" if the bucket has nothing newer.

    The checkpoint is checked against its manifest before it gets its final name. Raises ValueError if it is damaged.
    """
    bucket, folder = ClusterPrefix(url), root / run
    if f"{run}/checkpoints/latest" not in bucket.names(f"{run}/checkpoints/latest"):
        return ""
    step = bucket.read(f"{run}/checkpoints/latest").decode().strip()
    if not _STEP.fullmatch(step):
        raise ValueError(f"{run}/checkpoints/latest names {step[:40]!r}, which is no checkpoint")
    here = folder / "checkpoints" / "latest"
    if here.is_file() and here.read_text().strip() >= step:
        return ""
    new = folder / "checkpoints" / f".{step}.restored"
    shutil.rmtree(new, ignore_errors=True)
    for name in bucket.names(f"{run}/checkpoints/{step}/"):
        bucket.download(name, inside(new, name.removeprefix(f"{run}/checkpoints/{step}/")))
    verify(new, run)
    for name in bucket.names(f"{run}/"):
        if "/" not in (short := name.removeprefix(f"{run}/")):
            bucket.download(name, inside(folder, short))
    shutil.rmtree(new.with_name(step), ignore_errors=True)
    new.rename(new.with_name(step))
    here.with_name(".latest.restored").write_text(f"{step}\n")
    here.with_name(".latest.restored").rename(here)
    return step


def inside(folder: Path, name: str) -> Path:
    if ".." in Path(name).parts or Path(name).is_absolute():
        raise ValueError(f"{name!r} leads elsewhere")
    return folder / name


def verify(folder: Path, run: str) -> None:
    """Check the size of each file in the manifest and, if xxhash is installed, its hash.

    Raises ValueError for a damaged checkpoint.
    """
    files: dict[str, Any] = json.loads((folder / _MANIFEST).read_bytes())["files"]
    for name, entry in files.items():
        path = inside(folder, name)
        if not path.is_file() or path.stat().st_size != entry["bytes"] or digest(path) not in (None, entry["xxh3_128"]):
            raise ValueError(f"the checkpoint of {run} in the bucket is damaged: {name}")


def digest(path: Path) -> str | None:
    """Return the xxh3_128 of a file, or None if xxhash is not installed."""
    try:
        import xxhash
    except ImportError:
        return None
    found = xxhash.xxh3_128()
    with path.open("rb") as file:
        while part := file.read(1 << 22):
            found.update(part)
    return found.hexdigest()


def job_runs(root: Path) -> bool:
    """Return True if a job runs below `root`, which it shows by holding its lock."""
    try:
        with (root / "jobs" / "last" / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def note(root: Path, text: str) -> None:
    """Append a line to s3.log."""
    with contextlib.suppress(OSError), (root / "s3.log").open("a") as log:
        log.write(f"{datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds')} {text}\n")


def main(what: str, directory: str, url: str, more: str = "5") -> None:
    if what == "keep":
        keep(Path(directory), url, float(more))
    else:
        print(restore(Path(directory), url, more), end="")


if __name__ == "__main__":
    main(*sys.argv[1:])
