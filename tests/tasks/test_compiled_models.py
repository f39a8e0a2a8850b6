"""Runs of models compiled as a whole or in part: names are those of the plain model, and each form can
continue the others' runs.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
import xxhash
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import psnode
from psnode import ddp
from psnode.evaluator import follow
from psnode.plans.groups import Plan
from psnode.records import checkpoint, state_names
from psnode.records.tensorfile import parse
from psnode.records.weights import export
from psnode.task import Task
from psnode.tasks import tensor_names

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch.compile loads deprecated modules
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),  # torch.compile reads .grad of each part of the model
]


def compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="eager")


class Net(nn.Module):
    """A model with names of every kind: a batch norm, a frozen layer, tied weights, and its own buffer."""

    def __init__(self, wrap=lambda part: part) -> None:
        super().__init__()
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.body = wrap(nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU()))
        self.head = wrap(nn.Linear(6, 6))
        self.tied = nn.Linear(6, 6, bias=False)
        self.tied.weight = self.head.weight
        self.register_buffer("factor", torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * self.tied(self.head(self.body(self.frozen(x))))


FORMS = {
    "plain": Net,
    "whole": lambda: compiled(Net()),
    "parts": lambda: Net(compiled),
    "both": lambda: compiled(Net(compiled)),
}


class Small(Task):
    def __init__(self, form: str, *, groups: bool = False) -> None:
        self.form, self.groups = form, groups

    def model(self) -> nn.Module:
        return FORMS[self.form]()

    def train_data(self) -> TensorDataset:
        generator = torch.Generator().manual_seed(1)
        return TensorDataset(torch.randn(48, 6, generator=generator), torch.randint(0, 6, (48,), generator=generator))

    eval_data = train_data

    def loss(self, model, batch):
        z = model(batch[0])
        return cross_entropy(z, batch[1]), z

    def size(self, batch) -> int:
        return len(batch[0])

    def statistics(self, model):
        return {name: rule for name, rule in super().statistics(model).items() if "tracked" not in name} | {
            name: "max" for name in model.state_dict() if name.endswith("num_batches_tracked")
        }

    def parameter_groups(self, model):
        if not self.groups:
            return []
        # with the names that a program of a compiled model sees
        heads = [name for name, _ in model.named_parameters() if "head" in name]
        rest = [name for name, _ in model.named_parameters() if "head" not in name]
        return [{"params": rest}, {"params": heads, "lr_factor": 0.5}]


SETTINGS = {
    "topk": {"scheme": "topk", "optimizer": "sgd", "momentum": 0.9, "ema_decay": 0.9, "norm_cap": 10.0, "min_compress_bytes": 0},
    "adam": {"scheme": "dense", "optimizer": "adamw", "momentum": 0.9, "weight_decay": 0.01},
}


def settings(path: Path, steps: int, kind: str = "topk", *, resume: bool = False) -> psnode.Config:
    common = {"batch_size": 4, "tensorboard": False, "quiet": True, "lr": 0.05}
    return psnode.Config(**common, **SETTINGS[kind], local=2, max_steps=steps, train_dir=path, resume=resume)


def train(path: Path, form: str, steps: int, kind: str = "topk", *, resume: bool = False) -> int:
    return psnode.run(Small(form, groups=True), settings(path, steps, kind, resume=resume))


def events(path: Path) -> str:
    """Return the events that a run has recorded; without events the file does not exist."""
    return (path / "events.jsonl").read_text() if (path / "events.jsonl").exists() else ""


def files(path: Path, step: int) -> dict[str, str]:
    """Return the hashes of a checkpoint's files."""
    return {
        name: entry["xxh3_128"]
        for name, entry in checkpoint.Checkpoint.open(path / checkpoint.CHECKPOINTS / checkpoint.step_directory(step))
        .facts["files"]
        .items()
    }


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> dict[str, Path]:
    found = {}
    for kind in SETTINGS:
        found[kind] = tmp_path_factory.mktemp("unbroken") / kind
        assert train(found[kind], "plain", 4, kind) == 0
    return found


@pytest.mark.sweep
@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("forms", [("plain", "whole"), ("whole", "plain"), ("parts", "both"), ("both", "parts")], ids="-".join)
def test_a_run_goes_on_with_a_model_of_another_form(tmp_path, unbroken, forms, kind) -> None:
    path = tmp_path / "run"
    for form, steps in zip(forms, (2, 4), strict=True):
        assert train(path, form, steps, kind, resume=steps == 4) == 0
    assert files(path, 4) == files(unbroken[kind], 4)
    saved, other = (json.loads((each / "config.json").read_text()) for each in (path, unbroken[kind]))
    assert saved["plan"] == other["plan"]
    assert saved["parameter_groups"] == other["parameter_groups"]
    assert not [path for path in path.rglob("*.json*") if "_orig_mod" in path.read_text()]
    assert "replanned" not in events(path)


def test_ranks_may_have_the_model_in_several_forms(tmp_path, unbroken) -> None:
    class Mixed(Small):
        def model(self) -> nn.Module:
            return FORMS[["plain", "both", "parts", "whole"][next(turn)]]()

    turn = itertools.count()
    assert psnode.run(Mixed("", groups=True), settings(tmp_path / "run", 4)) == 0
    assert next(turn) == 3
    assert files(tmp_path / "run", 4) == files(unbroken["topk"], 4)


def test_what_is_exported_and_evaluated_has_plain_names(tmp_path) -> None:
    path = tmp_path / "run"
    assert train(path, "both", 2) == 0
    export(path, path / "out.safetensors", None)
    Net().load_state_dict(parse((path / "out.safetensors").read_bytes(), "exported"))
    own = Net().state_dict().keys() - {"tied.weight", "head.weight"}
    assert own < load_file(path / "out.safetensors").keys() <= Net().state_dict().keys()
    for form in ("both", "plain"):
        (path / "evaluations.jsonl").unlink(missing_ok=True)
        assert follow(path, once=True, task=Small(form)) == 0
        assert len((path / "evaluations.jsonl").read_text().splitlines()) == 1
    assert not list(path.rglob("*_orig_mod*"))


def as_earlier_versions_wrote_it(path: Path) -> None:
    """Rename the tensors in a run of a model in the form `both` to the names of its own state dict."""
    own = FORMS["both"]()
    names = dict(zip(Net().state_dict(), own.state_dict(), strict=True))

    def renamed(key: str) -> str:
        return "".join(names.get(part, part) for part in re.split(r"(/|:|\.\.)", key))

    saved = json.loads((path / "config.json").read_text())
    for tensor in saved["plan"]["tensors"]:
        tensor[0] = names[tensor[0]]
    for group in saved["parameter_groups"]:
        group["params"] = [names[name] for name in group["params"]]
    (path / "config.json").write_text(json.dumps(saved))
    for root in (path / checkpoint.CHECKPOINTS).glob("step-*"):
        manifest = json.loads((root / checkpoint.MANIFEST).read_text())
        manifest["plan"] = state_names.digest(Plan.from_dict(saved["plan"]))
        for name in manifest["files"]:
            with safe_open(root / name, "pt") as file:
                values = {renamed(key): file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
                metadata = {renamed(key): renamed(value) for key, value in (file.metadata() or {}).items()}
            save_file(values, root / name, metadata or None)
            content = (root / name).read_bytes()
            manifest["files"][name] = {"bytes": len(content), "xxh3_128": xxhash.xxh3_128_hexdigest(content)}
        (root / checkpoint.MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize("kind", SETTINGS)
def test_a_run_of_an_earlier_version_goes_on_in_either_form(tmp_path, unbroken, kind) -> None:
    path = tmp_path / "run"
    assert train(path, "both", 2, kind) == 0
    as_earlier_versions_wrote_it(path)
    with safe_open(path / checkpoint.CHECKPOINTS / "step-00000002" / checkpoint.MODEL, "pt") as file:
        assert "_orig_mod.body._orig_mod.0.weight" in file.keys()  # noqa: SIM118
    for form in ("both", "plain"):
        shutil.copytree(path, tmp_path / form)
        assert train(tmp_path / form, form, 4, kind, resume=True) == 0
        assert files(tmp_path / form, 4) == files(unbroken[kind], 4)
        assert "replanned" not in events(tmp_path / form)
    export(path, tmp_path / "out.safetensors", None)
    Net().load_state_dict(parse((tmp_path / "out.safetensors").read_bytes(), "exported"))


def test_names_that_clash_stay_as_they_are() -> None:
    model = Net()
    model.body._orig_mod = nn.Linear(6, 6)
    model.body.weight = nn.Parameter(torch.zeros(6, 6))
    assert [name for name, _ in tensor_names.parameters(model)] == [name for name, _ in model.named_parameters()]
    assert tensor_names.to_load(tensor_names.state(model), model).keys() == model.state_dict().keys()


def test_the_state_of_a_hook_has_plain_names_and_takes_others() -> None:
    state, _ = ddp.comm_hook("topk", model=FORMS["both"]())
    state.load_state_dict({"step": 1, "buckets": [["_orig_mod.head._orig_mod.weight", "_orig_mod.head._orig_mod.bias"]]})
    assert state.start()["buckets"] == [["head.weight", "head.bias"]]
    assert {*state._names.values()} == {name for name, _ in Net().named_parameters()}
