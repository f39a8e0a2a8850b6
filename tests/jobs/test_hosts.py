"""psnode doctor --hosts: the real ssh to real sshds on addresses of this machine, each with a different fault."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from psnode import cli
from psnode.errors import ConfigurationError
from psnode.jobs.hosts.conversation import Conversation
from psnode.jobs.hosts.hostfile import Host, hosts_of, used
from psnode.jobs.hosts.problems import problems
from psnode.jobs.hosts.survey import Answer

ROOT = Path(__file__).resolve().parents[2]
SSHD = "/usr/sbin/sshd"
MASTER, WORKER, REFUSES, OTHER, BARE, SHUT, NOBODY, SILENT = (f"127.0.0.{last}" for last in range(2, 10))
PATIENT = "60"  # seconds; only a host that hangs would take this long
Report = dict[str, Any]


class Network:
    """An sshd that listens on all addresses but two, and an ssh that knows its keys."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        self.other = folder / "other"
        (self.other / "psnode").mkdir(parents=True)
        (self.other / "psnode" / "__init__.py").write_text('print("{welcome")\n__version__ = "0.0.9\\x1b[2J"\n')
        (self.other / "torch-0.1.dist-info").mkdir()
        (self.other / "torch-0.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 0.1\n")
        self.port, self.process = self._listen()
        key = (folder / "host.pub").read_text()
        (folder / "known").write_text("".join(f"[127.0.0.{last}]:{self.port} {key}" for last in range(2, 10)))
        (folder / "ssh_config").write_text(
            f"Port {self.port}\nIdentityFile {folder}/user\nIdentitiesOnly yes\nUserKnownHostsFile {folder}/known\n"
        )
        (folder / "bin").mkdir()
        (folder / "bin" / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
        (folder / "bin" / "ssh").chmod(0o755)

    def _listen(self) -> tuple[int, subprocess.Popen[str]]:
        """Start sshd at a port that is free and still free when sshd binds it; return the port and the process."""
        while True:
            with socket.create_server(("127.0.0.2", 0)) as server:
                port: int = server.getsockname()[1]
            process = subprocess.Popen(
                [*self._line(port), "-D", "-e"], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
            )
            assert process.stderr is not None
            listening = 0
            for line in process.stderr:
                listening += "Server listening" in line
                if listening == 6:
                    return port, process
                assert "listening" in line or "already in use" in line, line
            process.wait()

    def _line(self, port: int) -> list[str | Path]:
        """Return the command line of an sshd that does not block this machine after refused keys, as OpenSSH does from 9.8 on."""
        line = [SSHD, "-f", self._configuration(port)]
        lenient = [*line, "-o", "PerSourcePenalties=no"]
        return lenient if subprocess.run([*lenient, "-t"], capture_output=True).returncode == 0 else line

    def _configuration(self, port: int) -> Path:
        inside = f"sed 's#{sys.executable}#/nowhere/python#'"
        listen = "".join(f"ListenAddress {address}:{port}\n" for address in (MASTER, WORKER, REFUSES, OTHER, BARE, SHUT))
        path = self.folder / "sshd_config"
        path.write_text(
            f"{listen}HostKey {self.folder}/host\nPidFile none\nUsePAM no\nPasswordAuthentication no\nStrictModes no\n"
            f"KbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nMaxStartups 100\nLogLevel INFO\n"
            f"Match LocalAddress {REFUSES}\n AuthorizedKeysFile none\n"
            f"Match LocalAddress {OTHER}\n SetEnv PYTHONPATH={self.other}:{ROOT}\n"
            f'Match LocalAddress {BARE}\n ForceCommand sh -c "$(printf %s "$SSH_ORIGINAL_COMMAND" | {inside})"\n'
            f'Match LocalAddress {SHUT}\n ForceCommand unshare --net sh -c "$SSH_ORIGINAL_COMMAND"\n SetEnv PYTHONPATH={ROOT}\n'
            f"Match all\n AuthorizedKeysFile {self.folder}/user.pub\n SetEnv PYTHONPATH={ROOT}\n"
        )
        return path


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    for tool in (SSHD, "ssh", "ssh-keygen"):
        if shutil.which(tool) is None:
            pytest.skip(f"there is no {tool}")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    found = Network(tmp_path_factory.mktemp("network"))
    try:
        yield found
    finally:
        found.process.kill()
        found.process.communicate()


@pytest.fixture
def examine(network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that examines hosts from a directory without psnode, and returns the report and the exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PATH", f"{network.folder / 'bin'}{os.pathsep}{os.environ['PATH']}")

    def run(*hosts: str, deadline: str = PATIENT, more: tuple[str, ...] = ()) -> tuple[Report, int]:
        (tmp_path / "hosts").write_text("".join(f"{host} slots=1\n" for host in hosts))
        code = cli.main(["doctor", "--hosts", "hosts", "--deadline", deadline, "--json", *more])
        return json.loads(capsys.readouterr().out), code

    return run


def of(report: Report, host: str) -> list[tuple[str, str]]:
    return [(problem["text"], problem["remedy"]) for problem in report["problems"] if problem["host"] == host]


def test_hosts_that_are_alike_and_reach_each_other_have_no_problem(examine: Any) -> None:
    report, code = examine(MASTER, WORKER)
    assert (report["problems"], code) == ([], 0)
    master, worker = report["hosts"]
    for answer in (master, worker):
        assert answer["facts"]["python"] == ".".join(map(str, sys.version_info[:3]))
        assert answer["facts"]["cores"] == len(os.sched_getaffinity(0))
        assert answer["facts"]["psnode"] == report["here"]["psnode"]
        assert abs(answer["clock"]) < 1  # both clocks are the same one
    assert worker["facts"]["address"] == WORKER
    for way in (worker["up"], worker["down"]):
        assert way["milliseconds"] > 0
        assert way["mbit"] > 0


def test_this_machine_is_asked_without_ssh_and_the_others_reach_it(examine: Any) -> None:
    report, code = examine("localhost", WORKER)
    assert (report["problems"], code) == ([], 0)
    here, worker = report["hosts"]
    assert (here["facts"]["address"], worker["facts"]["address"]) == ("", WORKER)  # ssh reports the address
    assert min(worker["up"]["mbit"], worker["down"]["mbit"]) > 0


def test_hosts_that_are_silent_cost_the_others_nothing(examine: Any) -> None:
    report, code = examine(NOBODY, WORKER)
    assert code == 1
    assert of(report, WORKER) == []
    assert report["hosts"][1]["up"] == {}  # there is no master to reach


def test_every_fault_is_told_with_its_host_and_a_remedy(examine: Any) -> None:
    report, code = examine(MASTER, REFUSES, OTHER, BARE, NOBODY)
    assert code == 1
    assert of(report, MASTER) == []
    [(text, remedy)] = of(report, REFUSES)
    assert "Permission denied" in text
    assert remedy == f"ssh-copy-id {REFUSES}"
    psnode, torch = of(report, OTHER)
    assert psnode[0] == f"psnode is 0.0.9?[2J, here it is {report['here']['psnode']}"
    assert torch[0] == f"torch is 0.1, here it is {report['here']['torch']}"
    assert [problem["stops"] for problem in report["problems"] if problem["host"] == OTHER] == [True, False]
    [(text, remedy)] = of(report, BARE)
    assert "/nowhere/python" in text
    assert f"at the same path, {sys.executable}" in remedy
    [(text, remedy)] = of(report, NOBODY)
    assert "Connection refused" in text
    assert "start sshd" in remedy


def test_a_host_that_hangs_is_given_up(examine: Any, network: Network) -> None:
    with socket.create_server((SILENT, network.port)):  # accepts connections, and never answers
        report, code = examine(SILENT, deadline="0.3")
    assert code == 1
    assert [text for text, _ in of(report, SILENT)] == ["did not answer within 0.3 s"]


def test_ports_that_are_shut_between_hosts_stop_a_job(examine: Any) -> None:
    """Check that closed ports are reported, with a host whose processes run in a network namespace that only ssh can enter."""
    if subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode != 0:
        pytest.skip("this system makes no network namespaces")
    report, code = examine(MASTER, SHUT)
    assert code == 1
    there, back = of(report, SHUT)
    assert "does not reach a port of 127.0.0.2" in there[0]
    assert "127.0.0.2 does not reach its ports (Connection refused)" in back[0]
    assert "docs/machines.md" in there[1]


def test_links_between_workers_are_checked_for_topologies_that_use_them(examine: Any) -> None:
    """Check host SHUT, which only ssh can enter: under star, psnode reports its link to the master, and under mesh all its
    links.
    """
    if subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode != 0:
        pytest.skip("this system makes no network namespaces")
    report, _ = examine(MASTER, WORKER, SHUT)
    assert of(report, WORKER) == [] and len(of(report, SHUT)) == 2
    report, code = examine(MASTER, WORKER, SHUT, more=("--topology", "mesh"))
    assert code == 1
    assert [text.partition(" (")[0] for text, _ in of(report, WORKER)] == [f"does not reach a port of {SHUT}"]
    assert f"does not reach a port of {WORKER}" in [text.partition(" (")[0] for text, _ in of(report, SHUT)]


def test_alike_hosts_reach_each_other_in_both_directions(examine: Any) -> None:
    report, code = examine(MASTER, WORKER, OTHER, more=("--topology", "star:down=tree"))
    assert code == 1  # OTHER has another psnode
    others = {answer["host"]: answer["others"] for answer in report["hosts"]}
    assert {host: list(links) for host, links in others.items()} == {MASTER: [], WORKER: [OTHER], OTHER: [WORKER]}
    assert min(others[WORKER][OTHER]["mbit"], others[OTHER][WORKER]["mbit"]) > 0


@pytest.mark.parametrize("more", [("--topology", "mesh"), ("--hosts", "hosts", "--topology", "donut")])
def test_a_topology_without_hosts_or_an_unknown_one_is_refused(
    more: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts").write_text("localhost\n")
    assert cli.main(["doctor", *more]) == 2
    assert "--topology" in capsys.readouterr().err


def test_data_that_are_not_on_every_host_are_told(examine: Any, tmp_path: Path) -> None:
    report, code = examine(MASTER, more=("--data-dir", "none"))
    assert code == 1
    assert [text for text, _ in of(report, MASTER)] == ["none does not exist"]


def test_the_table_and_the_problems_are_for_people(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", f"{network.folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "hosts").write_text(f"localhost slots=1000\n{REFUSES}\n")
    assert cli.main(["doctor", "--hosts", str(tmp_path / "hosts"), "--deadline", PATIENT]) == 1
    title, here, refused, *told = capsys.readouterr().out.splitlines()
    assert title.split()[:5] == ["host", "Python", "torch", "psnode", "MPI"]
    assert here.split()[:2] == ["localhost", ".".join(map(str, sys.version_info[:3]))]
    assert set(refused.split()) == {REFUSES, "?"}
    assert told[0].startswith("note: localhost: 1000 slots on ")
    assert told[1].startswith(f"stops a job: {REFUSES}: ")
    assert told[1].endswith(f": ssh-copy-id {REFUSES}")


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("alpha slots=2\nbeta  slots=1\n", [("alpha", 2), ("beta", 1)]),
        ("# ours\nalpha\n\nbeta # the old one\n", [("alpha", 0), ("beta", 0)]),
        ("alpha:2\n10.0.0.7:3\n", [("alpha", 2), ("10.0.0.7", 3)]),
        ("alpha slots=1 max_slots=4\nalpha slots=2\n", [("alpha", 3)]),
        ("fe80::1 slots=2\nada@beta slots = 4\n", [("fe80::1", 2), ("ada@beta", 4)]),
    ],
)
def test_hostfiles_are_read_as_mpirun_reads_them(text: str, hosts: list[tuple[str, int]], tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(text)
    assert [tuple(host) for host in hosts_of(tmp_path / "hosts")] == hosts


@pytest.mark.parametrize(
    ("text", "ranks", "number"),
    [
        ("alpha slots=2\nbeta slots=2\n", 2, 1),
        ("alpha slots=2\nbeta slots=2\n", 3, 2),
        ("alpha\nbeta\ngamma\n", 2, 2),
        ("alpha\nbeta\n", 5, 2),
        ("alpha slots=2\nbeta\n", 3, None),  # beta has as many slots as cores
    ],
)
def test_hosts_with_slots_are_filled_and_others_take_turns(text: str, ranks: int, number: int | None, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(text)
    assert used(tmp_path / "hosts", ranks) == number


@pytest.mark.parametrize(
    ("text", "told"), [("", "names no host"), ("# alpha\n", "names no host"), ("alpha\n-oProxyCommand=x\n", "line 2")]
)
def test_a_hostfile_without_hosts_is_refused(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(ConfigurationError, match=told):
        hosts_of(tmp_path / "hosts")


def test_a_source_that_differs_stops_a_job_and_a_clock_that_is_ahead_is_a_note() -> None:
    facts = dict.fromkeys(("python", "torch", "psnode", "mpi4py", "mpi", "address", "client"), "1") | {"cores": 4, "data": True}
    there = {**facts, "source": "b"}
    answers = [Answer(Host("alpha", 1), there, clock=-7.25)]
    found = problems({**facts, "source": "a"}, answers, None)
    assert [(each.stops, each.text.split(":")[0]) for each in found] == [
        (True, "psnode is 1 as here, but its source differs (b, here a)"),
        (False, "its clock is 7.2 s behind"),
    ]


def test_the_clock_is_that_of_the_host() -> None:
    """Check that the clock of this host, as a conversation with it reads it, differs by less than a second from that of this
    process.
    """
    with Conversation(Host("localhost", 0), 60.0) as talk:
        assert abs(talk.clock()) < 1


def test_without_ssh_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hosts").write_text("alpha\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli.main(["doctor", "--hosts", str(tmp_path / "hosts")]) == 2
    assert "install the OpenSSH client" in capsys.readouterr().err
