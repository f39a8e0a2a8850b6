"""Whole runs in one process, over the loopback transport: weights, files and resumption."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import shutil
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import psnode
from psnode.config import Config
from psnode.config.schemes import SCHEMES
from psnode.errors import CheckpointError, ConfigurationError, DivergedError, PsnodeError
from psnode.evaluator import follow
from psnode.jobs.job import run
from psnode.records import checkpoint
from psnode.records.directory import claim
from psnode.records.metrics import read_records
from psnode.tasks.classification import Classification

CODED = ["identity", "qsgd", "atomo"]


def config(train_dir: Path, **changed: Any) -> Config:
    settings = {"keep_last": 0, "scheme": "identity", "batch_size": 8, "max_steps": 12, "eval_freq": 5, "local": 2, "lr": 0.02}
    settings |= {"threads": 1, "tensorboard": False}
    return Config(train_dir=train_dir, **{**settings, **changed})


def summary(train_dir: Path) -> dict[str, Any]:
    return dict(json.loads((train_dir / "summary.json").read_bytes()))


def records(train_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (train_dir / "metrics.jsonl").read_text().splitlines()]


def final_weights(train_dir: Path) -> dict[str, torch.Tensor]:
    newest = checkpoint.latest(train_dir)
    assert newest is not None
    return checkpoint.Checkpoint.open(newest).tensors(checkpoint.MODEL)


def contents(train_dir: Path) -> dict[Path, bytes]:
    """Return all files of the directory, except the mark by which the workers of one start of the job recognise it."""
    return {path: path.read_bytes() for path in train_dir.rglob("*") if path.is_file() and path.name != ".mark"}


def sgd(steps: int, batch: int, lr: float) -> dict[str, torch.Tensor]:
    """Train LeNet on digits in a plain torch loop in one process, on the batches of the shards in one epoch;
    return the weights.
    """
    task = Classification("LeNet", "digits", seed=1)
    torch.manual_seed(1)
    model = task.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    data = task.train_data()
    order = np.random.Generator(np.random.PCG64(np.random.SeedSequence((1, int.from_bytes(b"shuf", "big"), 0)))).permutation(
        len(data)
    )
    for step in range(steps):
        loss, _ = task.loss(model, data.batch(order[step * batch : (step + 1) * batch], None))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return dict(model.state_dict())


def test_one_worker_is_plain_sgd_bit_for_bit(tmp_path: Path) -> None:
    run(config(tmp_path / "run", local=1, batch_size=16, max_steps=20))
    expected = sgd(20, 16, 0.02)
    found = final_weights(tmp_path / "run")
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.parametrize("group_by", ["layer", "bytes", "model"])
def test_three_workers_follow_sgd_on_the_joint_batch_to_rounding(tmp_path: Path, group_by: str) -> None:
    run(config(tmp_path / "run", local=3, batch_size=8, max_steps=20, group_by=group_by))
    expected = sgd(20, 24, 0.02)
    found = final_weights(tmp_path / "run")
    for name, value in expected.items():
        assert float((found[name] - value).abs().max()) < 1e-5 * max(1.0, float(value.abs().max())), name


def test_gradient_accumulation_is_a_larger_batch(tmp_path: Path) -> None:
    run(config(tmp_path / "run", local=1, batch_size=8, batches_per_step=3, max_steps=20))
    expected = sgd(20, 24, 0.02)
    found = final_weights(tmp_path / "run")
    for name, value in expected.items():
        assert float((found[name] - value).abs().max()) < 1e-5 * max(1.0, float(value.abs().max())), name


@pytest.mark.long
@pytest.mark.parametrize("scheme", CODED)
def test_two_runs_with_three_workers_end_alike(tmp_path: Path, scheme: str) -> None:
    for name in ("a", "b"):
        run(config(tmp_path / name, local=3, scheme=scheme))
    assert summary(tmp_path / "a")["model_hash"] == summary(tmp_path / "b")["model_hash"]


def test_the_seed_changes_the_run(tmp_path: Path) -> None:
    for seed in (1, 2):
        run(config(tmp_path / str(seed), seed=seed))
    assert summary(tmp_path / "1")["model_hash"] != summary(tmp_path / "2")["model_hash"]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("scheme", "feedback"),
    [(scheme, rule) for scheme in CODED for rule in ("none", "ef") if (scheme, rule) != ("identity", "ef")],
)
@pytest.mark.parametrize("downlink", ["dense", "bf16"])
def test_a_resumed_run_ends_as_the_unbroken_one(tmp_path: Path, scheme: str, feedback: str, downlink: str) -> None:
    changed = {"scheme": scheme, "feedback": feedback, "downlink": downlink}
    run(config(tmp_path / "whole", **changed))
    run(config(tmp_path / "parts", **changed, max_steps=7))
    run(config(tmp_path / "parts", **changed, max_steps=10, resume=True))
    run(config(tmp_path / "parts", **changed, resume=True))
    assert summary(tmp_path / "parts")["model_hash"] == summary(tmp_path / "whole")["model_hash"]
    assert [record["step"] for record in records(tmp_path / "parts")] == list(range(1, 13))
    losses = [[record["loss"] for record in records(tmp_path / name)] for name in ("parts", "whole")]
    assert losses[0] == losses[1]


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["lss:refit=4", "topk:ratio=0.2+lss:refit=4,rate=1+ans"])
def test_a_resumed_run_goes_on_with_the_codebooks_it_had(tmp_path: Path, scheme: str) -> None:
    """Check that a resumed run continues with its codebooks, if it was stopped one step or three steps after they were fitted."""
    changed: dict[str, Any] = {"scheme": "topk", "codec": scheme, "feedback": "ef"}
    run(config(tmp_path / "whole", **changed))
    run(config(tmp_path / "parts", **changed, max_steps=6))
    run(config(tmp_path / "parts", **changed, max_steps=8, resume=True))
    run(config(tmp_path / "parts", **changed, resume=True))
    assert summary(tmp_path / "parts")["model_hash"] == summary(tmp_path / "whole")["model_hash"]


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_every_optimizer_resumes_exactly(tmp_path: Path, optimizer: str) -> None:
    changed = {"optimizer": optimizer, "weight_decay": 0.01, "lr": 0.001}
    run(config(tmp_path / "whole", **changed))
    run(config(tmp_path / "parts", **changed, max_steps=7))
    run(config(tmp_path / "parts", **changed, resume=True))
    assert summary(tmp_path / "parts")["model_hash"] == summary(tmp_path / "whole")["model_hash"]


def test_batch_norm_and_augmentation_resume_exactly(tmp_path: Path) -> None:
    changed = {
        "network": "ResNet20",
        "dataset": "synthetic",
        "synthetic_shape": (3, 16, 16),
        "synthetic_examples": 256,
        "max_steps": 6,
        "eval_freq": 3,
    }
    run(config(tmp_path / "whole", **changed))
    run(config(tmp_path / "parts", **{**changed, "max_steps": 3}))
    run(config(tmp_path / "parts", **changed, resume=True))
    whole, parts = final_weights(tmp_path / "whole"), final_weights(tmp_path / "parts")
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    assert int(next(value for name, value in whole.items() if name.endswith("num_batches_tracked"))) == 6


def test_a_run_leaves_what_the_documentation_says(tmp_path: Path) -> None:
    train_dir = tmp_path / "run"
    assert run(config(train_dir, scheme="qsgd", timeline=True)) == 0
    ended = summary(train_dir)
    assert (ended["steps"], ended["stop_reason"], ended["exit_code"]) == (12, "completed", 0)
    lines = records(train_dir)
    assert [record["step"] for record in lines] == list(range(1, 13))
    assert sum(record["uplink_bytes"] for record in lines) == ended["uplink_bytes"]
    assert sum(record["downlink_bytes"] for record in lines) == ended["downlink_bytes"]
    coordinates = 431_080
    both_ways = ended["uplink_bytes"] + ended["downlink_bytes"]
    assert ended["compression_ratio"] == pytest.approx(8 * 2 * coordinates * 12 / both_ways)
    steps = [checkpoint.step_of(path) for path in checkpoint.complete(train_dir)]
    assert steps == [5, 10, 12]
    described = json.loads((train_dir / "config.json").read_bytes())
    assert described["workers"] == 2
    assert described["config"]["scheme"] == "qsgd"
    assert "torch" in described["versions"]
    machines = json.loads((train_dir / "machines.json").read_bytes())
    here = {"host": socket.gethostname(), "cores": len(os.sched_getaffinity(0))}
    assert list(machines["ranks"]) == ["0", "1", "2"]
    assert all({"host": found["host"], "cores": found["cores"]} == here for found in machines["ranks"].values())
    assert {found["arithmetic"]["aten"] for found in machines["ranks"].values()} == {torch.backends.cpu.get_cpu_capability()}
    layers = dict.fromkeys(name.split(".")[0] for name, _ in Classification("LeNet", "digits", seed=1).model().named_parameters())
    assert list(dict.fromkeys(name.split(".")[0] for name in machines["backward"])) == list(layers)[::-1]
    seconds = list(machines["backward"].values())
    assert seconds == sorted(seconds) and seconds[0] >= 0
    trace = json.loads((train_dir / "timeline.json").read_bytes())["traceEvents"]
    assert {event["pid"] for event in trace} == {0, 1, 2}
    assert {"forward_backward", "decode", "update", "downlink"} <= {event["name"] for event in trace}


def test_the_metrics_of_a_step_are_those_of_its_batches_on_the_weights_before_it(tmp_path: Path) -> None:
    """Compare the metrics with the means over 16 digits, which are computed in two backward passes of 8 digits each."""
    run(config(tmp_path / "run", local=1, batch_size=8, batches_per_step=2, max_steps=1))
    task = Classification("LeNet", "digits", seed=1)
    torch.manual_seed(1)
    model = task.model()
    seeds = np.random.SeedSequence((1, int.from_bytes(b"shuf", "big"), 0))
    order = np.random.Generator(np.random.PCG64(seeds)).permutation(len(task.train_data()))
    images, labels = task.train_data().batch(order[:16], None)
    with torch.no_grad():
        logits = model(images)
    [record] = records(tmp_path / "run")
    assert record["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(logits, labels)), rel=1e-5)
    assert record["metrics"]["top1"] == pytest.approx(float((logits.argmax(1) == labels).float().mean()))
    assert record["metrics"]["top5"] == pytest.approx(float((logits.topk(5).indices == labels[:, None]).any(1).float().mean()))


def test_bytes_of_dense_steps_are_those_of_the_weights_and_little_more(tmp_path: Path) -> None:
    run(config(tmp_path / "run", max_steps=4))
    dense = 2 * 4 * 431_080
    for record in records(tmp_path / "run")[1:3]:
        assert dense < record["uplink_bytes"] < dense * 1.001 + 2000
        assert dense < record["downlink_bytes"] < dense * 1.001 + 2000


def test_bf16_halves_the_downlink(tmp_path: Path) -> None:
    run(config(tmp_path / "run", max_steps=4, downlink="bf16"))
    assert records(tmp_path / "run")[2]["downlink_bytes"] < 2 * 2 * 431_080 * 1.001 + 2000


@pytest.mark.parametrize(
    ("scheme", "downlink"),
    [("qsgd", "topk:ratio=0.05"), ("qsgd", "qsgd:levels=7"), ("atomo", "svd:rank=3"), ("topk", "topk:ratio=0.01+qsgd:levels=7")],
)
def test_a_coded_downlink_keeps_replicas_alike_and_resumes_exactly(tmp_path: Path, scheme: str, downlink: str) -> None:
    """Check that the workers' weights have the hash of the master's after every step."""
    changed: dict[str, Any] = {"downlink": downlink, "hash_every": 1, "local": 3}
    changed |= {"codec": "topk:ratio=0.05", "feedback": "ef", "scheme": "dense"} if scheme == "topk" else {"scheme": scheme}
    run(config(tmp_path / "whole", **changed))
    run(config(tmp_path / "parts", **changed, max_steps=7))
    run(config(tmp_path / "parts", **changed, resume=True))
    assert summary(tmp_path / "parts")["model_hash"] == summary(tmp_path / "whole")["model_hash"]
    assert records(tmp_path / "whole")[5]["downlink_bytes"] < 0.25 * 3 * 4 * 431_080


@pytest.mark.sweep
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_trains_and_sends_less_than_float32(tmp_path: Path, scheme: str) -> None:
    run(config(tmp_path / "run", scheme=scheme, max_steps=6, hash_every=2))
    lines = records(tmp_path / "run")
    assert all(np.isfinite(record["loss"]) for record in lines)
    if scheme != "dense":
        assert max(record["uplink_bytes"] for record in lines[1:]) < 0.6 * 2 * 4 * 431_080


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    run(config(tmp_path / "run", eval_freq=2, keep_last=2, max_steps=9))
    assert [checkpoint.step_of(path) for path in checkpoint.complete(tmp_path / "run")] == [8, 9]


def test_a_directory_that_holds_a_run_is_not_overwritten(tmp_path: Path) -> None:
    run(config(tmp_path / "run", max_steps=2))
    before = contents(tmp_path / "run")
    with pytest.raises(ConfigurationError, match="--resume"):
        run(config(tmp_path / "run", max_steps=2))
    assert contents(tmp_path / "run") == before


def test_a_run_cannot_be_resumed_as_another(tmp_path: Path) -> None:
    run(config(tmp_path / "run", max_steps=2))
    for changed in ({"lr": 0.5}, {"scheme": "qsgd"}, {"batch_size": 4}, {"seed": 9}):
        with pytest.raises(ConfigurationError, match="resume"):
            run(config(tmp_path / "run", max_steps=4, resume=True, **changed))


def test_there_must_be_a_run_to_resume(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="holds no run"):
        run(config(tmp_path / "nothing", resume=True))
    assert not (tmp_path / "nothing").exists()


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_again(tmp_path: Path) -> None:
    run(config(tmp_path / "whole"))
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    shutil.rmtree(tmp_path / "killed" / "checkpoints")
    run(config(tmp_path / "killed", resume=True))
    assert summary(tmp_path / "killed")["model_hash"] == summary(tmp_path / "whole")["model_hash"]
    assert len(records(tmp_path / "killed")) == 12


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    run(config(tmp_path / "run"))
    before = summary(tmp_path / "run")
    assert run(config(tmp_path / "run", resume=True)) == 0
    after = summary(tmp_path / "run")
    apart = {"final_loss": None, "peak_memory_bytes": None, "worker_peak_memory_bytes": None}
    apart |= {"link_bytes": None}  # of the steps since the last start, of which there are none
    assert after["link_bytes"]["steps"] == 0
    assert {**after, **apart} == {**before, **apart}


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["model.safetensors", "worker-002.safetensors", "state/optimizer.safetensors", "manifest.json"])
@pytest.mark.parametrize("damage", ["truncate", "alter", "remove"])
def test_a_damaged_checkpoint_is_refused_and_left_as_it_is(tmp_path: Path, name: str, damage: str) -> None:
    changed: dict[str, Any] = {"feedback": "ef", "scheme": "fp16", "eval_freq": 2}
    run(config(tmp_path / "run", max_steps=3, **changed))
    (tmp_path / "run" / "checkpoints" / "latest").write_text("step-00000002")  # the records continue beyond this step
    file = tmp_path / "run" / "checkpoints" / "step-00000002" / name
    sound = file.read_bytes()
    content = bytearray(sound)
    if damage == "remove":
        file.unlink()
    elif damage == "alter":
        content[len(content) // 2] ^= 0x55
        file.write_bytes(content)
    else:
        file.write_bytes(content[: len(content) // 2])
    before = contents(tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"checkpoint|manifest"):
        run(config(tmp_path / "run", max_steps=4, resume=True, **changed))
    assert contents(tmp_path / "run") == before
    file.write_bytes(sound)
    assert run(config(tmp_path / "run", max_steps=4, resume=True, **changed)) == 0


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", b"{", "config.json cannot be read"),
        ("config.json", b'{"config": {}, "plan": {}, "workers": 2}', "config.json cannot be used"),
        ("config.json", b'{"config": [], "plan": [], "workers": 2}', "config.json cannot be used"),
        ("metrics.jsonl", b"garbage\n", "line 1 of"),
        ("checkpoints/latest", b"\xff\xff", "existing: step-00000002"),
        ("checkpoints/latest", b"step-00000009", "step-00000009 is incomplete"),
    ],
)
def test_a_damaged_record_of_the_run_is_refused_and_nothing_lost(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    run(config(tmp_path / "run", max_steps=2))
    (tmp_path / "run" / name).write_bytes(content)
    before = contents(tmp_path / "run")
    with pytest.raises(CheckpointError, match=message):
        run(config(tmp_path / "run", max_steps=4, resume=True))
    assert contents(tmp_path / "run") == before


def test_two_jobs_do_not_share_a_directory(tmp_path: Path) -> None:
    run(config(tmp_path / "run", max_steps=2))
    before = contents(tmp_path / "run")
    with (tmp_path / "run" / ".lock").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ConfigurationError, match="another job is at work"):
            run(config(tmp_path / "run", max_steps=4, resume=True))
        assert contents(tmp_path / "run") == before
    assert run(config(tmp_path / "run", max_steps=4, resume=True)) == 0


def test_a_directory_is_free_for_the_next_job_once_one_has_left_it(tmp_path: Path) -> None:
    settings = config(tmp_path / "run", max_steps=2)
    with claim(settings) as held:
        assert held.lock.is_locked
        with pytest.raises(ConfigurationError, match="another job is at work"):
            claim(settings)
    with claim(settings) as held:
        assert held.lock.is_locked


class Breaks(Classification):
    """A task whose loss raises an exception from the sixth training batch on."""

    def __init__(self) -> None:
        super().__init__("LeNet", "digits", seed=1)
        self.batches = 0

    def loss(self, model: torch.nn.Module, batch: Any) -> Any:
        if model.training:
            self.batches += 1
            if self.batches > 5:
                raise RuntimeError("no more batches")
        return super().loss(model, batch)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_run_that_fails_says_so_in_its_summary_and_its_evaluator_ends(tmp_path: Path) -> None:
    settings = config(tmp_path / "run", local=1, eval_freq=2, max_steps=20)
    with pytest.raises(PsnodeError) as caught:
        psnode.run(Breaks(), settings)
    ended = summary(tmp_path / "run")
    assert ended["exit_code"] == caught.value.exit_code
    assert ended["stop_reason"] in ("failed", "quorum") and ended["steps"] < 20
    assert follow(tmp_path / "run", interval=0.01, task=Breaks()) == 0
    assert len(list(read_records(tmp_path / "run" / "evaluations.jsonl"))) == len(checkpoint.complete(tmp_path / "run"))


def test_a_task_that_a_program_passed_is_not_taken_for_the_built_in_one(tmp_path: Path) -> None:
    settings = config(tmp_path / "run", max_steps=2)
    assert psnode.run(Classification("LeNet", "digits", seed=1), settings) == 0
    with pytest.raises(ConfigurationError, match=r"Classification, which a program passed to psnode\.run"):
        follow(tmp_path / "run", once=True)
    with pytest.raises(ConfigurationError, match="--task"):
        run(config(tmp_path / "run", max_steps=3, resume=True))
    assert follow(tmp_path / "run", once=True, task=Classification("LeNet", "digits", seed=1)) == 0
    assert psnode.run(Classification("LeNet", "digits", seed=1), replace(settings, max_steps=3, resume=True)) == 0


def test_a_loss_that_is_not_finite_ends_the_run_with_4(tmp_path: Path) -> None:
    with pytest.raises(PsnodeError, match=r"the loss on the weights published as step \d+ is not finite: |gradient is") as caught:
        run(config(tmp_path / "run", lr=1e12, max_steps=50))
    assert caught.value.exit_code == DivergedError.exit_code
    assert summary(tmp_path / "run")["stop_reason"] == "diverged"


def test_more_examples_than_there_are_cannot_be_asked_for(tmp_path: Path) -> None:
    with pytest.raises(PsnodeError, match="--batch-size") as caught:
        run(config(tmp_path / "run", batch_size=1000))
    assert caught.value.exit_code == ConfigurationError.exit_code


def test_the_ratio_falls_over_the_epochs_asked_for(tmp_path: Path) -> None:
    """Check LeNet with 431 080 coordinates, where an epoch of digits has 89 steps of 16: the ratios .25, .0625, .016 and
    .004 last 5 steps each.
    """
    run(config(tmp_path / "run", scheme="dgc", local=1, batch_size=16, max_steps=22, sparsity_warmup_epochs=20 / 89))
    sent = [record["uplink_bytes"] for record in records(tmp_path / "run")]
    levels = [sent[step] for step in (3, 8, 13, 18, 21)]
    assert all(before > 1.8 * after for before, after in itertools.pairwise(levels)), levels
    assert all(abs(sent[5 * phase] / sent[5 * phase + 4] - 1) < 0.1 for phase in range(1, 4))


def test_dgc_sends_less_than_a_270th_of_float32_at_full_sparsity(tmp_path: Path) -> None:
    """Check the bytes of gradients if a thousandth of the matrices and all vectors are sent; indices and frame headers count
    too.
    """
    run(config(tmp_path / "run", scheme="dgc", network="torchvision:resnet18", dataset="synthetic", synthetic_shape=(3, 32, 32),
               local=1, batch_size=2, max_steps=3, sparsity_warmup_epochs=0))  # fmt: skip
    coordinates = summary(tmp_path / "run")["coordinates"]
    assert coordinates > 11_000_000
    for record in records(tmp_path / "run")[1:]:
        assert 4 * coordinates / record["uplink_bytes"] > 270
