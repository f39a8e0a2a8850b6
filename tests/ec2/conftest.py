"""Fixtures: the moto server, the HTTP front before it, and the tool psnode-ec2 with the front as its endpoint."""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load(name: str) -> Any:
    """Return a module of this folder, which is not a package."""
    full = f"psnode_tests_ec2_{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, Path(__file__).with_name(f"{name}.py"))
        assert spec is not None and spec.loader is not None
        sys.modules[full] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[full])
    return sys.modules[full]


class Finished(NamedTuple):
    """End of a command: exit code and output."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def moto_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Yield the port of a moto server in a new process. It has 44 images, Ubuntu's among them.

    Without MOTO_AMIS_PATH the server would build 1255 more images for us-west-2 every time that it is emptied. No test uses them.
    """
    pytest.importorskip("moto.server")
    pytest.importorskip("boto3")
    from moto.utilities.utils import load_resource

    images = tmp_path_factory.mktemp("moto") / "images.json"
    images.write_text(json.dumps(load_resource("ec2/resources/amis.json")))
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    started = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        env={**os.environ, "MOTO_AMIS_PATH": str(images)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert started.poll() is None, "the moto server did not start"
            time.sleep(0.1)
        yield port
    finally:
        started.terminate()
        started.wait()


@pytest.fixture
def front(moto_port: int) -> Iterator[Any]:
    """Yield a front with an empty account. The account is emptied because moto searches all tags for each node that it shows."""
    emptied = http.client.HTTPConnection("127.0.0.1", moto_port, timeout=60)
    emptied.request("POST", "/moto-api/reset")
    assert emptied.getresponse().status == 200
    emptied.close()
    made = load("front").Front(moto_port)
    yield made
    made.close()


@pytest.fixture(scope="session")
def read_once() -> Iterator[None]:
    """Have botocore read its service descriptions once instead of once per command, which halves the time of these tests."""
    loaders = pytest.importorskip("botocore.loaders")
    loader = loaders.create_loader()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("botocore.session.create_loader", lambda *args: loader)
        yield


@pytest.fixture
def aws(front: Any, read_once: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Set the environment of an AWS user whose endpoint is `front`, and return `front`."""
    for variable in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(variable)
    values = {
        "AWS_ENDPOINT_URL": front.url,
        "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(tmp_path / "no-config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "no-credentials"),
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    return front


@pytest.fixture(scope="session")
def keyfile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "ada@home", "-f", path], check=True)
    return path


@pytest.fixture
def config(tmp_path: Path, keyfile: Path, request: pytest.FixtureRequest) -> Path:
    """Write settings for a cluster whose name is different in each test, and return their path."""
    name = f"t{abs(hash(request.node.nodeid)) % 10**12}"
    path = tmp_path / "cluster.toml"
    path.write_text(
        f'name = "{name}"\nregion = "us-west-2"\navailability_zone = "us-west-2b"\nmaster_type = "m5.large"\n'
        f'worker_type = "m5.large"\npath_to_keyfile = "{keyfile}"\nssh_from = "203.0.113.7/32"\n'
        f'state_dir = "{tmp_path / "state"}"\n'
    )
    return path


@pytest.fixture
def ec2(aws: Any, config: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., Finished]:
    """Return a function that runs `psnode-ec2 ARGS` with the settings file `config`, in this process."""
    from psnode_ec2.cli import main

    def run(*args: object) -> Finished:
        capfd.readouterr()
        code = 0
        try:
            main([str(args[0]), "--config", str(config), *map(str, args[1:])])
        except SystemExit as ended:
            code = int(ended.code or 0)
        out, err = capfd.readouterr()
        return Finished(code, out, err)

    return run


@pytest.fixture
def nodes(ec2: Callable[..., Finished], aws: Any, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a launched cluster whose nodes are emulated by folders."""
    return load("desk").launched(ec2, aws, config, tmp_path, monkeypatch)


@pytest.fixture
def api(aws: Any) -> Any:
    """Return a boto3 client of the endpoint, with which tests read its answers directly."""
    boto3 = pytest.importorskip("boto3")
    return boto3.client("ec2", region_name="us-west-2")


@pytest.fixture(scope="session")
def ec2_module() -> Callable[[str], Any]:
    """Return a function that loads a module of this folder by name."""
    return load
