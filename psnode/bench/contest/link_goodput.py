"""Goodput in Mbit/s between two emulated hosts; netlab.sh runs this program on both hosts.

link_goodput.py send|receive ADDRESS BYTES START      ADDRESS: the receiver's address; BYTES: the number of bytes to time

The receiver prints the rate of the BYTES that follow the first START bytes. The first bytes use up the bursts of the two
shapers on the way, and let TCP's window grow.
"""

import socket
import sys
import time

PORT = 5001
SECONDS = 30.0


def send(address: str, size: int) -> None:
    """Send `size` bytes to `address`, once a receiver listens."""
    end = time.monotonic() + SECONDS
    while True:
        try:
            link = socket.create_connection((address, PORT), timeout=SECONDS)
            break
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)
    block = bytes(1 << 16)
    for start in range(0, size, len(block)):
        link.sendall(block[: size - start])
    link.close()


def receive(address: str, start: int) -> float:
    """Return the rate in Mbit/s of the bytes that follow the first `start` bytes, until the sender closes the connection."""
    with socket.create_server((address, PORT)) as server:
        server.settimeout(SECONDS)
        link, _ = server.accept()
    link.settimeout(SECONDS)
    block = bytearray(1 << 16)
    got, marks = 0, list[tuple[float, int]]()
    while count := link.recv_into(block):
        got += count
        if got >= start:
            marks.append((time.perf_counter(), got))
    (began, first), (ended, last) = marks[0], marks[-1]
    return (last - first) * 8e-6 / (ended - began)


if __name__ == "__main__":
    role, where, timed, first = sys.argv[1:]
    if role == "send":
        send(where, int(first) + int(timed))
    else:
        print(f"{receive(where, int(first)):.1f}")
