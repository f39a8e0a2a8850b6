"""Python exceptions of one worker: the others go on without it, or the job ends after a checkpoint; its traceback is shown."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from psnode.config import Config
from psnode.errors import DivergedError, PsnodeError
from psnode.exchange.shard.remote.shard_server import ShardServer
from psnode.jobs.job import run
from psnode.protocol.wire import Frame
from psnode.records import checkpoint
from psnode.records.history import violations
from psnode.records.metrics import read_records
from psnode.tasks.classification import Classification

HERE = Path(__file__).name


class Torn:
    """Data whose batches cannot be read from batch number `first` on."""

    def __init__(self, data: Any, first: int) -> None:
        self.data, self.first, self.count = data, first, 0

    def __len__(self) -> int:
        return len(self.data)

    def batch(self, indices: Any, rng: Any) -> Any:
        self.count += 1
        if self.count >= self.first:
            raise OSError(5, "the disk of this host is broken")  # here
        return self.data.batch(indices, rng)


LINE = next(number for number, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.endswith("# here"))


class Fails(Classification):
    """A task on digits. On worker 2 the data cannot be read from batch `first` on; if `raises` is given, the loss raises
    this error instead.
    """

    def __init__(self, raises: Callable[[], BaseException] | None = None, first: int = 5) -> None:
        super().__init__("LeNet", "digits", seed=1)
        self.raises, self.first, self.count = raises, first, 0

    def train_data(self) -> Any:
        data = super().train_data()
        mine = threading.current_thread().name == "worker-2" and self.raises is None
        return Torn(data, self.first) if mine else data

    def loss(self, model: torch.nn.Module, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if self.raises is not None and threading.current_thread().name == "worker-2":
            self.count += 1
            if self.count == self.first:
                raise self.raises()
        return super().loss(model, batch)


def config(train_dir: Path, **changed: Any) -> Config:
    settings = {"scheme": "qsgd", "feedback": "ef", "batch_size": 8, "max_steps": 10, "eval_freq": 0, "local": 3, "lr": 0.02}
    settings |= {"threads": 1, "tensorboard": False, "record_history": True, "hash_every": 1}
    return Config(train_dir=train_dir, **{**settings, **changed})


def events(train_dir: Path) -> list[tuple[str, int | None]]:
    return [(event["event"], event["rank"]) for event in read_records(train_dir / "events.jsonl")]


def test_the_others_go_on_without_a_worker_whose_data_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(config(tmp_path), Fails()) == 0
    assert events(tmp_path) == [("lost", 2)]
    [told] = read_records(tmp_path / "events.jsonl")
    assert "OSError: [Errno 5] the disk of this host is broken" in told["reason"]
    assert f"{HERE}:{LINE} in batch" in told["reason"]
    contributing = [record["contributing"] for record in read_records(tmp_path / "metrics.jsonl")]
    assert contributing == [3] * 4 + [2] * 6
    shown = capsys.readouterr().err
    assert f'{HERE}", line {LINE}, in batch' in shown
    assert "6 of 10 updates lack the gradient of one or more of 3 workers" in shown.splitlines()[-1]
    assert violations(tmp_path) == []


@pytest.mark.parametrize("raises", [MemoryError, lambda: torch.OutOfMemoryError("no room"), lambda: SystemExit(3), StopIteration])
def test_whatever_a_task_raises_is_the_end_of_one_worker(tmp_path: Path, raises: Callable[[], BaseException]) -> None:
    assert run(config(tmp_path), Fails(raises)) == 0
    assert events(tmp_path) == [("lost", 2)]


LAUNCH = """CUDA error: unspecified launch failure
Search for `cudaErrorLaunchFailure' in https://docs.nvidia.com/cuda/cuda-runtime-api for more information.
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
FULL = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.77 GiB of which 1.20 GiB is free. "
    "Of the allocated memory 14.00 GiB is allocated by PyTorch, and 1.00 MiB is reserved by PyTorch but unallocated."
)
LOWER = "lower --batch-size, with more --batches-per-step, take --precision bf16, or put fewer workers there"


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("raises", "told"),
    [
        (lambda: torch.AcceleratorError(LAUNCH), "the device has failed: .*dmesg.*CUDA error: unspecified launch failure, "),
        (lambda: RuntimeError(LAUNCH), "the device has failed: .*dmesg.*CUDA error: unspecified launch failure, "),
        (lambda: RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), r"the device has failed: .*CUDNN_STATUS_"),
        (lambda: torch.OutOfMemoryError(FULL), rf"out of memory: {LOWER} .*Tried to allocate 2.00 GiB.* 1.20 GiB is free, "),
        (lambda: RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), f"out of .*{LOWER}"),
        (MemoryError, rf"out of memory: {LOWER} \(MemoryError, "),
    ],
)
def test_a_device_that_fails_or_is_full_is_the_end_of_one_worker_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], raises: Callable[[], BaseException], told: str
) -> None:
    assert run(config(tmp_path), Fails(raises)) == 0
    assert events(tmp_path) == [("lost", 2)]
    assert json.loads((tmp_path / "summary.json").read_bytes())["steps"] == 10
    [event] = read_records(tmp_path / "events.jsonl")
    assert re.fullmatch(rf"{told}.*{HERE}:\d+ in loss\)", event["reason"])
    shown = capsys.readouterr().err
    assert "Traceback" not in shown and len([line for line in shown.splitlines() if "rank 2" in line]) == 1


def test_more_memory_than_there_is_ends_a_worker_in_one_line(tmp_path: Path) -> None:
    """Check the reported reason if a worker requests more memory on the CPU than any address space holds, so that torch
    raises its own error.
    """

    def too_much() -> BaseException:
        torch.empty(1 << 60)
        raise AssertionError("there is an exbibyte of memory")

    assert run(config(tmp_path), Fails(too_much)) == 0
    [event] = read_records(tmp_path / "events.jsonl")
    assert (event["event"], event["rank"]) == ("lost", 2)
    assert event["reason"].startswith(f"out of memory: {LOWER} (")


@pytest.mark.sweep
@pytest.mark.parametrize(
    "text",
    [
        "mat1 and mat2 shapes cannot be multiplied",
        "the replay buffer is out of memory slots",
        "CUDA error: device-side assert triggered",  # a label that is no class
        "CUDA error: no kernel image is available for execution on the device",
        "CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasSgemm(handle)`",
        "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous input.",
    ],
)
def test_other_errors_of_torch_keep_their_type_and_place_and_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    assert run(config(tmp_path), Fails(lambda: RuntimeError(text))) == 0
    [event] = read_records(tmp_path / "events.jsonl")
    assert event["reason"].startswith(f"RuntimeError: {text}")
    assert "Traceback" in capsys.readouterr().err


def test_below_the_quorum_the_job_ends_with_the_exception_behind_a_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(PsnodeError, match=rf"rank 2: OSError: .*{HERE}:{LINE} in batch.* step 5 .*--resume") as caught:
        run(config(tmp_path, min_workers=3), Fails())
    assert caught.value.exit_code == 1
    assert f'{HERE}", line {LINE}, in batch' in capsys.readouterr().err
    assert events(tmp_path) == [("lost", 2), ("quorum", None)]
    ended = json.loads((tmp_path / "summary.json").read_bytes())
    assert (ended["steps"], ended["stop_reason"], ended["exit_code"]) == (5, "failed", 1)
    newest = checkpoint.latest(tmp_path)
    assert newest is not None
    found = checkpoint.Checkpoint.open(newest)
    assert found.step == 5
    assert [found.has(checkpoint.worker_file(rank)) for rank in (1, 2, 3)] == [True, False, True]
    assert run(config(tmp_path, min_workers=3, resume=True), Fails(first=100)) == 0


def test_a_loss_that_is_not_finite_is_told_of_the_weights_and_all_ranks_not_of_who_spoke_first(tmp_path: Path) -> None:
    """Check that the error names the weights and all ranks if worker 2's gradient of step 4 is finite but far too large: all
    ranks find in step 5 that the weights are ruined.
    """
    with pytest.raises(PsnodeError) as caught:
        run(config(tmp_path, scheme="dense", feedback="none", norm_cap=0.0), Lies())
    message = str(caught.value)
    assert caught.value.exit_code == DivergedError.exit_code
    assert "published as step 4 is not finite: nan on ranks 1, 2, 3; " in message
    assert not message.startswith("rank ")


class Lies(Classification):
    """A task on digits in which worker 2 claims a gradient of -1e30 everywhere in its fourth step."""

    def __init__(self) -> None:
        super().__init__("LeNet", "digits", seed=1)
        self.count = 0

    def loss(self, model: torch.nn.Module, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        loss, outputs = super().loss(model, batch)
        if threading.current_thread().name == "worker-2":
            self.count += 1
            if self.count == 4:
                total = sum(parameter.sum() for parameter in model.parameters())
                loss = loss - (total - total.detach()) * 1e30
        return loss, outputs


class Alone(Classification):
    """A task on digits in which only worker 2's loss of the fourth step is NaN."""

    def __init__(self) -> None:
        super().__init__("LeNet", "digits", seed=1)
        self.count = 0

    def loss(self, model: torch.nn.Module, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        loss, outputs = super().loss(model, batch)
        if threading.current_thread().name == "worker-2":
            self.count += 1
            if self.count == 4:
                loss = loss * np.nan
        return loss, outputs


def test_a_loss_that_is_finite_elsewhere_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(PsnodeError) as caught:
        run(config(tmp_path), Alone())
    message = str(caught.value)
    assert caught.value.exit_code == DivergedError.exit_code
    assert "published as step 3 is not finite: nan on rank 2, finite on ranks 1, 3" in message
    assert "lower --lr" not in message


class Late(Alone):
    """The task Alone, whose loss of NaN comes only after `wait` has returned."""

    def __init__(self, wait: Callable[[], object]) -> None:
        super().__init__()
        self.wait = wait

    def loss(self, model: torch.nn.Module, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        loss, outputs = super().loss(model, batch)
        if not loss.isfinite():
            self.wait()
        return loss, outputs


def test_the_losses_of_workers_that_have_reported_before_are_known(tmp_path: Path) -> None:
    """Check the error in a mesh if the loss of NaN comes 2 s late: the master sees no gradients, so it knows of finite
    losses only from reports.
    """
    with pytest.raises(PsnodeError, match="published as step 3 is not finite: nan on rank 2, finite on ranks 1, 3:"):
        run(config(tmp_path, topology="mesh"), Late(lambda: time.sleep(2)))


def test_a_loss_that_comes_while_the_shards_are_asked_is_told_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the error still names all losses if the loss of NaN comes after a deadline, while the shards are asked
    which workers they wait for.
    """
    asked = threading.Event()
    task, obey = Late(lambda: asked.wait(60)), ShardServer._obey

    def slow(server: ShardServer, frame: Frame) -> None:
        if b"missing" in bytes(frame.body) and task.count == 4:
            asked.set()
            time.sleep(4)  # the master waits 5 s for answers
        obey(server, frame)

    monkeypatch.setattr(ShardServer, "_obey", slow)
    with pytest.raises(PsnodeError, match="published as step 3 is not finite: nan on rank 2, finite on ranks 1, 3:") as caught:
        run(config(tmp_path, topology="mesh", pause_deadline=2.0), task)
    assert caught.value.exit_code == DivergedError.exit_code
    assert asked.is_set()


class Deserted(Classification):
    """A task on digits whose data cannot be read from the batch of step `first` on. The batch that is inspected before the
    start does not count.
    """

    def __init__(self, first: int) -> None:
        super().__init__("LeNet", "digits", seed=1)
        self.first = first

    def train_data(self) -> Any:
        return _Torn(super().train_data(), self.first)


class _Torn(Torn):
    def batch(self, indices: Any, rng: Any) -> Any:
        inspected = rng.bit_generator.state == np.random.default_rng(0).bit_generator.state
        return self.data.batch(indices, rng) if inspected else super().batch(indices, rng)


@pytest.mark.parametrize(("first", "eval_freq"), [(1, 0), (5, 0), (5, 2)])
def test_a_round_that_nobody_is_left_for_makes_no_version_and_no_batch_is_skipped(
    tmp_path: Path, first: int, eval_freq: int
) -> None:
    """Check a run whose only worker fails: after a resume it ends with the weights of an undisturbed run."""
    settings = {"local": 1, "scheme": "dense", "feedback": "none", "max_steps": 8, "eval_freq": eval_freq}
    assert run(config(tmp_path / "unbroken", **settings), Deserted(100)) == 0
    with pytest.raises(PsnodeError, match=r"the disk of this host is broken.* the checkpoint of step \d is written.*--resume"):
        run(config(tmp_path / "torn", **settings), Deserted(first))
    assert run(config(tmp_path / "torn", **settings, resume=True), Deserted(100)) == 0
    ended = [json.loads((tmp_path / name / "summary.json").read_bytes()) for name in ("unbroken", "torn")]
    assert [record["contributing"] for record in read_records(tmp_path / "torn" / "metrics.jsonl")] == [1] * 8
    assert ended[0]["model_hash"] == ended[1]["model_hash"]
