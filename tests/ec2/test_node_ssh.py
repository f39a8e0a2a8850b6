"""Commands and files on nodes. A shell in a folder per node stands in for ssh; test_chain.py uses the real one."""

from __future__ import annotations

import dataclasses
import datetime
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from psnode_ec2.cloud import Cloud
from psnode_ec2.cluster import Node, cluster_of
from psnode_ec2.ec2_errors import KeepError
from psnode_ec2.fetch_checkpoint import keep
from psnode_ec2.node_ssh import Access
from psnode_ec2.settings import Settings, load


def test_a_folder_that_is_copied_again_lies_where_it_lay(nodes: Any, tmp_path: Path) -> None:
    source = tmp_path / "my data"
    (source / "a part").mkdir(parents=True)
    (source / "a part" / "x*?.bin").write_bytes(bytes(range(256)) * 1000)
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)
    for _ in range(2):
        done = nodes.ec2("put", "--node", "all", source, "some where/data")
        assert done.code == 0, done.err
        done = nodes.ec2("get", "some where/data", "got/it")
        assert done.code == 0, done.err
        done = nodes.ec2("get", "--node", "workers", "some where/data", "each")
        assert done.code == 0, done.err
    for copy in (
        *(nodes.home(name) / "some where" / "data" for name in ("master", "worker-0", "worker-1")),
        Path("got/it"),
        Path("each/worker-0/data"),
        Path("each/worker-1/data"),
    ):
        assert nodes.tree(copy) == nodes.tree(source)
        assert (copy / "run.sh").stat().st_mode & 0o111
    assert nodes.tree(Path("each")).keys() == {f"worker-{i}/data/{name}" for i in (0, 1) for name in nodes.tree(source)}


@pytest.mark.parametrize("into", [True, False])
def test_what_goes_into_a_folder_keeps_its_name(nodes: Any, into: bool) -> None:
    """Check the resulting paths when a file and a folder are copied from the desk to the master's home, and back."""
    desk, home = Path.cwd(), nodes.home("master")
    source, target = (desk, home) if into else (home, desk)
    (source / "many").mkdir()
    (source / "many" / "x").write_text("x")
    (source / "one").write_text("one")
    places = [
        ("there/", "there/one", "there/many/x"),
        ("here", "here/one", "here/x"),
        ("new", "new", "new/x"),
        (".", "one", "many/x"),
    ]
    places += [("", "one", "many/x"), ("~/", "one", "many/x")] if into else []
    for where, file, folder in places:
        for name, lies in (("one", file), ("many", folder)):
            (target / "here").mkdir()
            done = nodes.ec2("put", name, where) if into else nodes.ec2("get", name, where)
            assert done.code == 0, done.err
            assert list(nodes.tree(target)) == [lies]
            for path in target.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_a_copy_that_fails_says_where_and_why(nodes: Any) -> None:
    done = nodes.ec2("get", "no such", "x")
    assert done.code == 1
    assert done.err.strip().splitlines()[-1] == "psnode-ec2: error: master: get ended with code 1: no such does not exist"
    Path("file").write_bytes(bytes(1 << 20))
    (nodes.home("worker-1") / "taken").write_text("")
    done = nodes.ec2("put", "--node", "worker-1", "file", "taken/file")
    assert done.code == 1
    assert re.search(r"error: worker-1: put ended with code 1: mkdir: .*taken", done.err)
    (nodes.home("master") / "runs").mkdir()
    (nodes.home("master") / "runs" / "x").write_text("x")
    done = nodes.ec2("get", "runs", "file")
    assert done.code == 2
    assert re.search(r"error: file\S* cannot be written", done.err)


def test_a_folder_with_a_link_to_itself_is_refused_before_anything_is_sent(nodes: Any) -> None:
    for link in ("data/self", "data/a/b/up"):
        Path(link).parent.mkdir(parents=True, exist_ok=True)
        Path("data/x").write_text("x")
        Path(link).symlink_to(Path("data").resolve())
        done = nodes.ec2("put", "data", "copied")
        assert done.code == 2
        assert f"error: {link} is a link back to a folder that it is in" in done.err
        assert not (nodes.home("master") / "copied").exists()
        Path(link).unlink()
    # a link to an entry beside it, even twice, does not lead out of the folder
    Path("data/beside").symlink_to("a")
    Path("data/again").symlink_to("a")
    Path("data/a/b/y").write_text("y")
    assert nodes.ec2("put", "data", "copied").code == 0
    assert set(nodes.tree(nodes.home("master") / "copied")) == {"x", "a/b/y", "beside/b/y", "again/b/y"}


def test_the_private_key_does_not_leave_through_a_link(nodes: Any, keyfile: Path) -> None:
    """Check that a copied folder with a link to the key is refused; another user could have made such a folder."""
    folder = Path("theirs")
    folder.mkdir()
    (folder / "weights").write_text("x")
    (folder / "more").symlink_to(keyfile)
    for what in (folder, keyfile):
        done = nodes.ec2("put", what, "there")
        assert done.code == 2, done.err
        assert f"is your private key, {keyfile}, which stays on this machine" in done.err
        sent = nodes.tree(nodes.home("master")).values()
        assert not [content for content in sent if b"PRIVATE KEY" in content]


def test_a_folder_with_a_link_to_itself_does_not_come_back_without_end(nodes: Any) -> None:
    home = nodes.home("master")
    (home / "data").mkdir()
    (home / "data" / "x").write_text("x")
    (home / "data" / "self").symlink_to(".")
    done = nodes.ec2("get", "data", "got")
    assert done.code == 1
    assert "data/self is a link back to a folder that it is in" in done.err


@pytest.mark.parametrize("package", ["psnode==1", "git+https://ada:t0ken@example.org/psnode.git@main"])
def test_the_token_of_a_package_index_or_a_repository_stands_in_no_command_line(
    nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://ada:t0ken@example.org/it's/simple")
    venv = nodes.home("master") / "psnode" / ".venv" / "bin"
    for name in ("master", "worker-0", "worker-1"):
        folder = nodes.home(name) / "psnode" / ".venv" / "bin"
        folder.mkdir(parents=True)
        for program in ("python", "psnode"):
            text = 'tr "\\0" " " </proc/$PPID/cmdline >>lines; echo "$0 $@" >>lines\nprintf %s "$PIP_INDEX_URL" >index\n'
            (folder / program).write_text(f"#!/bin/bash\n{text}")
            (folder / program).chmod(0o755)
    ssh = tmp_path / "bin" / "ssh"
    ssh.write_text(nodes.ssh.replace("mkdir -p", 'echo "$@" >>"$NODES.lines"\nmkdir -p', 1))
    shown = nodes.ec2("setup", "--dry-run", "--package", package)
    assert "PIP_INDEX_URL=... " in shown.out
    assert "t0ken" not in shown.out + shown.err
    done = nodes.ec2("setup", "--package", package)
    assert done.code == 0, done.err
    assert "t0ken" not in done.out + done.err
    lines = (tmp_path / "nodes.lines").read_text() + (nodes.home("master") / "lines").read_text()
    assert "pip" in lines
    assert package.replace("ada:t0ken@", "").replace("psnode==1", "psnode[train,mpi]==1") in lines
    assert "t0ken" not in lines
    assert (venv.parents[2] / "index").read_text() == "https://ada:t0ken@example.org/it's/simple"


# replaces an environment's Python: prints versions from the file, and the arguments of pip
PIP = """#!/bin/bash
[[ $2 == pip ]] || exit 0
case $3 in
freeze) cat "$(dirname "$0")/../installed" ;;
install)
    for word; do [[ ${before:-} != -c ]] || cat "$word" >>"$(dirname "$0")/../constraints"; before=$word; done
    echo numpy==2.0 >"$(dirname "$0")/../installed"
    printf '#!/bin/sh\necho psnode 1\n' >"$(dirname "$0")/psnode"
    chmod +x "$(dirname "$0")/psnode"
    ;;
esac
"""


def test_a_new_node_gets_the_versions_that_the_others_have(nodes: Any, tmp_path: Path) -> None:
    def venv(name: str) -> Path:
        return nodes.home(name) / "psnode" / ".venv"

    for name in ("master", "worker-0", "worker-1"):
        (venv(name) / "bin").mkdir(parents=True)
        (venv(name) / "bin" / "python").write_text(PIP)
        (venv(name) / "bin" / "python").chmod(0o755)
        (venv(name) / "installed").write_text("numpy==1.9\nPsnode==1\ntorch @ file:///tmp/torch.whl\n")
    ours = tmp_path / "ours.txt"
    ours.write_text("numpy==2.0\nscipy<2\n")
    for name in ("master", "worker-0"):
        (venv(name) / "bin" / "psnode").write_text("#!/bin/sh\necho psnode 1\n")
        (venv(name) / "bin" / "psnode").chmod(0o755)
    done = nodes.ec2("setup", "--package", "psnode==1", "--constraints", ours)
    assert done.code == 0, done.err
    assert "1 new nodes get the versions of master" in done.err
    assert (venv("master") / "constraints").read_text() == ours.read_text()
    assert (venv("worker-0") / "constraints").read_text() == ours.read_text()
    assert (venv("worker-1") / "constraints").read_text() == "numpy==2.0\n"


def test_setup_sends_the_constraints_of_the_checkout(nodes: Any) -> None:
    shown = nodes.ec2("setup", "--dry-run")
    assert len(re.findall(r"would copy \S+/constraints.txt to \S+:psnode/constraints.txt", shown.out)) == 3
    assert "PSNODE_CONSTRAINTS=... " in shown.out
    assert "constraints" not in nodes.ec2("setup", "--dry-run", "--package", "psnode==1").out
    done = nodes.ec2("setup", "--constraints", "none.txt")
    assert done.code == 2
    assert "constraints none.txt is no file" in done.err
    assert "building a wheel" not in done.err


def test_the_workers_are_the_workers_when_the_master_is_gone(nodes: Any, api: Any) -> None:
    lost = re.search(r"^master +(\S+)", nodes.ec2("status").out, re.M)
    assert lost
    api.terminate_instances(InstanceIds=[lost[1]])
    done = nodes.ec2("ssh", "--node", "workers", "pwd")
    assert done.code == 0, done.err
    assert done.out.split() == [str(nodes.home("worker-0")), str(nodes.home("worker-1"))]
    done = nodes.ec2("ssh", "pwd")
    assert done.code == 2
    assert "there is no node master" in done.err


def access(folder: Path) -> Access:
    """Return the access to one node that was never started."""
    node = Node(
        "master", "master", "i-1", "m5.large", "us-west-2b", "running", False, "10.0.0.1", "", datetime.datetime.now(), ""
    )
    settings = Settings(name="paths", path_to_keyfile=folder / "my key", connect="private")
    return Access(settings, [node], folder / "known hosts")


def test_ssh_takes_paths_with_spaces_and_signs_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / 'a "b" %d'
    way = access(folder)
    real = shutil.which("ssh")
    assert real
    done = subprocess.run([real, "-F", "none", "-G", *way.options(way.master), "host"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    understood = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    # -G shows the configuration before %% becomes %
    assert understood["identityfile"].replace("%%", "%") == str(folder / "my key")
    assert understood["userknownhostsfile"].strip('"').replace("%%", "%") == str(folder / "known hosts")
    assert understood["stricthostkeychecking"] in ("true", "yes")


def test_the_host_keys_of_many_nodes_reach_the_master(nodes: Any, tmp_path: Path) -> None:
    """Check that the host keys of 256 nodes reach the master: three keys for each are longer than one argument of a command
    line can be.
    """
    lengths = {"ssh-rsa": 372, "ecdsa-sha2-nistp256": 140, "ssh-ed25519": 68}
    known = "".join(f"172.31.0.{n} {kind} {'A' * length}\n" for n in range(256) for kind, length in lengths.items())
    assert len(known) > 131072
    way = access(tmp_path)
    folder = tmp_path / "nodes" / "i-1" / ".ssh"
    folder.mkdir(parents=True)
    (folder / "psnode").write_text("")
    way.everywhere(way.nodes, "trust.sh", "ssh-ed25519 key psnode-nodes", known, "172.31.0.1", "172.31.0.2")
    assert (folder / "psnode_known_hosts").read_text() == known
    assert "Host 172.31.0.1 172.31.0.2\n" in (folder / "config").read_text()


def job(nodes: Any, venv: str) -> Path:
    """Install a psnode on the master that prints its arguments and runs until it is asked to end.

    Return the folder of its last job.
    """
    home = nodes.home("master")
    (home / venv / "bin").mkdir(parents=True)
    (home / "psnode" / "jobs").mkdir(parents=True, exist_ok=True)
    program = home / venv / "bin" / "psnode"
    program.write_text('#!/bin/bash\ntrap "exit 75" TERM\necho "$@"\nfor _ in {1..600}; do sleep 0.1; done\n')
    program.chmod(0o755)
    return home / "psnode" / "jobs" / "last"


@pytest.mark.parametrize("venv", ["", "envs/mine", "{home}/envs/yours"])
def test_psnode_is_found_wherever_its_environment_is(nodes: Any, venv: str) -> None:
    venv = venv.format(home=nodes.home("master"))
    last = job(nodes, venv or "psnode/.venv")
    done = nodes.ec2("run", "--detach", *(["--remote-venv", venv] if venv else []), "--", "train", "--seed", 7)
    assert done.code == 0, done.err
    nodes.wait_for(lambda: (last / "log").exists() and "train --seed 7" in (last / "log").read_text())
    assert nodes.ec2("stop").code == 0
    nodes.wait_for(lambda: (last / "code").exists())
    assert (last / "code").read_text() == "75\n"


# on TERM it writes its last checkpoint
TRAINING = """#!/bin/bash
last() {
    mkdir -p checkpoints/step-00000030
    echo x >checkpoints/step-00000030/model
    echo step-00000030 >checkpoints/latest
    exit 75
}
trap last TERM
mkdir -p runs/first && cd runs/first && touch started
for _ in {1..600}; do sleep 0.1; done
"""


def test_shutdown_stops_the_job_and_fetches_its_last_checkpoint_before_any_node_ends(nodes: Any, aws: Any, config: Path) -> None:
    last = job(nodes, "psnode/.venv")
    home = nodes.home("master")
    (home / "psnode/.venv/bin/psnode").write_text(TRAINING)
    for run, step in (("zero", 90), ("first", 10), ("first", 20)):
        folder = home / "psnode" / "runs" / run
        (folder / f"checkpoints/step-{step:08}").mkdir(parents=True)
        (folder / f"checkpoints/step-{step:08}/model").write_text(run)
        (folder / "checkpoints/latest").write_text(f"step-{step:08}\n")
        (folder / "config.json").write_text("{}")
    os.utime(home / "psnode/runs/zero/checkpoints/latest", (0, 0))
    assert nodes.ec2("run", "--detach", "--", "train").code == 0
    nodes.wait_for((home / "psnode/runs/first/started").exists)
    kept = config.parent / "state" / "kept"
    there: list[set[str]] = []

    def look(action: str, form: dict[str, str]) -> bool:
        if action == "TerminateInstances":
            there.append({name.partition("/")[2] for name in nodes.tree(kept)})
        return True

    aws.before = look
    done = nodes.ec2("shutdown", "--yes")
    assert done.code == 0, done.err
    assert (last / "code").read_text() == "75\n"
    run = "psnode/runs/first"
    wanted = {"config.json", "started", "checkpoints/latest", "checkpoints/step-00000030/model"}
    assert there == [{f"{run}/{name}" for name in wanted}]
    assert f"the newest checkpoint, step-00000030 of {run}, is in {kept}" in done.err


@pytest.mark.parametrize(("code", "left"), [(0, 0), (3, 0), (2, 3)])
def test_the_cluster_ends_with_the_job_unless_that_refused_its_command(nodes: Any, code: int, left: int) -> None:
    job(nodes, "psnode/.venv")
    home = nodes.home("master")
    (home / "psnode/.venv/bin/psnode").write_text(f"#!/bin/bash\nmkdir -p runs/a/checkpoints\nexit {code}\n")
    done = nodes.ec2("run", "--shutdown", "--yes", "--", "train")
    assert done.code == code, done.err
    assert "when the job has ended end these 3 nodes" in done.err
    assert f"{left} of 3 nodes" in nodes.ec2("status").out


def test_nodes_whose_checkpoint_cannot_be_fetched_do_not_end_unless_it_is_discarded(nodes: Any, aws: Any, tmp_path: Path) -> None:
    (tmp_path / "bin" / "ssh").write_text("#!/bin/sh\necho 'Connection timed out' >&2\nexit 255\n")
    done = nodes.ec2("shutdown", "--yes")
    assert done.code == 1
    assert re.search(r"cannot be fetched \(.*Connection timed out\): nothing was ended; .*shutdown --discard ends", done.err)
    assert "TerminateInstances" not in aws.actions()
    assert "3 of 3 nodes" in nodes.ec2("status").out
    assert nodes.ec2("shutdown", "--yes", "--discard").code == 0
    assert "0 of 3 nodes" in nodes.ec2("status").out


def test_a_master_without_checkpoints_keeps_nobody_from_shutting_down(nodes: Any) -> None:
    done = nodes.ec2("shutdown", "--yes")
    assert done.code == 0, done.err


# a node whose answers an attacker chooses: the path of the newest checkpoint, and its content
LYING = """#!/bin/bash
if [[ ${!#} == "bash -s" ]]; then
    printf '%s\\n' "$PLACE" config.json checkpoints/latest checkpoints/step-00000001
else
    cd "$LOOT" && tar --no-recursion -cf - . ./config.json
fi
"""


@pytest.mark.parametrize("place", ["{elsewhere}", "psnode/../../../../elsewhere", "runs/\x1b]0;title"])
def test_a_node_does_not_say_where_on_this_machine_its_files_go(
    nodes: Any, aws: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    elsewhere, loot = tmp_path / "elsewhere", tmp_path / "loot"
    for folder, text in ((elsewhere, "mine"), (loot, "theirs")):
        folder.mkdir()
        (folder / "config.json").write_text(text)
    (tmp_path / "bin" / "ssh").write_text(LYING)
    monkeypatch.setenv("PLACE", place.format(elsewhere=elsewhere))
    monkeypatch.setenv("LOOT", str(loot))
    done = nodes.ec2("shutdown", "--yes")
    assert (elsewhere / "config.json").read_text() == "mine"
    assert "\x1b" not in done.err
    kept = tmp_path / "state" / "kept"
    if place.startswith("{"):  # an absolute path on the node becomes one below keep_dir here
        assert done.code == 0, done.err
        assert [path.read_text() for path in kept.rglob("config.json")] == ["theirs"]
    else:
        assert done.code == 1
        assert "nothing was ended" in done.err
        assert "TerminateInstances" not in aws.actions()


def test_a_master_that_is_stopped_does_not_end_with_what_it_holds(nodes: Any, aws: Any, api: Any) -> None:
    (master,) = re.findall(r"^master +(\S+)", nodes.ec2("status").out, re.M)
    api.stop_instances(InstanceIds=[master])
    done = nodes.ec2("shutdown", "--yes")
    assert done.code == 1
    assert f"{master} is stopped" in done.err
    assert "TerminateInstances" not in aws.actions()
    assert nodes.ec2("shutdown", "--yes", "--discard").code == 0


def test_a_master_that_cannot_be_reached_does_not_end_with_what_it_holds(nodes: Any, aws: Any, config: Path) -> None:
    settings = load(config, {})
    cluster = cluster_of(Cloud(settings), settings)
    found = cluster.nodes()
    hidden = [dataclasses.replace(node, public_address="") for node in found]
    with pytest.raises(KeepError, match="has no public address"):
        keep(cluster, settings, hidden)
    aws.consoles.clear()  # moto's own text has no keys
    assert keep(cluster, settings, found) == ""  # the node is too new to have work on it
    old = [dataclasses.replace(node, launched=node.launched - datetime.timedelta(hours=1)) for node in found]
    with pytest.raises(KeepError, match="host key"):
        keep(cluster, settings, old)


def test_shutdown_ends_what_it_has_shown(nodes: Any, aws: Any, api: Any, config: Path) -> None:
    """Check that shutdown ends only the nodes that it has listed, and reports nodes that another user has added since."""
    (first,) = re.findall(r"^worker-0 +(\S+)", nodes.ec2("status").out, re.M)
    api.terminate_instances(InstanceIds=[first])
    added: list[str] = []

    def meanwhile(action: str, form: dict[str, str]) -> bool:
        if action == "DescribeRegions" and not added:
            aws.before = lambda action, form: True
            with nodes.start("launch", "--yes") as other:
                added.extend(re.findall(r"(i-[0-9a-f]+)", other.communicate()[0]))
        return True

    aws.before = meanwhile
    done = nodes.ec2("shutdown", "--yes")
    assert done.code == 1
    assert "1 node of this cluster started since then, at further cost: run shutdown again" in done.err
    left = re.findall(r"^\S+ +(i-\S+).* running ", nodes.ec2("status").out, re.M)
    assert len(left) == 1 and left[0] in added
    assert nodes.ec2("shutdown", "--yes").code == 0
    assert "0 of 3 nodes" in nodes.ec2("status").out


def test_who_stops_watching_a_job_leaves_it_alone(nodes: Any) -> None:
    last = job(nodes, "psnode/.venv")
    assert nodes.ec2("run", "--detach", "--", "doctor").code == 0
    watching = nodes.start("logs", "--follow")
    try:
        assert watching.stdout is not None
        assert watching.stdout.readline() == "doctor\n"
        watching.send_signal(signal.SIGINT)
        assert watching.wait(timeout=60) == 130
        # the stand-in's shell continues, and has the same standard error
        assert watching.stderr is not None
        assert watching.stderr.readline() == "the job goes on: logs --follow shows it\n"
        assert not (last / "code").exists()
        os.kill(int((last / "pid").read_text()), 0)
    finally:
        watching.kill()
        assert nodes.ec2("stop").code == 0
        _, err = watching.communicate()
    assert err == ""
    nodes.wait_for(lambda: (last / "code").exists())


def test_an_interrupt_ends_setup_and_what_it_waits_for(nodes: Any) -> None:
    slow = nodes.home("master").parents[1] / "bin" / "ssh"
    slow.write_text(nodes.ssh.replace('HOME=$PWD exec bash -c "$word"', "echo $$ >pid.new\nmv pid.new pid\nexec sleep 600"))
    setup = nodes.start("setup", "--package", "psnode==1")
    files = [nodes.home(name) / "pid" for name in ("master", "worker-0", "worker-1")]
    try:
        nodes.wait_for(lambda: all(file.exists() for file in files))
        setup.send_signal(signal.SIGINT)
        _, err = setup.communicate(timeout=60)
    finally:
        setup.kill()
        setup.communicate()
    assert setup.returncode == 130, err
    assert err.strip().splitlines()[-1].startswith("psnode-ec2: interrupted: ")
    assert "Traceback" not in err
    for file in files:
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.read_text()), 0)
