"""psnode/bench/contest/netlab.sh: isolated hosts, links that keep their rate, and nothing left afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "psnode" / "bench" / "contest" / "netlab.sh"

# Host 0 sends argv[1] bytes to host 1, which prints the number of bytes received and the seconds that this took.
TRANSFER = """
import os, socket, sys, time
if os.environ["RANK"] == "0":
    time.sleep(0.5)
    with socket.create_connection(("10.77.0.2", 6000)) as link:
        link.sendall(bytes(int(sys.argv[1])))
else:
    with socket.create_server(("10.77.0.2", 6000)) as server:
        link, _ = server.accept()
    began, got = time.perf_counter(), 0
    while count := len(link.recv(65536)):
        got += count
    print(got, time.perf_counter() - began)
"""

# Host 1 sends a secret to host 0 many times, and prints the seconds in which the connection was established. Host 0 prints the
# sender's address, True if all bytes have arrived, and True if a frame on its network interface shows the secret.
SECRET = "a gradient that nobody else may read"
FAR = """
import os, socket, sys, threading, time
secret, own, size = sys.argv[1].encode(), os.environ["MASTER_ADDR"], 2_000_000
def sniff(card, seen):
    while frame := card.recv(1 << 17):
        seen.append(frame)
if os.environ["RANK"] == "0":
    card, seen = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3)), []
    card.bind(("eth0", 0))
    threading.Thread(target=sniff, args=(card, seen), daemon=True).start()
    with socket.create_server((own, 6000)) as server:
        link, peer = server.accept()
    got = b""
    while more := link.recv(65536):
        got += more
    print(peer[0], got == secret * (size // len(secret)), any(secret in frame for frame in seen))
else:
    while True:
        began = time.perf_counter()
        try:
            link = socket.create_connection((own, 6000))
            break
        except ConnectionRefusedError:
            pass
    print("connected", time.perf_counter() - began)
    link.sendall(secret * (size // len(secret)))
"""

RANK = """
import json, os, socket
from mpi4py import MPI
world = MPI.COMM_WORLD
told = world.gather((socket.gethostname(), sorted(os.sched_getaffinity(0))))
if world.rank == 0:
    print(json.dumps(told))
"""


def eventually(fact: Callable[[], bool], looks: int = 400) -> bool:
    """Return True as soon as `fact` holds. Attempts are counted instead of seconds, since a stalled machine makes no attempts."""
    for _ in range(looks):
        if fact():
            return True
        time.sleep(0.05)
    return fact()


def output(process: subprocess.Popen[str]) -> tuple[str, str]:
    """End a lab, and return its output and errors."""
    process.kill()
    return process.communicate()


def alive(mark: str) -> list[int]:
    """Return the processes, except the script itself, whose command line contains `mark`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                line = (entry / "cmdline").read_text().replace("\0", " ")
                if mark in line and SCRIPT.name not in line:
                    found.append(int(entry.name))
    return found


def test_each_host_has_a_name_an_address_and_a_rank_of_its_own(netlab: Any) -> None:
    told = 'echo "$RANK $WORLD_SIZE $(uname -n) $(ip -o -4 address show dev eth0)"'
    done = netlab("--hosts", 3, "--rate", "none", "--each", "--", "sh", "-c", told)
    assert done.code == 0, done
    lines = [line.split() for line in sorted(done.out.splitlines())]
    assert [(rank, size) for rank, size, *_ in lines] == [("0", "3"), ("1", "3"), ("2", "3")]
    assert [line[line.index("inet") + 1] for line in lines] == ["10.77.0.1/24", "10.77.0.2/24", "10.77.0.3/24"]
    assert len({*(name for _, _, name, *_ in lines), os.uname().nodename}) == 4


def test_hosts_have_the_usual_congestion_control_whatever_this_machine_has(netlab: Any) -> None:
    told = "cd /proc/sys/net/ipv4; echo $(cat tcp_congestion_control) of $(cat tcp_allowed_congestion_control)"
    done = netlab("--hosts", 2, "--rate", "none", "--each", "--", "sh", "-c", told)
    assert done.code == 0, done
    lines = [line.split(" of ") for line in done.out.splitlines()]
    assert len(lines) == 2
    assert all(chosen == ("cubic" if "cubic" in allowed.split() else "reno") for chosen, allowed in lines)


def test_mpirun_starts_a_rank_on_every_host_and_binds_none(netlab: Any, tmp_path: Path) -> None:
    """Check that ranks are not bound to cores: if they were, as by mpirun's default for two ranks, both would run on core 0."""
    pytest.importorskip("mpi4py")
    program = tmp_path / "rank.py"
    program.write_text(RANK)
    done = netlab("--hosts", 2, "--", "mpirun", "-n", 2, sys.executable, program)
    assert done.code == 0, done
    (first, cores), (second, others) = json.loads(done.out)
    assert first != second
    assert cores == others == sorted(os.sched_getaffinity(0))


def test_a_link_is_no_faster_than_asked_and_its_packets_carry_66_bytes_of_headers(netlab: Any, tmp_path: Path) -> None:
    """Check the time and the payload bytes of a transfer at 20 Mbit/s, that is, 2.5 MB/s. The shapers of the sender and of
    the switch each let 256 KiB pass at once.
    """
    size, rate, bursts = 5_000_000, 20e6 / 8, 2 * (256 << 10)
    counters = tmp_path / "counters.json"
    done = netlab("--hosts", 2, "--rate", "20mbit", "--counters", counters, "--each", "--", sys.executable, "-c", TRANSFER, size)
    assert done.code == 0, done
    got, seconds = done.out.split()
    assert int(got) == size
    assert float(seconds) >= (size - bursts) / rate
    there, back = netlab.payload(counters)
    # besides, two packets carry 8 more bytes of options (SYN), and an ARP packet may take 42 bytes
    assert there == pytest.approx(size, abs=100)
    assert back == pytest.approx(0, abs=100)
    assert all(0 < rate < 20.5 for rate in json.loads(counters.read_text())["goodput_mbit"])


def far(done: Any) -> tuple[float, list[str]]:
    """Return the seconds until FAR's hosts connected, and the words that the receiver printed: the peer's address, True if
    the bytes were correct, and True if the secret was seen in a frame.
    """
    assert done.code == 0, done
    told = {line.split()[0] == "connected": line.split() for line in done.out.splitlines()}
    return float(told[True][1]), told[False]


def test_a_packet_and_its_answer_are_under_way_for_the_round_trip(netlab: Any) -> None:
    """Check that connecting takes at least the round trip: TCP is connected when the answer to its first packet has arrived."""
    done = netlab("--hosts", 2, "--rate", "100mbit,60ms", "--each", "--", sys.executable, "-c", FAR, SECRET)
    seconds, told = far(done)
    assert seconds >= 0.060
    assert told == ["10.77.0.2", "True", "True"]


@pytest.mark.skipif(shutil.which("wg") is None, reason="no wg: install wireguard-tools")
@pytest.mark.skipif(shutil.which("wireguard-go") is None, reason="no wireguard-go, which works without the kernel's module")
def test_in_a_private_network_nothing_is_read_on_the_way(netlab: Any) -> None:
    done = netlab("--hosts", 2, "--rate", "100mbit,20ms,wireguard", "--each", "--", sys.executable, "-c", FAR, SECRET)
    seconds, told = far(done)
    assert seconds >= 0.020
    assert told == ["10.78.0.2", "True", "False"]


def test_the_first_failure_ends_the_other_hosts_and_is_the_exit_code(netlab: Any) -> None:
    done = netlab("--hosts", 2, "--rate", "none", "--each", "--", "sh", "-c", "[ $RANK = 1 ] && exit 7; exec sleep 4711.5")
    assert done.code == 7
    assert alive("4711.5") == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_the_lab_is_ended(netlab: Any, number: int) -> None:
    process = netlab.start("--hosts", 2, "--rate", "none", "--each", "--", "sleep", f"60{number}.{os.getpid()}")
    assert eventually(lambda: len(alive(f"sleep 60{number}.{os.getpid()}")) == 2), output(process)
    assert len(netlab.namespaces(process.pid)) == 3
    process.send_signal(number)
    process.communicate(timeout=120)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert eventually(lambda: netlab.namespaces(process.pid) == [])
    assert alive(f"sleep 60{number}.{os.getpid()}") == []


def test_what_is_left_when_everything_is_killed_at_once_goes_with_the_next_lab(netlab: Any) -> None:
    """Check that the next lab removes the remains of a lab whose processes were all killed at once, as when a container ends."""
    process = netlab.start("--hosts", 2, "--rate", "none", "--each", "--", "sleep", f"607.{os.getpid()}")
    living = netlab.start("--hosts", 2, "--rate", "none", "--each", "--", "sleep", f"608.{os.getpid()}")
    assert eventually(lambda: len(alive(f"sleep 607.{os.getpid()}")) == len(alive(f"sleep 608.{os.getpid()}")) == 2)
    listed = subprocess.run(["pgrep", "-f", f"netlab.sh --sweep netlab-{process.pid}$"], capture_output=True, text=True)
    for sweeper in map(int, listed.stdout.split()):
        os.kill(sweeper, signal.SIGKILL)
    process.kill()
    process.wait(120)
    assert len(netlab.namespaces(process.pid)) == 3
    assert netlab("--hosts", 2, "--rate", "none", "--", "true").code == 0
    assert netlab.namespaces(process.pid) == []
    assert alive(f"sleep 607.{os.getpid()}") == []
    assert len(netlab.namespaces(living.pid)) == 3
    assert len(alive(f"sleep 608.{os.getpid()}")) == 2
    for each in (process, living):
        each.kill()
        each.communicate(timeout=120)


def test_nothing_is_left_of_a_job_whose_processes_refuse_to_end(netlab: Any) -> None:
    stubborn = f"trap '' TERM INT; while :; do sleep 0.1{os.getpid()}; done"
    process = netlab.start("--hosts", 2, "--rate", "none", "--each", "--", "sh", "-c", stubborn)
    assert eventually(lambda: len(alive(f"sleep 0.1{os.getpid()}")) - len(alive(stubborn)) >= 2)  # both have set their trap
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert process.poll() is None
    process.kill()
    process.communicate(timeout=120)
    assert eventually(lambda: netlab.namespaces(process.pid) == [])
    assert alive(str(stubborn)) == []


def test_nothing_is_left_when_the_command_fails(netlab: Any) -> None:
    process = netlab.start("--hosts", 2, "--rate", "none", "--", "sh", "-c", "sleep 4712.5 & exit 3")
    process.communicate(timeout=30)
    assert process.returncode == 3
    assert netlab.namespaces(process.pid) == []
    assert alive("4712.5") == []


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (["--hosts", "1", "--", "true"], "--hosts must be 2 to 250, not 1"),
        (["--hosts", "many", "--", "true"], "--hosts must be 2 to 250, not many"),
        (["--rate", "100", "--", "true"], "--rate must be such as 100mbit, none, 20mbit,80ms or 20mbit,80ms,wireguard, not 100"),
        (["--rate", "20mbit,wireguard", "--", "true"], "--rate must be such as"),
        (["--rate", "20mbit,80", "--", "true"], "--rate must be such as"),
        (["--rate"], "--rate needs a value"),
        (["--host", "3", "--", "true"], "unknown option --host"),
        (["--hosts", "3"], "no command"),
    ],
)
def test_a_bad_command_line_is_refused_in_one_line(options: list[str], hint: str) -> None:
    done = subprocess.run([SCRIPT, *options], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{SCRIPT}: error: {hint}")
    assert done.stderr.count("\n") == 1


def test_the_script_of_the_clone_is_the_one_of_the_package() -> None:
    done = subprocess.run([ROOT / "scripts" / "netlab.sh", "--hosts", "1", "--", "true"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.endswith("netlab.sh: error: --hosts must be 2 to 250, not 1\n")


def test_who_is_not_root_is_refused_in_one_line() -> None:
    nobody = {"user": 65534} if os.geteuid() == 0 else {}
    done = subprocess.run(["bash", "-s", "--", "--", "true"], input=SCRIPT.read_text(), capture_output=True, text=True, **nobody)
    assert done.returncode == 2
    assert done.stderr.endswith("error: network namespaces need root: run it as root\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("missing", ["ip", "tc"])
@pytest.mark.skipif(os.geteuid() != 0, reason="it is refused for want of root before it looks for tools")
def test_a_missing_tool_is_named_in_one_line(tmp_path: Path, missing: str) -> None:
    for tool in {"bash", "id", "ip", "tc", "unshare", "setsid", "flock"} - {missing}:
        (tmp_path / tool).symlink_to(shutil.which(tool) or "/bin/true")
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run([bash, SCRIPT, "--", "true"], env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == f"{SCRIPT}: error: there is no {missing}: install iproute2 and util-linux\n"
