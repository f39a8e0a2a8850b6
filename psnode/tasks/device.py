"""Devices on which torch computes."""

from __future__ import annotations

import re
from collections.abc import Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from typing import TYPE_CHECKING, Any

from psnode.errors import ConfigurationError, DeviceError, location
from psnode.task import Batch

if TYPE_CHECKING:
    import torch

_FULL = re.compile(r"(CUDA|HIP|XPU|MPS)\b.*\bout of memory|(CUDA|cuDNN) error: \w+_ALLOC_FAILED|.*DefaultCPUAllocator: ")
_FAILED = re.compile(  # other errors are faults of the program: a failed assertion, a wrong size, a build for other devices
    r"(CUDA|CUDA driver|cuDNN|HIP) error: (an illegal memory|misaligned address|unknown error|unspecified launch failure"
    r"|the launch timed out|uncorrectable ECC|hardware stack|an illegal instruction|device busy|.*unavailable"
    r"|\w+_(EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR))"
)


def choose_device(enable_gpu: bool, local_rank: int = 0, flag: str = "--enable-gpu") -> torch.device:
    """Return the CPU, or the CUDA device of this rank, which becomes the current device of the calling thread.

    The ranks of a host use its devices in turn, and share them if there are more ranks than devices. On the master's host,
    the master is local rank 0, whose device is device 0. If the master computes on the CPU, other ranks use this device only
    if there are more ranks than devices. Raises ConfigurationError if CUDA is missing although `flag` requests it.
    """
    import torch

    if not enable_gpu:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigurationError(f"{flag}: this torch sees no CUDA device; leave the flag out, or run psnode doctor")
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


@contextmanager
def device_errors(lower: str) -> Iterator[None]:
    """Turn torch's errors inside the context into a DeviceError if they report exhausted memory or a failed device.

    `lower`: text that names the settings to lower if memory is exhausted.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if message := _meaning(error, lower):
            raise DeviceError(message) from error
        raise


def _meaning(error: RuntimeError | MemoryError, lower: str) -> str:
    """Return one line for the user about an error of memory or of the device; empty for other errors.

    torch reports failures of CUDA, with lines of advice, as RuntimeError or its subclasses OutOfMemoryError and AcceleratorError.
    """
    import torch

    first = next(iter(str(error).strip().splitlines()), type(error).__name__).partition(" Of the allocated memory")[0]
    told = f"{first.rstrip('.')}, {where}" if (where := location(error)) else first.rstrip(".")
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or _FULL.match(first):
        return f"out of memory: lower {lower} ({told})"
    if _FAILED.match(first):
        return f"the device has failed: CUDA_LAUNCH_BLOCKING=1 names the operation, dmesg a fault of the hardware ({told})"
    return ""


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return `batch` with its tensors, including those inside tuples, lists and mappings, on `device`."""
    import torch

    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, MutableMapping):
        found = copy(batch)
        found.update((key, to_device(value, device)) for key, value in batch.items())
        return found
    if isinstance(batch, (tuple, list)):
        return type(batch)(to_device(value, device) for value in batch)
    return batch


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which forward passes compute in `precision`, fp32 or bf16. Run backward passes outside the context.

    Raises ConfigurationError for a device without bf16.
    """
    import torch

    if precision == "fp32":
        return nullcontext()
    if device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise ConfigurationError(f"--precision bf16 is not supported by {torch.cuda.get_device_name(device)}: leave it out")
    return torch.autocast(device.type, torch.bfloat16)
