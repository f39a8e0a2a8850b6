"""A synchronous job of a master and workers on SimGrid, for tests: python3 simgrid_star.py JOB, with Debian's python3-simgrid.

JOB is JSON: `workers`, `rate` (bytes per second of each direction of every rank's link), `steps`, `forward` and `backward`
(seconds), and `groups`, of which each has the seconds `ready`, `needed`, `encode`, `apply`, `update` and the bytes `up` and
`down`. The program prints the times at which the versions are complete on the master, as JSON.

This is a job of its own: actors that sleep while they compute, and exchange messages through links. It shares no code with
psnode. Links have no latency. Messages from one rank to another follow one another.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from simgrid import Actor, Engine, LinkInRoute, Mailbox, NetZone, this_actor

MASTER = 0


def build(ranks: int, rate: float) -> list[Any]:
    """Return a host for each rank, each with a link in and a link out."""
    zone = NetZone.create_full_zone("job")
    hosts = [zone.create_host(f"rank-{rank}", 1e9) for rank in range(ranks)]
    inward, outward = ([zone.create_link(f"{name}-{rank}", rate) for rank in range(ranks)] for name in ("in", "out"))
    for link in (*inward, *outward):
        link.set_latency(0)
        link.seal()
    for source in range(ranks):
        for target in range(ranks):
            if source != target and MASTER in (source, target):
                links = [LinkInRoute(outward[source]), LinkInRoute(inward[target])]
                zone.add_route(hosts[source].netpoint, hosts[target].netpoint, None, None, links, False)
    zone.seal()
    return hosts


class Job:
    """The actors of a job. Boxes are named by their purpose, group and rank."""

    def __init__(self, job: dict[str, Any], hosts: list[Any]) -> None:
        self.job, self.hosts = job, hosts
        self.ends: list[float] = []
        for rank in range(1, job["workers"] + 1):
            Actor.create(f"worker-{rank}", hosts[rank], self.work, rank)
            Actor.create(f"coder-{rank}", hosts[rank], self.code, rank)
            Actor.create(f"sender-{rank}", hosts[rank], self.send, rank)
            Actor.create(f"to-{rank}", hosts[MASTER], self.pass_down, rank)
        for index in range(len(job["groups"])):
            Actor.create(f"root-{index}", hosts[MASTER], self.update, index)
        Actor.create("clock", hosts[MASTER], self.watch)

    def work(self, rank: int) -> None:
        """Be the training thread of a worker."""
        job, groups = self.job, self.job["groups"]
        by_need = sorted(range(len(groups)), key=lambda index: groups[index]["needed"])
        by_end = sorted(range(len(groups)), key=lambda index: groups[index]["ready"])
        coming: list[Any] = []
        for _ in range(job["steps"]):
            expected, coming = coming, [Mailbox.by_name(f"down-{index}-{rank}").get_async() for index in range(len(groups))]
            now = 0.0
            for index in by_need:
                this_actor.sleep_for(groups[index]["needed"] - now)
                now = groups[index]["needed"]
                if expected:
                    expected[index][0].wait()
                    this_actor.sleep_for(groups[index]["apply"])
            this_actor.sleep_for(job["forward"] - now)
            now = 0.0
            for index in by_end:
                this_actor.sleep_for(groups[index]["ready"] - now)
                now = groups[index]["ready"]
                Mailbox.by_name(f"code-{rank}").put_init(index, 0).detach()
            this_actor.sleep_for(job["backward"] - now)
            for _ in groups:
                Mailbox.by_name(f"coded-{rank}").get()
        for message, _ in coming:  # each has two parts, a transfer and its content, which lives as long as both
            message.wait()

    def code(self, rank: int) -> None:
        """Be the coder of a worker, which codes groups in the order in which they are ready."""
        for _ in range(self.job["steps"] * len(self.job["groups"])):
            index = Mailbox.by_name(f"code-{rank}").get()
            this_actor.sleep_for(self.job["groups"][index]["encode"])
            Mailbox.by_name(f"coded-{rank}").put_init(index, 0).detach()
            Mailbox.by_name(f"send-{rank}").put_init(index, 0).detach()

    def send(self, rank: int) -> None:
        """Be the connection from a worker to the master."""
        for _ in range(self.job["steps"] * len(self.job["groups"])):
            index = Mailbox.by_name(f"send-{rank}").get()
            Mailbox.by_name(f"up-{index}-{rank}").put(rank, self.job["groups"][index]["up"])

    def update(self, index: int) -> None:
        """Be the root of a group, on a core of its own."""
        for _ in range(self.job["steps"]):
            ranks = range(1, self.job["workers"] + 1)
            coming = [Mailbox.by_name(f"up-{index}-{rank}").get_async() for rank in ranks]
            for message, _ in coming:
                message.wait()
            this_actor.sleep_for(self.job["groups"][index]["update"])
            for rank in ranks:
                Mailbox.by_name(f"to-{rank}").put_init(index, 0).detach()
            Mailbox.by_name("closed").put_init(index, 0).detach()

    def pass_down(self, rank: int) -> None:
        """Be the connection from the master to a worker."""
        for _ in range(self.job["steps"] * len(self.job["groups"])):
            index = Mailbox.by_name(f"to-{rank}").get()
            Mailbox.by_name(f"down-{index}-{rank}").put(index, self.job["groups"][index]["down"])

    def watch(self) -> None:
        """Note the end of every version."""
        for _ in range(self.job["steps"]):
            for _ in self.job["groups"]:
                Mailbox.by_name("closed").get()
            self.ends.append(Engine.clock)


def main(job: dict[str, Any]) -> None:
    """Run the job and print the ends of its versions."""
    settings = {"model": "CM02", "crosstraffic": 0, "loopback-lat": 0, "loopback-bw": 1e15}
    engine = Engine(["job", "--log=root.thres:error", *(f"--cfg=network/{name}:{value}" for name, value in settings.items())])
    made = Job(job, build(job["workers"] + 1, job["rate"]))
    engine.run()
    print(json.dumps(made.ends))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
