"""Code in docs is run: classes in a training, the hook under DDP, cheap commands. Manifests are checked for their structure."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
import yaml
from click.testing import CliRunner
from safetensors.torch import load_file
from torch import nn

import psnode
from psnode.cli import app
from psnode.jobs.planning.ddp_overhead import lone_group
from psnode.report.run import read
from psnode.task import Task
from tests.test_docs import PAGES, PYTHON, check, commands, python_blocks

ROOT = Path(__file__).resolve().parents[1]


class Sequences:
    """64 rows of 4 words out of 12, with one of 3 labels that depends on the first word."""

    def __init__(self) -> None:
        self.words = torch.from_numpy(np.random.default_rng(0).integers(0, 12, (64, 4)))

    def __len__(self) -> int:
        return len(self.words)

    def batch(self, indices: Any, rng: Any) -> tuple[torch.Tensor, ...]:
        words = self.words[torch.from_numpy(indices)]
        return words, words[:, 0] % 3


class Network(nn.Module):
    """A network with every part that the pages name."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.body = nn.Embedding(12, 8), nn.Linear(8, 8)
        self.critic, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.critic(torch.relu(self.body(self.embedding(words).mean(1)))))


class Small(Task):
    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return Network()

    def train_data(self) -> Sequences:
        return Sequences()

    eval_data = train_data

    def loss(self, model: nn.Module, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        words, labels = batch
        found = model(words)
        return nn.functional.cross_entropy(found, labels), found

    def size(self, batch: Any) -> int:
        return len(batch[0])


def trained(block: str, folder: Path, **settings: Any) -> tuple[Task, dict[str, torch.Tensor], list[dict[str, Any]]]:
    """Train `class Mine(Task)` of a page for three steps, and return the task, the last weights and the records."""
    names: dict[str, Any] = {"Task": Small, "torch": torch}
    exec(compile(block, "page", "exec"), names)  # noqa: S102
    task: Task = names["Mine"]()
    config = psnode.Config(
        local=1, max_steps=3, batch_size=8, scheme="dense", threads=1, tensorboard=False, train_dir=folder, quiet=True, **settings
    )
    assert psnode.run(task, config) == 0
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return task, load_file(folder / "checkpoints" / "step-00000003" / "model.safetensors"), records


def block(page: str, holds: str) -> str:
    (found,) = [text for text in python_blocks(ROOT / "docs" / page) if holds in text]
    return found


def test_the_constraint_of_the_page_holds(tmp_path: Path) -> None:
    text = block("models.md", "def constrain")
    _, weights, _ = trained(text, tmp_path, lr=1.0)
    assert weights["embedding.weight"].norm(dim=1).max() <= 1 + 1e-6
    assert weights["critic.weight"].abs().max() == pytest.approx(0.01)


def test_the_optimizers_of_the_page_train(tmp_path: Path) -> None:
    task, weights, _ = trained(block("optimising.md", "def optimizer"), tmp_path, optimizer="task")
    first = task.model().state_dict()
    assert all(not torch.equal(weights[name], tensor) for name, tensor in first.items())
    # each of AdamW's first steps moves a bias by at most its learning rate
    assert (weights["head.bias"] - first["head.bias"]).abs().max() <= 3 * 3e-4 * 1.001


def test_the_parameter_groups_of_the_page_train(tmp_path: Path) -> None:
    text = block("optimising.md", "def parameter_groups").replace('["head.bias"]', '["head.bias", *OTHERS]')
    others = [name for name in Network().state_dict() if not name.startswith(("body", "head"))]
    task, weights, _ = trained(f"OTHERS = {others}\n{text}", tmp_path, lr=0.1, momentum=0.0)
    first = task.model().state_dict()
    moved = {name: float((weights[name] - first[name]).norm()) for name in first}
    assert 0 < moved["body.weight"] < 1e-2 * moved["head.weight"]


def test_the_schedule_of_the_page_is_the_rate_of_every_step(tmp_path: Path) -> None:
    text = block("optimising.md", "def learning_rate").replace("/ 1000", "/ 0.5")
    _, _, records = trained(text, tmp_path, lr=0.1, lr_schedule="task")
    assert [record["lr"] for record in records] == pytest.approx([0.1, 0.1 / 2**0.5, 0.1 / 4**0.5])


@pytest.fixture
def alone() -> Iterator[None]:
    """Yield with a process group that contains only this process."""
    with lone_group():
        yield


@pytest.mark.usefixtures("alone")
def test_the_hook_of_the_page_sends_a_part_and_keeps_the_rest() -> None:
    network = nn.Linear(200, 100, bias=False)
    names: dict[str, Any] = {"network": network}
    exec(compile(block("ddp.md", "import psnode.ddp"), "page", "exec"), names)  # noqa: S102
    x = torch.randn(16, 200, generator=torch.Generator().manual_seed(1))
    names["model"](x).square().sum().backward()
    sent = network.weight.grad
    assert sent is not None
    whole = torch.autograd.grad(network(x).square().sum(), network.weight)[0]
    assert names["state"].sent_bytes < 4 * whole.numel() / 12
    assert 0 < float((sent - whole).square().sum() / whole.square().sum()) < 0.1  # for a Gaussian source: slightly more than 4^-2


@pytest.mark.usefixtures("alone")
def test_the_checkpoint_of_the_page_has_what_the_hook_of_the_page_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed as dist

    monkeypatch.chdir(tmp_path)
    network = nn.Linear(200, 100, bias=False)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    names: dict[str, Any] = {"network": network, "optimizer": optimizer, "dist": dist, "torch": torch}
    exec(compile(block("ddp.md", "import psnode.ddp"), "page", "exec"), names)  # noqa: S102
    x = torch.randn(16, 200, generator=torch.Generator().manual_seed(1))
    names["model"](x).square().sum().backward()
    exec(compile(block("ddp.md", "everyone ="), "page", "exec"), names)  # noqa: S102
    assert (tmp_path / "checkpoint.pt").stat().st_size > 4 * network.weight.numel()
    kept = names["saved"]["hook"]["states"][0]["memories/residual/weight"].reshape(network.weight.shape)
    assert network.weight.grad is not None
    sent = network.weight.grad.clone()
    network.weight.grad = None
    network(x).square().sum().backward()
    torch.testing.assert_close(sent + kept, network.weight.grad)
    names["everyone"].load_state_dict(names["saved"]["hook"])


@pytest.mark.usefixtures("alone")
def test_the_records_of_the_page_are_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed as dist

    monkeypatch.chdir(tmp_path)
    network = nn.Linear(200, 10)
    batches = [(torch.randn(32, 200), torch.arange(32) % 10) for _ in range(3)]
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    names: dict[str, Any] = {"network": network, "optimizer": optimizer, "dist": dist, "F": nn.functional, "loader": batches}
    exec(compile(block("ddp.md", "import psnode.ddp"), "page", "exec"), names)  # noqa: S102
    exec(compile(block("ddp.md", "RunRecords("), "page", "exec"), names | {"test_loss": 2.0, "accuracy": 0.5})  # noqa: S102
    run = read(tmp_path / "runs" / "polar-1")
    assert (run.reached, run.best, run.best_loss, run.ended) == (3, 0.5, 2.0, "completed")
    assert run.steps.sum("uplink_bytes") == names["state"].sent_bytes


def test_the_loop_of_the_page_is_that_of_the_example() -> None:
    """Check that the page shows the example's code, which tests/mpi/test_session.py runs."""
    example = (ROOT / "examples" / "own_loop.py").read_text()
    for line in block("own-loop.md", "runs/own-loop").replace('"runs/own-loop"', "sys.argv[1]").splitlines():
        assert line in example.splitlines()


def test_every_block_of_python_is_run_by_a_test() -> None:
    """Check that the files of tests which PYTHON names exist; tests/test_docs.py compares their number with the blocks of
    each page.
    """
    for page, tests in PYTHON.items():
        for name in tests:
            assert (ROOT / "tests" / name).is_file(), f"{page}: {name}"


CHEAP = ("psnode codecs", "psnode train --help", "psnode --version")
QUICK = sorted({line for page in PAGES for line in commands(page.read_text()) if line.startswith(CHEAP)})


@pytest.mark.parametrize("command", QUICK)
def test_a_cheap_command_of_a_page_works(command: str) -> None:
    done = CliRunner().invoke(app, shlex.split(command, comments=True)[1:])
    assert done.exit_code == 0, done.output
    assert done.output


def test_there_are_cheap_commands() -> None:
    assert len(QUICK) >= 2


# only the fields in use of the operator's MPIJob resource definition
TEMPLATE = {
    "type": "object",
    "required": ["spec"],
    "properties": {"spec": {
        "type": "object", "required": ["containers"], "additionalProperties": False,
        "properties": {
            "terminationGracePeriodSeconds": {"type": "integer", "minimum": 61},
            "securityContext": {"type": "object"},
            "volumes": {"type": "array", "items": {"type": "object", "required": ["name"]}},
            "containers": {"type": "array", "minItems": 1, "items": {
                "type": "object", "required": ["name", "image"], "additionalProperties": False,
                "properties": {
                    "name": {"type": "string"}, "image": {"type": "string"},
                    "command": {"type": "array", "items": {"type": "string"}},
                    "args": {"type": "array", "items": {"type": "string"}},
                    "resources": {"type": "object"},
                    "volumeMounts": {"type": "array", "items": {"type": "object", "required": ["name", "mountPath"]}},
                },
            }},
        },
    }},
}  # fmt: skip
REPLICA = {
    "type": "object", "required": ["replicas", "template"], "additionalProperties": False,
    "properties": {"replicas": {"type": "integer"}, "restartPolicy": {"enum": ["Never", "OnFailure"]}, "template": TEMPLATE},
}  # fmt: skip
MPI_JOB = {
    "type": "object", "required": ["apiVersion", "kind", "metadata", "spec"], "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "kubeflow.org/v2beta1"}, "kind": {"const": "MPIJob"},
        "metadata": {"type": "object", "required": ["name"]},
        "spec": {
            "type": "object", "required": ["mpiReplicaSpecs"], "additionalProperties": False,
            "properties": {
                "slotsPerWorker": {"type": "integer"}, "mpiImplementation": {"enum": ["OpenMPI", "Intel", "MPICH"]},
                "sshAuthMountPath": {"type": "string"},
                "runPolicy": {
                    "type": "object", "additionalProperties": False,
                    "properties": {"cleanPodPolicy": {"enum": ["Running", "All", "None"]}, "backoffLimit": {"type": "integer"}},
                },
                "mpiReplicaSpecs": {
                    "type": "object", "required": ["Launcher", "Worker"], "additionalProperties": False,
                    "properties": {"Launcher": REPLICA, "Worker": REPLICA},
                },
            },
        },
    },
}  # fmt: skip


def test_the_job_for_kubernetes_has_the_operators_structure_and_starts_as_many_ranks_as_pods() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "kubernetes.md").read_text(), re.S)
    job = yaml.safe_load(text)
    jsonschema.validate(job, MPI_JOB)
    roles = job["spec"]["mpiReplicaSpecs"]
    for role in roles.values():
        pod = role["template"]["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]} <= volumes
    (script,) = roles["Launcher"]["template"]["spec"]["containers"][0]["args"]
    (line,) = re.findall(r"exec (psnode .*)", script)
    words = shlex.split(line.replace("$resume", ""))
    check(words)
    assert roles["Worker"]["replicas"] == job["spec"]["slotsPerWorker"] * (1 + int(words[words.index("-n") + 1]))
    grace = roles["Launcher"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace > float(words[words.index("--kill-after") + 1])


def test_the_image_for_ssh_configures_what_the_job_names() -> None:
    """Check that the folder of keys, sshd's file and the user agree on both pages."""
    (image,) = re.findall(r"```dockerfile\n(.*?)```", (ROOT / "docs" / "containers.md").read_text(), re.S)
    (text,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "kubernetes.md").read_text(), re.S)
    spec = yaml.safe_load(text)["spec"]
    assert f"AuthorizedKeysFile {spec['sshAuthMountPath']}/authorized_keys" in image
    assert spec["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["args"][-1] in image
    assert textwrap.dedent(image).startswith("FROM psnode\n")
    assert image.count("Port 2222") == 2  # once for the server and once for its clients
