"""The whole chain on emulated instances, from launch over training to shutdown. Each command of the tool runs in a process.

The tests depend on each other, in their order. So none is marked `long`, although they take minutes.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.serial, pytest.mark.timeout(600)]


class Cluster(NamedTuple):
    """A user's desk: `ec2` runs the tool, `fleet` holds the nodes, and `api` is boto3's client of EC2."""

    ec2: Callable[..., subprocess.CompletedProcess[str]]
    start: Callable[..., subprocess.Popen[str]]
    fleet: Any
    api: Any
    desk: Path


@pytest.fixture(scope="module")
def cluster(moto_port: int, keyfile: Path, ec2_module: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield a spot cluster of a master and two workers, set up; the last test or this fixture shuts it down."""
    fleet_module = ec2_module("fleet")
    if reason := fleet_module.unavailable():
        pytest.skip(reason)
    desk = tmp_path_factory.mktemp("desk")
    (desk / "fleet").mkdir()
    front = ec2_module("front").Front(moto_port)
    fleet = fleet_module.Fleet(desk / "fleet", keyfile.with_suffix(".pub").read_text().strip())
    front.after = lambda action, form, body: front.consoles.update(fleet.hear(action, body))
    (desk / "cluster.toml").write_text(
        'name = "chain"\nregion = "us-west-2"\navailability_zone = "us-west-2b"\nmaster_type = "m5.large"\nmethod = "spot"\n'
        f'worker_type = "m5.large"\npath_to_keyfile = "{keyfile}"\nssh_from = "203.0.113.7/32"\nconnect = "private"\n'
        f'ssh_username = "ec2-user"\nstate_dir = "{desk / "state"}"\nlaunch_deadline = 60\n'
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PSNODE_", "OMPI_"))}
    env |= {
        "AWS_ENDPOINT_URL": front.url,
        "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_CONFIG_FILE": str(desk / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(desk / "none"),
        "PATH": f"{fleet.folder / 'bin'}:{env['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip's setting for "no isolation"
    }

    keys = {"aws_access_key_id": "AKIAEXAMPLE", "aws_secret_access_key": "secret"}
    api = pytest.importorskip("boto3").client("ec2", region_name="us-west-2", endpoint_url=front.url, **keys)

    def start(*words: object) -> subprocess.Popen[str]:
        line = [sys.executable, "-m", "psnode_ec2", *map(str, words)]
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(line, cwd=desk, env=env, text=True, **pipes)

    def ec2(*words: object) -> subprocess.CompletedProcess[str]:
        process = start(*words)
        out, err = process.communicate()
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    try:
        done = ec2("launch", "--yes")
        assert done.returncode == 0, done.stderr
        done = ec2("setup")
        assert done.returncode == 0, done.stderr
        yield Cluster(ec2, start, fleet, api, desk)
    finally:
        fleet.close()
        front.close()


def train(*more: object) -> list[object]:
    return ["run", "--", "train", "--network", "LeNet", "--dataset", "digits", "--scheme", "dense", "--threads", 1, *more]


def test_what_mpirun_trained_over_the_nodes_is_evaluated_there_and_fetched(cluster: Cluster) -> None:
    done = cluster.ec2(*train("--epochs", 2, "--lr", "0.02", "--train-dir", "runs/first"))
    assert done.returncode == 0, done.stdout + done.stderr
    done = cluster.ec2("run", "--", "evaluate", "--once", "--train-dir", "runs/first")
    assert done.returncode == 0, done.stdout + done.stderr
    done = cluster.ec2("get", "psnode/runs/first", "results")
    assert done.returncode == 0, done.stderr
    summary = json.loads((cluster.desk / "results" / "summary.json").read_text())
    last = json.loads((cluster.desk / "results" / "evaluations.jsonl").read_text().splitlines()[-1])
    # 1437 training digits, two workers with 32 each: 22 steps per epoch
    assert (summary["exit_code"], summary["steps"], last["step"], last["examples"]) == (0, 44, 44, 360)
    assert last["top1"] > 0.6
    ranks = [json.loads(line) for line in (cluster.desk / "results" / "metrics.jsonl").read_text().splitlines()]
    assert len(ranks) >= 44


def test_the_hosts_are_those_that_run_and_in_the_order_of_ranks(cluster: Cluster) -> None:
    assert cluster.ec2("get_hosts").returncode == 0
    addresses = (cluster.desk / "hosts_address").read_text().split()
    assert sorted(addresses) == sorted(instance.address for instance in cluster.fleet.instances.values())
    names = cluster.ec2("ssh", "--node", "all", "hostname").stdout.split()
    assert names == ["ip-" + address.replace(".", "-") for address in addresses]


def test_the_script_trains_on_the_hosts_that_get_hosts_wrote(cluster: Cluster) -> None:
    assert cluster.ec2("get_hosts").returncode == 0
    for path in (ROOT / "scripts" / "run_psnode.sh", "hosts_address"):
        assert cluster.ec2("put", path, "").returncode == 0
    flags = "--network LeNet --dataset digits --scheme dense --threads 1 --max-steps 1 --train-dir script"
    done = cluster.ec2("ssh", f"bash run_psnode.sh {flags}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert next(holding(cluster, "../script/checkpoints/latest"), None) is not None


def test_no_private_key_came_to_the_nodes_and_theirs_is_on_the_master_alone(cluster: Cluster, keyfile: Path) -> None:
    secret = keyfile.read_bytes().splitlines()[2]
    held = []
    for instance in cluster.fleet.instances.values():
        for path in (instance.home / ".ssh").iterdir():
            assert secret not in path.read_bytes()
            held += [(instance.address, path)] if b"PRIVATE KEY" in path.read_bytes() else []
            assert path.stat().st_mode & 0o077 == 0
    master = cluster.ec2("ssh", "hostname -i 2>/dev/null; hostname").stdout.split()[-1].removeprefix("ip-").replace("-", ".")
    assert [(address, path.name) for address, path in held] == [(master, "psnode")]


def test_a_node_with_another_host_key_is_refused(cluster: Cluster) -> None:
    known = cluster.desk / "state" / "known_hosts"
    before = known.read_text()
    identity = before.split()[0]
    # a man in the middle can show any key but the pinned one
    other = cluster.desk / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
    pinned = " ".join(other.with_suffix(".pub").read_text().split()[:2])
    known.write_text(
        "".join(f"{identity} {pinned}\n" if line.startswith(identity) else f"{line}\n" for line in before.splitlines())
    )
    try:
        done = cluster.ec2("setup", "--package", "psnode==1")  # a wheel of the checkout would be built first
    finally:
        known.write_text(before)
    assert done.returncode == 4, done.stderr
    assert re.search(rf"error: \S+ \({identity}\) shows another host key", done.stderr)


def test_files_go_to_all_nodes_and_come_back_from_each(cluster: Cluster) -> None:
    (cluster.desk / "data").mkdir()
    (cluster.desk / "data" / "one file").write_bytes(bytes(range(256)))
    assert cluster.ec2("put", "--node", "all", "data", "copied").returncode == 0
    assert cluster.ec2("get", "--node", "workers", "copied/one file", "back").returncode == 0
    for node in ("worker-0", "worker-1"):
        assert (cluster.desk / "back" / node / "one file").read_bytes() == bytes(range(256))


def test_a_failed_command_ends_with_its_code_and_says_where(cluster: Cluster) -> None:
    assert cluster.ec2("ssh", "--node", "worker-1", "--", "sh", "-c", "exit 7").returncode == 7
    done = cluster.ec2("get", "no/such/file", "x")
    assert done.returncode != 0
    assert "master" in done.stderr
    assert cluster.ec2("run", "--", "train", "--no-such-flag").returncode == 2


def test_a_notice_of_interruption_ends_the_job_with_a_checkpoint_and_75(cluster: Cluster) -> None:
    job = cluster.start(*train("--max-steps", 100_000, "--eval-freq", 100_000, "--train-dir", "runs/long"))
    try:
        node = wait_for(lambda: next(holding(cluster, "runs/long/metrics.jsonl"), None))
        done = cluster.ec2(*train("--max-steps", 1))
        assert done.returncode == 2
        assert "a job runs already" in done.stderr
        cluster.fleet.interrupt(next(other.address for other in instances(cluster) if other is not node))
        out, err = job.communicate(timeout=120)
    finally:
        job.kill()
        job.wait()
    assert job.returncode == 75, out + err
    assert stopped_at(node, "runs/long") > 0


def test_a_node_that_was_taken_is_replaced_and_the_job_goes_on(cluster: Cluster) -> None:
    (node,) = holding(cluster, "runs/long/checkpoints/latest")
    before = stopped_at(node, "runs/long")
    lost = next(other.identity for other in instances(cluster) if (cluster.fleet.folder / "notices" / other.address).exists())
    cluster.api.terminate_instances(InstanceIds=[lost])
    assert "2 of 3 nodes" in cluster.ec2("status").stdout
    assert cluster.ec2(*train("--resume", "--train-dir", "runs/long")).returncode == 2
    for words in (("launch", "--yes"), ("setup",)):
        done = cluster.ec2(*words)
        assert done.returncode == 0, done.stderr
    assert len(instances(cluster)) == 3
    job = cluster.start(*train("--resume", "--max-steps", 200_000, "--eval-freq", 100_000, "--train-dir", "runs/long"))
    try:
        wait_for(lambda: True if steps(node, "runs/long") > before else None)
        job.send_signal(signal.SIGINT)
        out, err = job.communicate(timeout=120)
    finally:
        job.kill()
        job.wait()
    assert job.returncode == 75, out + err
    assert "asking the job to write a checkpoint" in err
    assert stopped_at(node, "runs/long") > before
    recorded = [json.loads(line)["step"] for line in (node.home / "psnode/runs/long/metrics.jsonl").read_text().splitlines()]
    assert recorded == list(range(1, len(recorded) + 1))


def test_a_job_that_is_kept_alive_goes_on_when_its_master_was_taken_and_ends_when_it_is_stopped(cluster: Cluster) -> None:
    """Check that a job that is kept alive continues when its master's node is taken, and ends when it is stopped. Each
    worker node has two workers, which run the code of a folder; only the master stores checkpoints.
    """
    grown = cluster.desk / "code"
    grown.mkdir()
    (grown / "own.txt").write_text("mine")
    words = train("--max-steps", 200_000, "--eval-freq", 100_000, "--train-dir", "runs/kept")[1:]
    flags = ("--keep-alive", "--sync", "code", "--yes", "--workers-per-node", 2)
    job = cluster.start("run", *flags, *words)
    try:
        first = wait_for(lambda: next(holding(cluster, "code/runs/kept/metrics.jsonl"), None))
        known = {instance.identity for instance in instances(cluster)}
        machines = json.loads((first.home / "psnode/code/runs/kept/machines.json").read_text())["ranks"]
        hosts = [each["host"] for _, each in sorted(machines.items(), key=lambda item: int(item[0]))]
        cluster.fleet.interrupt(first.address)
        second = wait_for(lambda: other_than(first, holding(cluster, "code/runs/kept/metrics.jsonl")))
        before = stopped_at(second, "code/runs/kept")
        wait_for(lambda: True if steps(second, "code/runs/kept") > before else None)
        assert cluster.ec2("stop").returncode == 0
        out, err = job.communicate(timeout=120)
    finally:
        job.kill()
        job.wait()
    assert job.returncode == 75, out + err
    assert "restart 1 of 5" in err
    assert "the job was asked to end: nothing is started again" in err
    # four workers on two hosts, two on each
    assert [hosts.count(host) for host in dict.fromkeys(hosts[-4:])] == [2, 2]
    assert known - {instance.identity for instance in instances(cluster)} == {first.identity}
    assert (second.home / "psnode/code/own.txt").read_text() == "mine"
    recorded = [
        json.loads(line)["step"] for line in (second.home / "psnode/code/runs/kept/metrics.jsonl").read_text().splitlines()
    ]
    assert recorded == list(range(1, len(recorded) + 1))


def other_than(known: Any, found: Iterator[Any]) -> Any:
    return next((each for each in found if each is not known), None)


def instances(cluster: Cluster) -> list[Any]:
    return list(cluster.fleet.instances.values())


def holding(cluster: Cluster, path: str) -> Iterator[Any]:
    """Return the instances that have this file."""
    return (instance for instance in instances(cluster) if (instance.home / "psnode" / path).exists())


def stopped_at(node: Any, run: str) -> int:
    """Return the step of the last checkpoint."""
    return int((node.home / "psnode" / run / "checkpoints" / "latest").read_text().strip().removeprefix("step-"))


def steps(node: Any, run: str) -> int:
    return int((node.home / "psnode" / run / "metrics.jsonl").read_text().count("\n"))


def wait_for(look: Callable[[], Any], seconds: float = 120.0) -> Any:
    end = time.monotonic() + seconds
    while (found := look()) is None:
        assert time.monotonic() < end, "it never came"
        time.sleep(0.1)
    return found


def test_shutdown_leaves_no_process_and_no_instance(cluster: Cluster) -> None:
    processes = [instance.process for instance in instances(cluster)]
    done = cluster.ec2("shutdown", "--yes")
    assert done.returncode == 0, done.stderr
    assert len(processes) == 3
    assert all(process.poll() is not None for process in processes)
    assert cluster.fleet.instances == {}
    assert "0 of 3 nodes" in cluster.ec2("status").stdout
    namespaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert [line for line in namespaces.splitlines() if line.startswith(f"{cluster.fleet.name}-")] != []  # the switch
    assert not re.search(rf"^{cluster.fleet.name}-[1-9]", namespaces, re.M)
