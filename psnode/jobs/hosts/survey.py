"""Facts about all hosts in a hostfile, and about the links between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any

from psnode.errors import PsnodeError
from psnode.jobs.hosts.conversation import Conversation, SilentHostError
from psnode.jobs.hosts.hostfile import Host

_AT_ONCE = 32


@dataclass
class Answer:
    """The answers of one host to all questions.

    * facts: see psnode.jobs.hosts.agent.facts; {} if the host does not answer
    * silence: the reason why an answer is missing; empty if none is missing
    * clock: seconds by which the host's clock is ahead of this machine's clock
    * up, down: the link to the master's host, and the link back from it, as returned by agent.reach
    * others: the links to the other hosts by their names; empty if they were not measured
    """

    host: Host
    facts: dict[str, Any] = field(default_factory=dict)
    silence: str = ""
    clock: float = 0.0
    up: dict[str, Any] = field(default_factory=dict)
    down: dict[str, Any] = field(default_factory=dict)
    others: dict[str, dict[str, Any]] = field(default_factory=dict)


def ask(
    hosts: Sequence[Host], deadline: float, data: Path | None, *, all_links: bool = False
) -> tuple[dict[str, Any], list[Answer]]:
    """Return the facts about this machine and the answers of all hosts. The first of `hosts` is the master's.

    `deadline`: seconds for each answer. `data`: a path whose existence is checked. `all_links`: also measure the links between
    the hosts other than the master's. Raises PsnodeError if this machine does not answer.
    """
    where = {"directory": str(Path.cwd()), "data": str(data.absolute()) if data is not None else None}
    with ExitStack() as stack, ThreadPoolExecutor(_AT_ONCE) as threads:
        here = stack.enter_context(Conversation(Host("localhost", 0), max(deadline, 60.0)))
        open_ = {host: stack.enter_context(Conversation(host, deadline)) for host in hosts}
        answers = list(threads.map(lambda talk: _facts(talk, where), open_.values()))
        try:
            own = here.ask("facts", **where)
        except SilentHostError as silence:
            raise PsnodeError(f"this machine cannot be examined: {silence}") from None
        for answer in answers[1:]:  # one after another, since all measurements use the master's link
            if answers[0].facts and answer.facts:
                _connect(open_, answers[0], answer, deadline / 4)
        if all_links:
            for sender, receiver in permutations(answers[1:], 2):
                if sender.facts and receiver.facts and not sender.silence and not receiver.silence:
                    _link(open_, sender, receiver, deadline / 4)
    return own, answers


def _connect(talks: Mapping[Host, Conversation], master: Answer, worker: Answer, seconds: float) -> None:
    """Measure the link from a worker's host to the master's host, and the link back. The results go to `worker`."""
    try:
        worker.up = _reached(talks[worker.host], worker, talks[master.host], master, seconds)
        worker.down = _reached(talks[master.host], master, talks[worker.host], worker, seconds)
    except SilentHostError as silence:
        worker.silence = str(silence)


def _link(talks: Mapping[Host, Conversation], sender: Answer, receiver: Answer, seconds: float) -> None:
    """Measure the link from one worker's host to another worker's host. The result goes to `sender`."""
    name = receiver.host.name
    try:
        sender.others[name] = _reached(talks[sender.host], sender, talks[receiver.host], receiver, seconds)
    except SilentHostError as silence:
        sender.others[name] = {"error": str(silence)}
        for each in (sender, receiver):
            if not talks[each.host].goes_on:
                each.silence = str(silence)


def _reached(origin: Conversation, sender: Answer, goal: Conversation, receiver: Answer, seconds: float) -> dict[str, Any]:
    """Ask the sender's host if it reaches a port of the receiver's host, and return its answer.

    The port's address is the one that ssh used to reach the receiver's host. If ssh was not used, it is the address of this
    machine as the sender's host sees it.
    """
    address = receiver.facts["address"] or sender.facts["client"] or "127.0.0.1"
    return origin.ask("reach", address=address, seconds=seconds, **goal.ask("listen"))


def _facts(talk: Conversation, where: dict[str, str | None]) -> Answer:
    try:
        return Answer(talk.host, talk.ask("facts", **where), clock=talk.clock())
    except SilentHostError as silence:
        return Answer(talk.host, silence=str(silence))
