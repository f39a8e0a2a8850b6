"""--topology auto: the run equals one in which the decided topology was named, and only topologies that train accepts are
compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from psnode import run
from psnode.config import Config
from psnode.errors import ConfigurationError, StoppedError
from psnode.jobs import job
from psnode.jobs.dry_run import dry_run
from psnode.master.events import Events
from psnode.master.start.decision import Decider, JobHosts
from psnode.plans.prediction import Prediction
from psnode.protocol.channel import FrameChannel, StopRequest
from psnode.protocol.messages import Hello
from psnode.records.directory import RunDirectory, claim
from psnode.task import Task
from psnode.tasks.loading import make_task
from psnode.transport.loopback import loopback_group
from tests.kinds.models import CLASSES, WIDTH
from tests.kinds.task import Constrained, Trains

ALL = ["star", "star:down=tree", "mesh", "mesh:master=auto", "gather"]
SETTINGS: dict[str, Any] = {"lr": 0.05, "seed": 3, "batch_size": 8, "tensorboard": False, "threads": 1, "scheme": "qsgd"}

Predict = Callable[[Config, Task, Sequence[str], JobHosts], Mapping[str, Prediction]]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 24), nn.Tanh(), nn.Linear(24, 17), nn.Tanh(), nn.Linear(17, CLASSES))


def times(**seconds: float) -> Predict:
    """Return predictions of these seconds, and of 9 s for other topologies. The keys are names without `:` and `=`."""

    def predict(config: Config, task: Task, topologies: Sequence[str], hosts: JobHosts) -> Mapping[str, Prediction]:
        found = {name: seconds.get(name.partition(":")[0] + "_" * (":" in name), 9.0) for name in topologies}
        return {name: Prediction(step, hosts.workers, "test") for name, step in found.items()}

    return predict


def of(topology: str) -> Predict:
    """Return predictions under which a step of `topology` takes 1 s, and a step of every other one 9 s."""
    return times(**{topology.partition(":")[0] + "_" * (":" in topology): 1.0})


def trained(folder: Path, steps: int, topology: str, **more: Any) -> None:
    """Train with three workers."""
    config = Config(train_dir=folder, max_steps=steps, topology=topology, local=3, **{**SETTINGS, **more})
    assert run(Trains(network, 80), config) == 0


def contents(folder: Path, step: int) -> dict[str, str]:
    """Return the hashes of a checkpoint's files: weights, the optimizer's state, residuals."""
    place = folder / "checkpoints" / f"step-{step:08}"
    return {str(file.relative_to(place)): hashlib.sha256(file.read_bytes()).hexdigest() for file in place.rglob("*.safetensors")}


def recorded(folder: Path) -> Any:
    return json.loads((folder / "config.json").read_text())


def reasons(folder: Path) -> list[str]:
    """Return the texts of the events about the decision."""
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [event["reason"] for event in events if event["event"] == "planned"]


def nothing(config: Config, task: Task, topologies: Sequence[str], hosts: JobHosts) -> Mapping[str, Prediction]:
    pytest.fail(f"a step was measured, under {topologies}")


@pytest.mark.parametrize(("topology", "lr"), [*((name, 0.05) for name in ALL), ("gather", None)])
def test_the_run_is_the_one_with_the_topology_named(
    topology: str, lr: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "_predicted", of(topology))
    trained(tmp_path / "auto", 3, "auto", lr=lr)
    monkeypatch.setattr(job, "_predicted", nothing)
    trained(tmp_path / "named", 3, topology, lr=lr)
    assert len(contents(tmp_path / "auto", 3)) > 3
    assert contents(tmp_path / "auto", 3) == contents(tmp_path / "named", 3)
    auto, named = recorded(tmp_path / "auto"), recorded(tmp_path / "named")
    assert auto["config"] | {"train_dir": ""} == named["config"] | {"train_dir": ""}
    assert auto["config"]["topology"] == topology
    assert auto["prediction"] == {"step": 1.0, "workers": 3, "source": "test", "binds": ""}
    assert (auto["plan"], auto["scheme"]) == (named["plan"], named["scheme"])


def test_one_line_has_the_decided_topology_and_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(job, "_predicted", times(star=0.9, mesh=0.25))
    trained(tmp_path / "run", 1, "auto")
    [line] = reasons(tmp_path / "run")  # the threads of --local have no links
    assert line.startswith("topology mesh: a step is to take 250 ms; 900 ms under star; ")
    assert capsys.readouterr().err.count(line) == 1


@pytest.mark.parametrize("topology", ["mesh", "gather"])
def test_a_resumed_run_keeps_the_decided_topology_unless_another_is_named(
    topology: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "_predicted", of(topology))
    trained(tmp_path / "run", 2, "auto")
    trained(tmp_path / "whole", 4, topology)
    monkeypatch.setattr(job, "_predicted", nothing)
    trained(tmp_path / "run", 4, "auto", resume=True)
    assert recorded(tmp_path / "run")["config"]["topology"] == topology
    assert recorded(tmp_path / "run")["prediction"]["step"] == 1.0
    assert contents(tmp_path / "run", 4) == contents(tmp_path / "whole", 4)
    trained(tmp_path / "run", 5, "star", resume=True)
    assert recorded(tmp_path / "run")["config"]["topology"] == "star"
    assert "prediction" not in recorded(tmp_path / "run")  # it was that of another topology


class Decisions:
    """Decides for jobs of three workers, with a predicted step of 1 s under every topology. `asked`: the topologies that
    were predicted.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.asked: list[str] = []
        self.hosts = JobHosts(0, 0, False)
        self.link = FrameChannel(loopback_group(4)[0])

    def __call__(self, *hellos: Hello, constrains: bool = False, seconds: Predict | None = None, **settings: Any) -> RunDirectory:
        """Return the run after the decision. `hellos`: the greetings of the ranks, by default of four ranks on one host."""
        config = Config(train_dir=self._folder / "run", topology="auto", local=3, **settings)
        greetings = hellos or (Hello("host", 1, "0", "", 8, "one", {"fma": True}),) * 4

        def predict(config: Config, task: Task, topologies: Sequence[str], hosts: JobHosts) -> Mapping[str, Prediction]:
            self.asked, self.hosts = list(topologies), hosts
            return (seconds or times(star=1.0))(config, task, topologies, hosts)

        decider = Decider(
            self.link, make_task, {rank: each.to_bytes() for rank, each in enumerate(greetings)},
            dict.fromkeys(range(4), 2), predict,
        )  # fmt: skip
        with claim(config) as found:
            return decider.decided(found, constrains=constrains, events=Events(found.path))

    @property
    def reasons(self) -> list[str]:
        return reasons(self._folder / "run")


@pytest.fixture
def decisions(tmp_path: Path) -> Decisions:
    return Decisions(tmp_path)


@pytest.mark.parametrize(("mesh", "chosen"), [(0.99, "star"), (0.97, "mesh"), (1.5, "star")])
def test_the_star_is_preferred_to_what_is_hardly_faster(decisions: Decisions, mesh: float, chosen: str) -> None:
    found = decisions(seconds=times(star=1.0, mesh=mesh))
    assert found.config.topology == chosen
    assert found.prediction is not None
    assert found.prediction.step == {"star": 1.0, "mesh": mesh}[chosen]


def test_a_topology_without_a_prediction_is_not_chosen(decisions: Decisions) -> None:
    """Check that a topology is not chosen if its step has too many frames to be predicted."""
    found = decisions(seconds=lambda *_: {"mesh": Prediction(2.0, 3, "test"), "gather": Prediction(1.0, 3, "test")})
    assert found.config.topology == "gather"
    assert decisions.reasons[0].endswith("; too many frames to predict under mesh:master=auto")


@pytest.mark.parametrize(
    ("settings", "able"),
    [
        ({}, ALL),
        ({"spares": 1}, ["star", "star:down=tree"]),
        ({"aggregate_order": "arrival"}, [name for name in ALL if name != "gather"]),
        ({"norm_cap": 10.0}, ["star", "star:down=tree", "gather"]),
        ({"downlink": "polar:rate=2"}, [name for name in ALL if name != "gather"]),
    ],
)
def test_only_topologies_that_train_accepts_are_compared(decisions: Decisions, settings: dict[str, Any], able: list[str]) -> None:
    decisions(**settings)
    assert decisions.asked == able


def test_a_constraint_of_the_task_leaves_the_star_and_the_tree(decisions: Decisions) -> None:
    decisions(constrains=True)
    assert decisions.asked == ["star", "star:down=tree"]


def test_workers_that_round_differently_are_no_gather(decisions: Decisions) -> None:
    """Check that gather is predicted if only rank 0 rounds differently: rank 0 updates nothing in a gather."""
    once, twice = (Hello("host", 1, "0", "", 8, "one", {"fma": fma}) for fma in (True, False))
    decisions(once, twice, twice, twice)
    assert decisions.asked == ALL


def test_one_worker_that_rounds_differently_is_enough(decisions: Decisions) -> None:
    once, twice = (Hello("host", 1, "0", "", 8, "one", {"fma": fma}) for fma in (True, False))
    decisions(once, once, twice, once)
    assert decisions.asked == [name for name in ALL if name != "gather"]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"consistency": "kofn", "num_aggregate": 2}, "--consistency other than bsp"), ({"plan": "auto"}, "--plan auto")],
)
def test_where_only_the_star_is_left_it_is_taken_without_a_measurement(
    decisions: Decisions, settings: dict[str, Any], reason: str
) -> None:
    found = decisions(seconds=nothing, **settings)
    assert (found.config.topology, found.prediction) == ("star", None)
    [line] = decisions.reasons
    assert line.startswith(f"topology star, the only one with these settings: {reason}")
    assert "use --topology" not in line


@pytest.mark.parametrize("other", [Hello("b", 1, "0", "", 8, "two"), Hello("a", 1, "1", "", 8, "one")], ids=["fields", "version"])
def test_ranks_of_another_version_are_not_probed(decisions: Decisions, other: Hello) -> None:
    """Check that ranks of another version get no PROBE: a worker of an earlier version refuses a PROBE before CONFIG."""
    own = Hello("a", 1, "0", "0123", 8, "one")
    assert decisions(own, own, other, own, seconds=nothing).config.topology == "star"
    assert decisions.reasons == ["topology star, the only one with these settings: ranks of another version answer no probe"]


def test_a_request_to_stop_ends_the_decision(decisions: Decisions, tmp_path: Path) -> None:
    """Check that a request to stop ends the decision if it comes while the step is measured."""

    def stopped(config: Config, task: Task, topologies: Sequence[str], hosts: JobHosts) -> Mapping[str, Prediction]:
        decisions.link.inbox.put_back([StopRequest("SIGTERM")])
        return times(star=1.0)(config, task, topologies, hosts)

    with pytest.raises(StoppedError, match="SIGTERM"):
        decisions(seconds=stopped)


def test_ranks_of_a_host_share_its_cores_and_threads_of_a_process_take_turns(decisions: Decisions) -> None:
    """Check the cores of one host with eight cores: its four ranks have two threads each, so the prediction counts four
    cores, which the ranks share.
    """
    decisions()
    assert decisions.hosts == JobHosts(3, 8 // 2, shared=True)


def test_ranks_of_several_hosts_have_a_part_of_the_cores(decisions: Decisions) -> None:
    here, there = (Hello(name, 1, "0", "", cores, name) for name, cores in (("a", 8), ("b", 6)))
    decisions(here, here, there, there)
    assert decisions.hosts == JobHosts(3, 3, shared=False)


def test_a_program_that_predicts_nothing_and_a_dry_run_name_the_remedy(tmp_path: Path) -> None:
    config = Config(topology="auto", train_dir=tmp_path)
    with pytest.raises(ConfigurationError, match="--dry-run decides on no topology: name one, not --topology auto"):
        dry_run(config, 2)
    decider = Decider(FrameChannel(loopback_group(2)[0]), make_task, {}, {}, None)
    with claim(config) as found, pytest.raises(ConfigurationError, match="name one, not --topology auto"):
        decider.decided(found, constrains=False, events=Events(tmp_path))


def test_a_constrained_task_trains_under_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "_predicted", of("star:down=tree"))
    config = Config(train_dir=tmp_path / "run", max_steps=1, topology="auto", local=2, **SETTINGS)
    assert run(Constrained(network, 80), config) == 0
    assert recorded(tmp_path / "run")["config"]["topology"] == "star:down=tree"
