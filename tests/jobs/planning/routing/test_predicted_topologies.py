"""Predictions at the start of a job: slow links make another topology than the star the fastest, by the bytes of its links."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from psnode.config import Config
from psnode.errors import ConfigurationError
from psnode.exchange.routes.route import Route
from psnode.exchange.routes.topologies import COMPARED
from psnode.jobs.planning import profiling
from psnode.jobs.planning.job_step import job_step
from psnode.jobs.planning.profile import GroupCosts, HostCosts, Profile, SchemeCosts, TensorTimes
from psnode.jobs.planning.routing.predicted_topologies import predicted, scenario_of, steps
from psnode.jobs.planning.scenario import GOODPUT, Scenario
from psnode.master.start.decision import JobHosts
from psnode.plans.groups import Plan
from psnode.plans.rule import Tensor, make_plan
from psnode.protocol.link_rates import LinkRates
from tests.kinds.models import CLASSES, WIDTH
from tests.kinds.task import Trains

FREE = HostCosts(0.0, 0.0, 0.0, 0.0, 4, 1.0)
SIZE, WORKERS = 1 << 18, 4  # parameters: a MiB of float32


def links(mbit: float) -> LinkRates:
    """Return links of this goodput, in both directions."""
    return LinkRates(0.001, mbit * 1e6 / 8, mbit * 1e6 / 8)


def profile(passes: float) -> Profile:
    """Return a profile in which coding takes no time, and a gradient and the weights take the bytes of float32."""
    grouping: dict[str, Any] = {"group_by": "bytes", "group_bytes": 4 * SIZE // 16, "min_compress_bytes": 0}
    tensors = [Tensor(f"layer{n}", (SIZE // 16,)) for n in range(16)]
    plan: Plan = make_plan(tensors, "identity", **grouping)
    groups = tuple(GroupCosts(4 * n.size, 4 * n.size, 0.0, 0.0, 0.0, 0.0, passes * 2 / 3, 0.0, 0, n.size) for n in plan.groups)
    assert len(groups) % WORKERS == 0  # so that all parts of the weights are equal
    costs = SchemeCosts(groups, 0.0, 0.0, False, settings={"scheme": "dense"}, plan=plan.to_dict(), grouping=grouping)
    times = tuple(TensorTimes(tensor.shape, passes * 2 / 3, 0.0, tensor.name) for tensor in tensors)
    return Profile("model", 1, passes / 3, passes * 2 / 3, 0.0, times, FREE, {"dense": costs}, {})


def test_at_1_mbit_a_mesh_is_faster_than_a_star_by_the_bytes_of_the_busiest_link() -> None:
    """Check predictions for P workers if a gradient takes 8.4 s on a link, and the weights as long. The busiest link passes
    P of both in a star, and (P - 1) / P of both in a mesh.
    """
    hosts = JobHosts(WORKERS, 4, shared=False, links=links(1), slowest=links(1))
    found = steps(profile(0.05), "dense", COMPARED, scenario_of(hosts))
    assert list(found) == list(COMPARED)
    one = 8 * 4 * SIZE / 1e6
    assert found["star"].step >= WORKERS * one
    bound = (WORKERS - 1) / WORKERS * 2 * one
    assert bound <= found["mesh"].step <= 1.05 * bound
    assert min(found, key=lambda name: found[name].step) in ("mesh", "mesh:master=auto")
    assert {each.workers for each in found.values()} == {WORKERS}
    assert {each.source for each in found.values()} == {"--topology auto"}


def test_where_workers_have_slow_links_and_the_master_has_not_the_star_is_as_fast_as_its_workers() -> None:
    """Check that a star's step takes as long as one gradient and one set of weights on the link of a worker: the master's
    faster link carries the gradients of all workers at once.
    """
    hosts = JobHosts(WORKERS, 4, shared=False, links=links(100), slowest=links(1))
    found = steps(profile(0.05), "dense", ["star", "gather"], scenario_of(hosts))
    one = 8 * 4 * SIZE / 1e6
    assert one <= found["star"].step <= 2 * one + 1
    assert found["gather"].step >= (WORKERS - 1) * one  # every worker sends its gradient to all others


@pytest.mark.parametrize(("rate", "master_rate", "gradient"), [(8e6, None, 0.2), (8e6, 32e6, 0.1), (32e6, 8e6, 0.2)])
def test_the_master_may_have_a_link_of_another_rate(rate: float, master_rate: float | None, gradient: float) -> None:
    """Check two workers that send 100 kB each: this takes .2 s if all pass one link of 1 MB/s, and .1 s if only the workers'
    own links have this rate.
    """
    group = GroupCosts(100_000, 0, 0.0, 0.0, 0.0, 0.0, 0.2, 0.0)
    costs = SchemeCosts((group,), 0.0, 0.0, True)
    other = None if master_rate is None else master_rate / GOODPUT
    scenario = Scenario(2, rate / GOODPUT, 0.0, 4, master_rate=other)
    found = job_step(profile(0.3), costs, scenario, [Route(0, range(1, 3))])
    assert found.seconds == pytest.approx(0.3 + gradient)


def test_threads_of_one_process_have_no_links() -> None:
    assert scenario_of(JobHosts(3, 1, shared=True)) == Scenario(3, None, 0.0, 1, True)


class Listed(Trains):
    """A task whose data are a data set of torch, and whose optimizer and rate are its own."""

    def train_data(self) -> Any:
        generator = torch.Generator().manual_seed(1)
        return TensorDataset(torch.randn(40, WIDTH, generator=generator), torch.randint(CLASSES, (40,), generator=generator))

    def optimizer(self, name: str, parameter: nn.Parameter) -> torch.optim.Optimizer:
        return torch.optim.Adagrad([parameter], lr=0.01)

    def learning_rate(self, step: int, **_: Any) -> float:
        return 0.01


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 24), nn.Tanh(), nn.Linear(24, CLASSES))


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize("settings", [{}, {"optimizer": "task", "lr_schedule": "task"}, {"overlap": False}])
def test_a_task_is_measured_with_its_own_parts_and_without_further_processes(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("overheads", "core_rates", "frame_costs", "ring_costs"):
        monkeypatch.setattr(profiling, name, lambda *_: pytest.fail("a process was started"))
    config = Config(batch_size=8, threads=1, topology="auto", scheme="qsgd", local=3, task="python:Listed", **settings)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    found = predicted(config, Listed(network, 40), COMPARED, JobHosts(3, 2, shared=True))
    assert list(found) == list(COMPARED)
    assert all(each.step > 0 for each in found.values())
    assert torch.equal(torch.rand(3), expected)  # the measurement leaves the state of torch's generator


class Broken(Trains):
    """A task whose data are not on this host."""

    def train_data(self) -> Any:
        raise FileNotFoundError("no such directory: /data")


def test_a_step_that_cannot_be_measured_is_one_line_with_the_remedy() -> None:
    config = Config(batch_size=8, threads=1, topology="auto", task="python:Broken")
    with pytest.raises(ConfigurationError, match=r"--topology auto .* rank 0, .*no such directory: /data.*: name a topology"):
        predicted(config, Broken(network, 8), COMPARED, JobHosts(3, 2, shared=True))
