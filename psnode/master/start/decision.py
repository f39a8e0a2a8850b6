"""The decision of --topology auto: measure, predict a step under each topology, and take the topology with the shortest step.

The master measures the links of the waiting workers, and the work of a step on its own host. All other ranks get the
configuration only after the decision, so the run is the same as if the user had named the topology.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from psnode.config import Config
from psnode.config.amounts import milliseconds, rate_text
from psnode.config.resolve import resolve
from psnode.config.train_settings import UNDECIDED
from psnode.errors import ConfigurationError
from psnode.exchange.routes.refusals import accepted, refuse_other_roots, refuse_unlike_processors
from psnode.exchange.routes.topologies import COMPARED
from psnode.master.events import Events
from psnode.master.heartbeat import Heartbeat
from psnode.master.start.startup import raise_if_stopped
from psnode.plans.prediction import NEAR, Prediction
from psnode.plans.roles import MASTER, Layout
from psnode.protocol.channel import FrameChannel
from psnode.protocol.link_rates import LinkRates, measure_links
from psnode.protocol.messages import Hello
from psnode.records.directory import RunDirectory
from psnode.task import Task

_LOG = logging.getLogger(__name__)
_USUAL = Config().topology


class JobHosts(NamedTuple):
    """The hosts of a job of `workers` workers. `shared`: True if all ranks are on one host.

    `cores`: the cores of that host, or of each rank if the ranks are on several hosts. `links`: the rates of the master's link
    while all workers use it. `slowest`: the rates that the worker with the slowest link reaches when no other worker uses the
    master's link. Both are None if ranks are threads of one process.
    """

    workers: int
    cores: int
    shared: bool
    links: LinkRates | None = None
    slowest: LinkRates | None = None


# predicts a step of a task under each of some topologies, except those whose step has too many frames to predict
Predict = Callable[[Config, Task, Sequence[str], JobHosts], Mapping[str, Prediction]]


@dataclass(frozen=True)
class Decider:
    """Decides the topology of a job, from the messages of the other ranks and predictions of a step.

    `link`: the channel to the other ranks. `greetings`: the HELLO message of each rank. `threads`: the number of threads of
    each rank. `make_task`: returns the task to measure. `predict`: see Predict; without it, nothing can be decided.
    """

    link: FrameChannel
    make_task: Callable[[Config], Task]
    greetings: Mapping[int, bytes]
    threads: Mapping[int, int]
    predict: Predict | None

    def decided(self, run: RunDirectory, *, constrains: bool, events: Events) -> RunDirectory:
        """Return `run` with the chosen topology, the prediction of a step and the measured links.

        The topologies that are compared are those under which train accepts the run's settings. The chosen topology is the one
        with the shortest predicted step, or the usual topology if it is almost as fast. If no other topology is accepted, or a
        rank has another version of psnode, nothing is measured. `constrains`: True if the task has a constraint. Lines about
        the decision go to `events`. Raises ConfigurationError if a step cannot be measured, and StoppedError if a rank was
        asked to stop.
        """
        if self.predict is None:
            raise ConfigurationError(f"this program decides on no topology: name one, not --topology {UNDECIDED}")
        hellos = {rank: Hello.of_any_version(text, rank) for rank, text in self.greetings.items()}
        layout = Layout.of(len(hellos), run.config.spares)

        def refuse(config: Config) -> None:
            scheme = resolve(config)
            refuse_other_roots(config, scheme.aggregator, constrains=constrains, downlink=scheme.downlink)
            refuse_unlike_processors(config, {rank: hellos[rank].arithmetic for rank in layout.computing}, self.threads)

        able, refused = accepted(run.config, COMPARED, refuse)
        own = hellos[MASTER].version, hellos[MASTER].source
        unlike = any((each.version, each.source) != own for each in hellos.values())
        if unlike or able == [_USUAL]:
            reason = "ranks of another version answer no probe" if unlike else refused[0].partition(": use --topology")[0]
            events.tell("planned", 0, reason=f"topology {_USUAL}, the only one with these settings: {reason}")
            return _under(run, _USUAL)
        hosts = _hosts(hellos, layout, run.config, self.threads[MASTER])
        _LOG.info("--topology %s: the links and the work of a step are measured first", UNDECIDED)
        # while rank 0 measures, other ranks receive nothing but this heartbeat
        with contextlib.closing(Heartbeat(self.link, layout.others)):
            if run.config.local is None:
                hosts = self._with_links(run, hosts, layout.computing)
            raise_if_stopped(self.link, run)
            found = self.predict(run.config, self.make_task(run.config), able, hosts)
            raise_if_stopped(self.link, run)
        best = _best(found)
        for line in _lines(found, best, hosts, left_out=[each for each in able if each not in found]):
            events.tell("planned", 0, reason=line)
        return replace(_under(run, best), prediction=found[best], links=hosts.links)

    def _with_links(self, run: RunDirectory, hosts: JobHosts, workers: Sequence[int]) -> JobHosts:
        """Return `hosts` with measured link rates.

        The rates are measured while all workers use the master's link at once, and for each worker alone. Of the latter, the
        slowest are kept.
        """

        def measured(ranks: Sequence[int]) -> LinkRates:
            raise_if_stopped(self.link, run)
            return measure_links(self.link, ranks, 5 * run.config.pause_deadline)

        together = measured(workers)
        alone = [measured([rank]) for rank in workers] if len(workers) > 1 else [together]
        return hosts._replace(links=together, slowest=min(alone, key=slower_way))


def _under(run: RunDirectory, topology: str) -> RunDirectory:
    config = replace(run.config, topology=topology)
    return replace(run, config=config, scheme=resolve(config))  # the downlink of a scheme depends on the topology


def _hosts(hellos: Mapping[int, Hello], layout: Layout, config: Config, threads: int) -> JobHosts:
    """Return the hosts without their links. The ranks of a host share its cores, but the threads of --local take turns."""
    pools = [each.pool or each.host for each in hellos.values()]
    if len(set(pools)) == 1:
        cores = hellos[MASTER].cores
        return JobHosts(layout.workers, max(1, cores // threads) if config.local is not None else cores, shared=True)
    cores = min(each.cores // pools.count(each.pool or each.host) for each in hellos.values())
    return JobHosts(layout.workers, max(1, cores), shared=False)


def slower_way(links: LinkRates) -> float:
    """Return the rate of the slower direction, in bytes per second."""
    return min(links.up, links.down)


def _best(found: Mapping[str, Prediction]) -> str:
    best = min(found, key=lambda topology: found[topology].step)
    usual = found.get(_USUAL)
    return _USUAL if usual is not None and usual.step <= NEAR * found[best].step else best


def _lines(found: Mapping[str, Prediction], best: str, hosts: JobHosts, left_out: Sequence[str]) -> list[str]:
    """Return log lines about the chosen topology, the predicted step times under the other topologies, and the links.

    `left_out`: topologies that were not predicted.
    """
    others = "".join(f"; {milliseconds(each.step)} under {name}" for name, each in found.items() if name != best)
    others += "".join(f"; too many frames to predict under {name}" for name in left_out)
    lines = [f"topology {best}: a step is to take {milliseconds(found[best].step)}{others}"]
    if hosts.links is not None and hosts.slowest is not None:
        together, alone = (rate_text(8 * slower_way(each)) for each in (hosts.links, hosts.slowest))
        lines.append(f"the master's link: {together} for all workers at once, {alone} for the slowest of them alone")
    return lines
