"""The actions that keep a job alive, on EC2 and on the nodes: follow the job, end nodes, complete the cluster, and resume."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from psnode_ec2 import checkpoint_sync, fetch_checkpoint, jobs
from psnode_ec2.cloud import progress
from psnode_ec2.cluster import ENDED, Cluster, Node
from psnode_ec2.copying import put
from psnode_ec2.ec2_errors import Ec2Error, RemoteError
from psnode_ec2.exports import train_dir
from psnode_ec2.kept_job_record import Charge, code_of
from psnode_ec2.launching import launch
from psnode_ec2.node_ssh import Access, access
from psnode_ec2.preparing import package_of, prepare
from psnode_ec2.rank_placement import slots
from psnode_ec2.settings import Settings
from psnode_ec2.shutdown import end_nodes
from psnode_ec2.worktree import CODE, put_code

_LOOKS = 30  # tries while the master or EC2 does not answer: about 20 minutes
_BY_OWNER = "Client.UserInitiatedShutdown"  # EC2's reason for nodes that were ended by a user, and not by EC2 or themselves
_INTERRUPTION, _REBALANCE = "spot/instance-action", "events/recommendations/rebalance"


class Revival:
    """The `Work` of `keep_alive` on a cluster. If `adopts`, a job that already runs counts as the job to keep alive."""

    def __init__(self, cluster: Cluster, settings: Settings, words: Sequence[str], *, synced: bool, adopts: bool) -> None:
        self._cluster, self._settings, self._words = cluster, settings, list(words)
        self._where, self._adopts, self._job = CODE if synced else ".", adopts, ""
        self._run = PurePosixPath(self._where, train_dir(words))
        self._seen = {node.id for node in cluster.nodes()}

    def follow(self, job: str) -> int | None:
        """Follow the job. If the connection ends, connect again as long as EC2 shows a running master.

        Returns the job's exit code, or None if the master is lost or does not answer for about 20 minutes.
        """
        lines, self._job = "+1", job
        for attempt in range(_LOOKS):
            try:
                if not any(node.role == "master" and node.state == "running" for node in self._cluster.nodes()):
                    return None
                return jobs.follow(self._way(), job, lines)
            except Ec2Error as error:
                progress(f"{error}: looking again")
                lines = "0"
            self._cluster.cloud.pause(attempt, first=5.0, longest=60.0)
        return None

    def was_stopped(self) -> str:
        """Return the reason if a user stopped or interrupted the job, or ended its nodes; otherwise an empty string."""
        gone = [node for node in self._cluster.nodes(ENDED) if node.id in self._seen]
        if on_purpose := [node for node in gone if node.reason == _BY_OWNER]:
            return f"somebody has ended {on_purpose[0].id} ({_BY_OWNER})"
        try:
            asked = self._script("asked.sh", self._settings.remote_dir)
        except Ec2Error:
            return ""
        return "the job was asked to end" if asked else ""

    def newest(self) -> str:
        """Return the name of the newest checkpoint on the master's disk, or an empty string."""
        return self._script("newest_step.sh", self._settings.remote_dir, str(self._run))

    def leave(self, charge: Charge, *, everything: bool) -> None:
        """End all nodes if `everything`, otherwise those that EC2 wants back, after the newest checkpoint is safe.

        Before the master ends, wait for its uploads if checkpoints go to a bucket. If trained weights are stored only on the
        nodes, fetch the newest checkpoint.
        """
        live = [node for node in self._cluster.nodes() if node.state == "running"]
        wanted = [node for node in live if everything or (node.spot and self._is_wanted(node))]
        for node in wanted:
            if node.role == "master" and self._settings.checkpoints:
                checkpoint_sync.wait(self._way())
            if node.role == "master" and not self._settings.lasts:
                found = fetch_checkpoint.fetched(self._cluster, self._settings, node)
                if found and found.target and PurePosixPath(found.folder) == PurePosixPath(self._settings.remote_dir, self._run):
                    charge.brought = str(found.target)
        if wanted:
            why = "to look for room elsewhere" if everything else "which EC2 wants back"
            progress(f"leaving {', '.join(node.id for node in wanted)}, {why}")
            ids = {node.id for node in wanted}
            self._seen -= ids
            end_nodes(self._cluster, ids)

    def complete(self, charge: Charge, max_hours: int) -> None:
        """Launch the missing nodes within the usual caps, and set them up.

        The code is copied to all nodes, and the checkpoint to the master.
        """
        settings = dataclasses.replace(self._settings, max_hours=max_hours) if self._settings.max_hours else self._settings
        launch(self._cluster, settings, progress)
        way = access(self._cluster, self._settings, complete=True)
        with package_of(self._settings.package, dry_run=False) as package:
            prepare(way, package)
        if charge.synced:
            put_code(way, code_of(self._settings))
        if charge.brought:
            put(way, [way.master], Path(charge.brought), str(PurePosixPath(self._settings.remote_dir, self._run)))
            charge.brought = ""
        if self._settings.checkpoints:
            checkpoint_sync.bring_back(way, self._words, self._where)

    def start(self, charge: Charge) -> str:
        """Start the job, and return its folder.

        The first start copies the user's code to the nodes. A restart adds --resume if there is a checkpoint.
        """
        way = access(self._cluster, self._settings, complete=True)
        self._seen |= {node.id for node in way.nodes}
        if charge.synced and not charge.used:
            put_code(way, code_of(self._settings))
        resumed = ["--resume"] if charge.used and "--resume" not in self._words and self.newest() else []
        counts = slots(self._cluster.cloud, self._settings, way.nodes)
        try:
            return jobs.start(way, [*self._words, *resumed], counts, self._where)
        except RemoteError as error:
            if jobs.RUNS_ALREADY in str(error) and (self._job in str(error) if self._job else self._adopts):
                return self._job or "jobs/last"
            raise

    def _way(self) -> Access:
        return access(self._cluster, self._settings)

    def _script(self, name: str, *words: str) -> str:
        way = self._way()
        return way.script(way.master, name, *words).strip()

    def _is_wanted(self, node: Node) -> bool:
        """Return True if EC2 has notified the node that it will be taken back.

        With rebalance = stop, EC2's recommendation to leave the node counts too.
        """
        way = self._way()
        try:
            told = way.script(node, "notices.sh", self._settings.remote_dir).split()
        except Ec2Error:  # a node that does not answer will be gone soon
            return False
        return _INTERRUPTION in told or (_REBALANCE in told and self._settings.rebalance == "stop")
