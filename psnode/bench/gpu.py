"""`psnode bench gpu`: speed of codecs on a CUDA device relative to a copy on the device, and equality with the host's payloads.

Every codec with device kernels, except spectral codecs, processes arrays of N(0,1) on the device in up to four ways: encode,
encode that overwrites its input with the error, decode, and decode and add. Codecs that select coordinates wait for the host
during their work. So their encoding is timed until the payload is on the host, and their decoding begins with a payload on the
host. The same run measures codecs of other programs, which consist of torch's operations (psnode.bench.gpu_peers). The share of
an action is the rate at which it moves bytes (float32 values and payload), divided by the rate of a copy.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from psnode.bench.gpu_peers import Peer, peers
from psnode.bench.hardware import hardware
from psnode.bench.inputs import gaussian
from psnode.bench.saving import save
from psnode.codecs import available, get_codec
from psnode.codecs.rng import Key
from psnode.errors import ConfigurationError

if TYPE_CHECKING:
    import torch

    from psnode.codecs.device.checks import Verdict

KEY = Key.derive(1, "gpu")
ACTIONS = ("encode", "error", "decode", "decode_add")
FLOATS = {"encode": 1, "error": 2, "decode": 1, "decode_add": 2}  # float32 arrays read or written, in addition to the payload
REPEATS = 15
_CALLS = 5  # calls between two CUDA events
_UNITS = 5 * 512  # a number of values that fills complete units of every packing


def run(specs: Sequence[str], size: int, repeats: int, device: torch.device) -> dict[str, Any]:
    """Measure `specs` on `device`; without specs, all codecs with kernels except spectral ones. Return the figures.

    `rows`: for each spec `equal`, true if the device's payload equals the host's, or a `problem`. For each action that was
    measured a row also has the `speed` (bytes of float32 per second) and its `share` of `copy`, the bytes per second that a
    copy reads and writes. `peers`: speeds and shares of other programs' codecs in encode and decode. Raises ConfigurationError
    for a spec without kernels, and if CuPy is missing.
    """
    import torch

    from psnode.codecs.device.checks import check_all
    from psnode.codecs.device.cupy.row_kernels import DeviceIdentity
    from psnode.codecs.device.spectral import is_spectral

    codecs = [get_codec(spec) for spec in specs or available()]
    if not specs:
        codecs = [codec for codec in codecs if not is_spectral(codec)]
    elif spectral := [repr(codec) for codec in codecs if is_spectral(codec)]:
        raise ConfigurationError(f"{', '.join(spectral)}: python -m studies.atomo_device measures it")
    verdicts = check_all(codecs, device, anew=True)
    if specs and len(verdicts) < len(specs):
        without = set(map(repr, codecs)) - {verdict.spec for verdict in verdicts}
        raise ConfigurationError(f"{', '.join(sorted(without))}: no kernels for a device, so the host codes (docs/gpu.md)")
    values = gaussian(max(1, size // _UNITS) * _UNITS).flat
    x = torch.tensor(values, device=device)
    target = torch.empty_like(x)
    copy = 2 * x.nbytes / _seconds(lambda: target.copy_(x), repeats)
    rows = [_row(verdict, values, x, target, repeats, copy) for verdict in verdicts]
    machine = {**hardware(), **DeviceIdentity.of(device.index or 0)._asdict(), "torch": torch.__version__}
    others = [] if specs else [_peer(peer, x, repeats, copy) for peer in peers()]
    return {**machine, "size": values.size, "repeats": repeats, "copy": copy, "rows": rows, "peers": others}


def _peer(peer: Peer, x: torch.Tensor, repeats: int, copy: float) -> dict[str, Any]:
    """Measure a codec of another program."""
    parts = peer.encode(x)
    payload = sum(part.nbytes for part in parts)
    row: dict[str, Any] = {"name": peer.name, "payload": payload}
    actions: dict[str, Callable[[], object]] = {
        "encode": lambda: peer.encode(x),
        "decode": lambda: peer.decode(parts, x.numel()),
    }
    for name, action in actions.items():
        seconds = _seconds(action, repeats)
        row[name] = {"speed": x.nbytes / seconds, "share": (x.nbytes + payload) / seconds / copy}
    return row


def _row(
    verdict: Verdict, values: np.ndarray, x: torch.Tensor, target: torch.Tensor, repeats: int, copy: float
) -> dict[str, Any]:
    """Measure one codec. `x` holds `values` on the device; `target` is overwritten."""
    from psnode.codecs.device.change import ChangeOfEntries
    from psnode.codecs.device.row_coder import DeviceCoder

    if verdict.on_device is None:
        return {"spec": verdict.spec, "equal": False, "problem": verdict.problem}
    codec, key = get_codec(verdict.spec), np.array(KEY.words, np.uint64)
    encoder = verdict.on_device.encoder(values.shape)
    encoder.encode(x, key)
    expected, found = codec.encode(values, KEY).body, np.zeros(codec.max_nbytes(values.shape), np.uint8)
    used = encoder.take(found)
    row: dict[str, Any] = {"spec": verdict.spec, "equal": expected.tobytes() == found[:used].tobytes(), "payload": used}
    target.copy_(x)
    actions: dict[str, Callable[[], object]]
    if isinstance(encoder, DeviceCoder):
        actions = {
            "encode": lambda: encoder.encode(x, key),
            "error": lambda: encoder.encode(target, key, target),
            "decode": lambda: encoder.decode(target),
            "decode_add": lambda: encoder.decode(target, 0.25, adding=True),
        }
    else:
        change, payload = ChangeOfEntries(codec, target), codec.encode(values, KEY)

        def coded(error: torch.Tensor | None) -> None:
            encoder.encode(x, key, error)
            encoder.take(found)

        actions = {"encode": lambda: coded(None), "error": lambda: coded(target), "decode_add": lambda: change.add(payload)}
    for name, action in actions.items():
        seconds = _seconds(action, repeats)
        row[name] = {"speed": x.nbytes / seconds, "share": (FLOATS[name] * x.nbytes + used) / seconds / copy}
    return row


def _seconds(action: Callable[[], object], repeats: int) -> float:
    """Return the seconds of one call of `action`, as a median of `repeats` measurements by CUDA events.

    One call to warm up comes first.
    """
    import torch

    action()
    taken = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        for _ in range(_CALLS):
            action()
        end.record()
        end.synchronize()
        taken.append(begin.elapsed_time(end) / 1000 / _CALLS)
    return float(statistics.median(taken))


def markdown(result: dict[str, Any]) -> str:
    """Return the result as a page for docs/results."""
    heads = " | ".join(f"{action} | share" for action in ACTIONS)
    lines = [f"| codec | the processor's bytes | {heads} |", "|---|---|" + "---:|" * (2 * len(ACTIONS))]
    for row in result["rows"]:
        cells = [f"{row[a]['speed'] / 1e9:.0f} | {row[a]['share']:.2f}" if a in row else " | " for a in ACTIONS]
        lines.append(f"| {row['spec']} | {'yes' if row['equal'] else 'no'} | {' | '.join(cells)} |")
    others = [
        f"| {row['name']} | {row['payload']:,} | "
        + " | ".join(f"{row[a]['speed'] / 1e9:.0f} | {row[a]['share']:.2f}" for a in ("encode", "decode"))
        + " |"
        for row in result["peers"]
    ]
    if others:
        lines += ["", "GRACE's codecs, by torch's operations:", "", "| codec | bytes | encode | share | decode | share |"]
        lines += ["|---|---:|---:|---:|---:|---:|", *others]
    problems = [f"{row['spec']}: {row['problem']}" for row in result["rows"] if "problem" in row]
    head = [
        f"{result['date']}, {result['device']} (sm_{result['capability']}), driver {result['driver']}, NVRTC {result['nvrtc']}, "
        f"CuPy {result['cupy']}, torch {result['torch']}; host: {result['cpu']}, {result['cores']} cores.",
        f"{result['size']:,} values of N(0,1). GB/s of float32, the median of {result['repeats']}; share: of a copy "
        f"on the device, {result['copy'] / 1e9:.0f} GB/s read and written, by bytes moved.",
    ]
    return "\n".join([*head, "", *lines, *(["", *problems] if problems else [])]) + "\n"


def main(specs: Sequence[str], size: int, repeats: int, device: int, json_file: Path | None) -> int:
    """Measure, print the table and write JSON. Returns 1 if a payload differs from the host's, otherwise 0.

    Raises ConfigurationError as `run` and `cuda` do.
    """
    result = run(specs, size, repeats, cuda(device))
    print(markdown(result))
    save(result, json_file)
    return 0 if all(row["equal"] for row in result["rows"]) else 1


def cuda(number: int) -> torch.device:
    """Make CUDA device `number` current and return it. Raises ConfigurationError if it does not exist."""
    import torch

    if number >= torch.cuda.device_count():
        raise ConfigurationError(f"--device {number}: this torch sees {torch.cuda.device_count()} CUDA devices (psnode doctor)")
    device = torch.device("cuda", number)
    torch.cuda.set_device(device)
    return device
