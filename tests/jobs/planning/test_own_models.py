"""psnode.plan: a program's own model is predicted as the command predicts it, and the program's state stays unchanged."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import psnode
from psnode.cli import main
from psnode.config.load import load
from psnode.errors import ConfigurationError
from psnode.jobs.planning.own_model import OwnModelPlan
from psnode.jobs.planning.profile import Profile
from psnode.plans.plan_file import PlanFile
from psnode.tasks.loading import make_task
from psnode.tasks.torchvision_ops import import_torchvision
from psnode.worker import inspection
from tests.forking import FORKING
from tests.jobs.planning.test_profiling import MODEL, OPTIONS
from tests.test_docs import python_blocks

ROOT = Path(__file__).parents[3]
SHAPES = [(800, 64), (800,), (500, 800), (500,), (10, 500), (10,)]  # of FC on images of 1 x 8 x 8
FRAME = 52  # bytes of a frame's header: docs/wire-format.md
pytestmark = pytest.mark.usefixtures("few_steps")


def small() -> nn.Sequential:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    model[1].eval()  # a loop may keep statistics fixed
    return model


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(24.0).view(4, 6).cos(), torch.tensor([0, 2, 1, 0])


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return cross_entropy(model(batch[0]), batch[1])


def ask(model: Any = None, loss: Any = loss, of: Any = None, **options: Any) -> OwnModelPlan:
    model = small() if model is None else model
    options = {"workers": 2, "rate": "1mbit", "schemes": "qsgd", "threads": 1, **options}
    return psnode.plan(model, loss, batch() if of is None else of, **options)


# ----- topologies


def test_steps_are_predicted_under_the_named_topology(tmp_path: Path) -> None:
    """Check that predictions are for the given topology, and that the plan of the fastest scheme names it too."""
    found = ask(topology="mesh", scheme="dense")
    rows = [row for row in found.by_rate["1mbit"].forecasts if not row.peer]
    assert {row.topology for row in rows} == {"mesh"}
    [dense] = [row for row in rows if row.name == "dense"]
    star = next(row for row in ask(scheme="dense").by_rate["1mbit"].forecasts if row.name == "dense")
    assert dense.sent == star.sent  # of the one group, one worker sends the gradient, and the other one the weights
    found.save_plan(tmp_path / "plan.json")
    assert PlanFile.load(tmp_path / "plan.json").topology == "mesh"


def test_auto_compares_topologies_and_tells_those_that_are_refused() -> None:
    found = ask(topology="auto", scheme="dense", norm_cap=3)
    rows = [row for row in found.by_rate["1mbit"].forecasts if not row.peer]
    assert {row.topology for row in rows} == {"star", "star:down=tree", "gather"}
    assert [line for line in found.notes if line.startswith("left out: norm_cap= compares") and "topology=mesh:" in line]
    [told] = [line for line in found.by_rate["1mbit"].sentences if "psnode train" in line]
    assert all(f"--topology {topology}" in told for topology in ("star", "star:down=tree", "gather"))


def test_a_single_refused_topology_is_an_error_in_words_of_programs() -> None:
    with pytest.raises(ConfigurationError, match=r"^norm_cap= compares norms of whole gradients.* under topology=mesh: use"):
        ask(topology="mesh", norm_cap=3)


# ----- the state of the program


def bits(value: torch.Tensor) -> bytes:
    return value.detach().contiguous().numpy().tobytes()


def state(model: nn.Module, *tensors: torch.Tensor) -> dict[str, Any]:
    """Return everything that a plan could disturb: values by their bytes, and gradients as objects too."""
    return {
        "values": {name: bits(value) for name, value in (*model.named_parameters(), *model.named_buffers())},
        "versions": [value._version for value in model.parameters()],
        "gradients": [(id(value.grad), None if value.grad is None else bits(value.grad)) for value in model.parameters()],
        "modes": [module.training for module in model.modules()],
        "attributes": [sorted(vars(module)) for module in model.modules()],
        "batch": [bits(tensor) for tensor in tensors],
        "torch": bits(torch.get_rng_state()),
        "python": random.getstate(),
        "numpy": [np.asarray(part).tobytes() for part in np.random.get_state()],
        "threads": torch.get_num_threads(),
        "graphs": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "group": torch.distributed.is_initialized(),
    }


def noisy(model: nn.Module, batch: Any) -> torch.Tensor:
    """A loss that draws from all generators, writes its batch, and leaves marks on its model."""
    x, y = batch
    x.add_(0.01 * random.random() + 0.01 * float(np.random.rand()))
    model.mark = torch.rand(1)
    return cross_entropy(model(x), y)


def fails_at(count: int) -> Callable[[nn.Module, Any], torch.Tensor]:
    calls = iter(range(count - 1))

    def failing(model: nn.Module, batch: Any) -> torch.Tensor:
        if next(calls, None) is None:
            raise RuntimeError("the loop fails")
        return noisy(model, batch)

    return failing


@pytest.mark.parametrize("case", ["ends well", "fails at once", "fails in the middle", "wrong setting", "not its model"])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_everything_of_the_program_is_as_before(case: str, mode: Any) -> None:
    """Check the program's state after a plan. A graph that the model has built earlier also stays valid: no weight was
    written, not even with the same value.
    """
    model, (x, y) = small(), batch()
    loss(model, (x, y)).backward()
    kept = loss(model, (x, y))
    outside: dict[str, tuple[Any, Any, str]] = {
        "fails at once": (fails_at(1), RuntimeError, "the loop fails"),
        "fails in the middle": (fails_at(20), RuntimeError, "the loop fails"),
        "wrong setting": (noisy, ConfigurationError, "no setting learning_rat"),
        "not its model": (lambda _, batch: noisy(model, batch), ConfigurationError, "reaches no parameter"),
    }
    with mode():
        before = state(model, x, y)
        if case == "ends well":
            assert ask(model, noisy, (x, y), schemes="topk").by_rate["1mbit"].forecasts
        else:
            chosen, error, said = outside[case]
            with pytest.raises(error, match=said):
                ask(model, chosen, (x, y), **({"learning_rat": 1} if case == "wrong setting" else {}))
        assert state(model, x, y) == before
    if case != "not its model":  # that loss writes the statistics of the program's own model, which a copy then restores
        kept.backward()


def test_a_session_after_a_plan_trains_as_without_one(tmp_path: Path) -> None:
    from torch.utils.data import DataLoader, TensorDataset

    def trained(folder: Path, *, planned: bool) -> dict[str, bytes]:
        model = small()
        loader = DataLoader(TensorDataset(*(part.repeat(4, *[1] * (part.dim() - 1)) for part in batch())), 4, shuffle=True)
        if planned:
            ask(model)
        with psnode.session(model, train_dir=folder, scheme="qsgd", lr=0.1, max_steps=3, tensorboard=False) as s:
            for each in s.batches(loader):
                value = loss(model, each)
                value.backward()
                s.step(value)
        return {name: bits(value) for name, value in model.state_dict().items()}

    assert trained(tmp_path / "planned", planned=True) == trained(tmp_path / "plain", planned=False)


# ----- the same predictions as those of the command


@pytest.fixture(scope="module")
def of_function(few_steps: None) -> OwnModelPlan:
    """Return the plan for the model of the command's options, made with a task's loss function, which returns the pair of
    loss and outputs.
    """
    task = make_task(load(MODEL, {}))
    examples = task.train_data().batch(np.arange(4), np.random.default_rng(0))
    return psnode.plan(
        task.model(), task.loss, examples, workers=2, rate=["1mbit", None], threads=1, schemes=["qsgd --downlink dense", "topk"]
    )


def test_bytes_groups_and_tensors_are_those_of_the_command(of_function: OwnModelPlan, tmp_path: Path) -> None:
    """Compare the plan's bytes, groups and tensors with the command's. top-k's payloads, and the coded changes of weights,
    differ by the rounding of an entropy code.
    """
    file = tmp_path / "profile.json"
    schemes = ["--scheme", "qsgd --downlink dense", "--scheme", "topk"]
    assert main(["plan", "-n", "2", "--rate", "1mbit", *schemes, "--save-profile", str(file), "--", *OPTIONS]) == 0
    own, other = of_function.profile, Profile.load(file)
    assert sorted(tensor.shape for tensor in own.tensors) == sorted(tensor.shape for tensor in other.tensors) == sorted(SHAPES)
    assert list(own.schemes) == list(other.schemes) == ["polar-2bit", "dense", "bf16", "qsgd --downlink dense", "topk"]
    hooks = ["fp32", "fp16", "powersgd:rank=2"]
    assert (own.threads, own.of_adam, list(own.ddp)) == (other.threads, other.of_adam, list(other.ddp)) == (1, False, hooks)
    for name, costs in own.schemes.items():
        told = other.schemes[name]
        assert (costs.lossy, costs.doubtful, costs.accuracy) == (told.lossy, told.doubtful, told.accuracy)
        tolerance = 0.0 if name in ("dense", "bf16") else 0.05
        for direction in ("up", "down"):
            found, expected = ([getattr(group, direction) for group in each.groups] for each in (costs, told))
            assert found == pytest.approx(expected, rel=tolerance), (name, direction)
    values = sum(map(np.prod, SHAPES))
    payload = sum(group.up - FRAME for group in own.schemes["dense"].groups)
    assert 4 * values <= payload < 4 * values + 200 * len(SHAPES)


def test_tables_and_verdicts_are_those_of_the_command_for_the_same_profile(
    of_function: OwnModelPlan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "deep" / "profile.json"
    of_function.save(file)
    command = ["plan", "-n", "2", "--rate", "1mbit", "--rate", "none", "--profile", str(file)]
    assert main(command) == 0
    assert capsys.readouterr().out == f"{of_function}\n"
    assert main([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["limit"] == of_function.limit
    assert list(of_function.by_rate) == [each["rate"] for each in told["results"]] == ["1mbit", "none"]
    for each, found in zip(told["results"], of_function.by_rate.values(), strict=True):
        assert (each["compress"], each["verdict"]) == (found.verdict.compress, list(found.sentences))
        assert [row["seconds"] for row in each["rows"]] == [row.seconds for row in found.forecasts]
    assert of_function.by_rate["1mbit"].verdict.compress  # 1.8 MB a step: more than ten seconds uncoded


def test_forward_passes_of_a_session_wait_for_all_weights(of_function: OwnModelPlan) -> None:
    found = of_function.profile
    assert {tensor.needed for tensor in found.tensors} == {0.0}
    assert {group.needed for costs in found.schemes.values() for group in costs.groups} == {0.0}


def test_the_settings_are_those_of_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that an argument overrides an environment variable, and that a plan ignores the variable for resume, which
    sessions read.
    """
    monkeypatch.setenv("PSNODE_SCHEME", "topk:ratio=0.25")
    monkeypatch.setenv("PSNODE_RESUME", "auto")
    found = ask(optimizer="adamw", lr=1e-3, schemes=(), one_machine=True, cores=3, train_dir="runs/none", max_steps=9).profile
    assert list(found.schemes) == ["topk:ratio=0.25", "dense", "bf16", "qsgd", "topk"]
    assert found.of_adam
    assert (found.model, found.threads) == ("Sequential", 1)
    assert next(iter(ask(scheme="efsignsgd").profile.schemes)) == "efsignsgd"


def test_the_parts_of_the_measurement_are_told() -> None:
    lines: list[str] = []
    ask(progress=lines.append)
    assert lines == ["passes", "this host and DDP", "polar-2bit", "dense", "bf16", "qsgd"]


# ----- mistakes


class Answer:
    """A model's output in the form of transformers' outputs."""

    loss = torch.tensor(1.0)


FOREIGN = nn.Parameter(torch.ones(3))
MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "no module": ({"model": "resnet"}, "model is a torch.nn.Module, not an object of str"),
    "nothing trained": ({"model": nn.ReLU()}, "the model has no parameter that is trained"),
    "frozen": ({"model": nn.Linear(6, 3).requires_grad_(False)}, "the model has no parameter that is trained"),
    "half": ({"model": nn.Linear(6, 3).bfloat16(), "of": (batch()[0].bfloat16(), batch()[1])}, "exchanges float32 weights only"),
    "lazy": ({"model": nn.Sequential(nn.LazyLinear(3))}, "weight has no shape yet"),
    "meta": ({"model": nn.Linear(6, 3, device="meta")}, "the model lies on meta: move it"),
    "not copied": ({"of": (x for x in ())}, "the batch cannot be copied"),
    "no function": ({"loss": 0.5}, "loss is a function of the model and a batch, not an object of float"),
    "vector": ({"loss": lambda m, b: m(b[0])}, "loss must return one real number, not a tensor of 4x3 and torch.float32"),
    "output": ({"loss": lambda m, b: Answer()}, "not an object of Answer: return its .loss"),
    "number": ({"loss": lambda m, b: loss(m, b).item()}, "a tensor of one number, not an object of float"),
    "not finite": ({"loss": lambda m, b: loss(m, b) / 0}, "the loss of the batch is inf"),
    "no graph": ({"loss": lambda m, b: loss(m, b).detach()}, "the loss has no graph"),
    "other parameters": ({"loss": lambda m, b: loss(m, b) + FOREIGN.sum()}, "but not the model's"),
    "device": ({"of": (batch()[0].to("meta"), batch()[1])}, "the batch lies on meta, and the model on cpu"),
    "scheme": ({"scheme": "qsdg"}, "scheme= must be one of"),
    "schemes": ({"schemes": ["qsdg"]}, "did you mean qsgd"),
    "flag": ({"schemes": "qsgd --downlnk dense"}, "unknown flag --downlnk"),
    "parameter": ({"scheme": "topk:ratoi=0.1"}, "ratoi"),
    "workers": ({"workers": 0}, "workers must be a whole number of at least 1, not 0"),
    "a part of a worker": ({"workers": 2.5}, "workers must be a whole number of at least 1, not 2.5"),
    "cores": ({"cores": 0}, "cores must be a whole number of at least 1, not 0"),
    "rate": ({"rate": "fast"}, "rate must be a number above 0 with kbit, mbit or gbit, such as 100mbit, not 'fast'"),
    "rates": ({"rate": ["1gbit", 5]}, "rate is a text such as 100mbit, or none, not 5"),
    "no rate": ({"rate": []}, "rate names no rate"),
    "round trip": ({"round_trip": -1}, "round_trip must be a number of at least 0, not -1"),
    "setting": ({"optimiser": "adamw"}, "plan has no setting optimiser"),
    "batch size": ({"batch_size": 4}, "batch_size has no meaning in a plan for a model of the program: the batch is"),
    "optimizer": ({"optimizer": torch.optim.AdamW}, "optimizer is the name of one of torch's in a plan"),
    "consistency": ({"consistency": "asp"}, "one behind the other: leave out consistency="),
    "diverged": ({"lr": 1e30, "scheme": "dense", "momentum": 0.0}, "give lr= as in the training"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_in_one_line(name: str) -> None:
    given, said = MISTAKES[name]
    with pytest.raises(ConfigurationError) as caught:
        ask(**given)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "--" not in str(caught.value).replace("--downl", "").replace("psnode train --help", "")


@pytest.mark.parametrize("passes", [0, 1])
def test_a_compiled_model_is_refused_before_a_pass_compiles_it_and_a_compiled_loss_after_one(
    monkeypatch: pytest.MonkeyPatch, passes: int
) -> None:
    reasons, taken = iter([""] * passes + ["it is compiled"]), []
    monkeypatch.setattr(inspection, "unwatchable", lambda model: next(reasons))
    with pytest.raises(ConfigurationError, match="cannot be timed, since it is compiled: plan before"):
        ask(loss=lambda model, batch: (taken.append(1), loss(model, batch))[1])
    assert len(taken) == passes


# ----- process groups


BESIDE = """
import os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import psnode, psnode.ddp
from psnode.jobs.planning import profiling

profiling._SECONDS = 0.01
rank = 0 if os.fork() else 1
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
network = torch.nn.Linear(200, 100, bias=False)
model = DistributedDataParallel(network)
model.register_comm_hook(*psnode.ddp.comm_hook("bf16", model=network))
x = torch.ones(4, 200)
if rank == 0:  # the other rank waits for this one's gradient: a plan exchanges nothing
    found = psnode.plan(
        model, lambda model, x: model(x).square().mean(), x, workers=4, rate="1mbit", scheme="dense", schemes="fp16", threads=1
    )
    assert found.profile.ddp == {} and found.profile.model == "Linear"
    assert str(found).splitlines()[-1] == found.notes[0]
    print(*[row.name for row in found.by_rate["1mbit"].forecasts], *found.notes, sep="|")
model(x).square().mean().backward()
total = torch.ones(1)
dist.all_reduce(total)
assert (dist.get_world_size(), float(total)) == (2, 2.0)
assert network.weight.grad.isfinite().all()
if rank == 1:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
dist.destroy_process_group()
found = psnode.plan(network, lambda model, x: model(x).square().mean(), x, workers=4, scheme="dense", schemes="fp16", threads=1)
assert not dist.is_initialized()
print(*found.profile.ddp, *found.notes, sep="|")
"""


@pytest.mark.long
def test_one_rank_of_a_group_plans_beside_the_hook_and_ddp_is_left_out_until_the_group_has_ended(tmp_path: Path) -> None:
    done = subprocess.run(
        [FORKING.python(), "-W", "ignore", "-c", BESIDE, str(tmp_path / "store")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    inside, after = done.stdout.splitlines()
    *names, note = inside.split("|")
    assert sorted(names) == ["bf16", "dense", "fp16"]
    assert note == "DDP is not compared, since this process is in a process group: plan before init_process_group"
    assert after.split("|") == ["fp32", "fp16", "powersgd:rank=2"]


# ----- programs


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_a_model_of_transformers_is_predicted_from_its_own_loss() -> None:
    if importlib.util.find_spec("torchvision") is not None:
        import_torchvision()  # else its import by transformers fails with a CPU build of torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=8, n_embd=16, n_layer=1, n_head=2))
    rows = torch.arange(32).view(4, 8)
    words = {"input_ids": rows, "labels": rows, "name": "a text"}

    def own(model: nn.Module, batch: dict[str, Any]) -> torch.Tensor:
        batch.pop("name")  # each pass gets a dict of its own
        return model(**batch).loss  # type: ignore[no-any-return]

    found = ask(model, own, words, optimizer="adamw", lr=1e-3)
    # embeddings, which the output shares, two norms and the last, attention and the network of the one block, with their biases
    values = 64 * 16 + 8 * 16 + 3 * 32 + (16 * 48 + 48 + 16 * 16 + 16) + (16 * 64 + 64 + 64 * 16 + 16)
    assert found.profile.nbytes == 4 * values
    assert found.profile.model == "GPT2LMHeadModel"
    assert words.keys() == {"input_ids", "labels", "name"}
    with pytest.raises(ConfigurationError, match=r"return its \.loss"):
        ask(model, lambda model, batch: model(batch["input_ids"], labels=batch["labels"]), words)


def test_the_example_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = python_blocks(ROOT / "docs" / "planning.md")
    names: dict[str, Any] = {}
    exec(compile(block, "page", "exec"), names)  # noqa: S102
    assert "4 workers, 100mbit" in capsys.readouterr().out
    (file,) = tmp_path.rglob("*.json")
    assert Profile.load(file) == names["found"].profile


def test_a_session_follows_a_saved_plan(tmp_path: Path) -> None:
    found = ask(schemes=["qsgd --min-compress-bytes 0"], rate=["1kbit", "1mbit"])
    assert (
        found.save_plan(tmp_path / "plan.json", "1kbit")
        == min(
            (row for row in found.by_rate["1kbit"].forecasts if not row.peer and not row.doubtful), key=lambda row: row.seconds
        ).name
    )
    for rate in (None, "2mbit"):
        with pytest.raises(ConfigurationError, match="one rate of 1kbit, 1mbit"):
            found.save_plan(tmp_path / "plan.json", rate)
    saved = json.loads((tmp_path / "plan.json").read_bytes())
    program = f"""
import psnode, torch
from tests.jobs.planning.test_own_models import batch, loss, small
model = small()
with psnode.session(model, train_dir="run", plan={str(tmp_path / "plan.json")!r}, max_steps=3, lr=0.01, tensorboard=False) as s:
    for each in s.batches(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*batch()), batch_size=2, shuffle=True)):
        found = loss(model, each)
        found.backward()
        s.step(found)
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert json.loads((tmp_path / "run" / "config.json").read_bytes())["plan"] == saved["plan"]


def test_models_that_ddp_does_not_train_are_planned_without_it(tmp_path: Path) -> None:
    """Check that models are planned without DDP if the loss calls a method of the model, a parameter has no gradient, or a
    parameter is a scalar. Here DDP is really measured.
    """
    program = """
import torch, psnode
from torch import nn
from psnode.jobs.planning import profiling
profiling._SECONDS = 0.02

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.unused, self.scale = nn.Linear(4, 3), nn.Linear(2, 2), nn.Parameter(torch.tensor(1.0))
    def forward(self, x):
        return self.scale * self.inner(x)
    def training_step(self, x):
        return self(x).square().mean()

for loss in (lambda model, x: model.training_step(x), lambda model, x: model(x).square().mean()):
    found = psnode.plan(Model(), loss, torch.ones(5, 4), workers=2, rate="1mbit", schemes="fp16", threads=1)
    print(len(found.notes), all("does not train this model" in note for note in found.notes), "dense" in str(found))
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([FORKING.python(), "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "3 True True"
    assert second.endswith("True True")
    assert int(second[0]) >= 1
