"""Delayed links between emulated hosts; netlab.sh --rate RATE,ROUND_TRIP runs this in its switch's network namespace.

delay_forwarder.py SECONDS COUNT      make COUNT pairs of devices, portI and farI; forward frames within each pair, SECONDS later

The program prints a line when the devices exist, and forwards frames until a device is removed. farI may be moved to another
namespace.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import struct
import sys
import time
from collections import deque

# linux/if_tun.h: a device of whole Ethernet frames, each preceded by a virtio_net_hdr. With this header, the kernel may pass
# large TCP segments in one piece, as it does to a network card that cuts them
_SET_DEVICE, _SET_OFFLOAD = 0x400454CA, 0x400454D0
_TAP, _NO_INFORMATION, _VIRTIO_HEADER = 0x0002, 0x1000, 0x4000
_CHECKSUM, _LARGE_IPV4, _LARGE_IPV6 = 1, 2, 4
_LARGEST = 1 << 17  # bytes of a frame with its virtio header


def open_device(name: str) -> int:
    """Make the device `name` in this namespace, and return its descriptor."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _SET_DEVICE, struct.pack("16sH", name.encode(), _TAP | _NO_INFORMATION | _VIRTIO_HEADER))
    fcntl.ioctl(device, _SET_OFFLOAD, _CHECKSUM | _LARGE_IPV4 | _LARGE_IPV6)
    return device


def forward(across: dict[int, int], seconds: float) -> None:
    """Write each frame `seconds` later to the device that `across` pairs with its own, until a device is removed."""
    waiting = {device: deque[tuple[float, bytes]]() for device in across}
    while True:
        due = min((queue[0][0] for queue in waiting.values() if queue), default=None)
        readable, _, _ = select.select(list(across), [], [], None if due is None else max(0.0, due - time.monotonic()))
        now = time.monotonic()
        for device in readable:
            try:
                waiting[across[device]].append((now + seconds, os.read(device, _LARGEST)))
            except OSError as error:
                if error.errno == errno.EBADFD:
                    return
        for device, queue in waiting.items():
            while queue and queue[0][0] <= now:
                write(device, queue.popleft()[1])


def write(device: int, frame: bytes) -> None:
    """Write a frame. If the device is down or its queue is full, drop the frame, as a network does."""
    try:
        os.write(device, frame)
    except OSError:
        return


def main(seconds: float, count: int) -> None:
    """Make the devices, print a line, and forward."""
    across = dict[int, int]()
    for number in range(1, count + 1):
        near, far = open_device(f"port{number}"), open_device(f"far{number}")
        across[near], across[far] = far, near
    print("ready", flush=True)
    forward(across, seconds)


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
