"""Checkpoints in S3: never incomplete, found by a new master, and accessible only to the nodes' role."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("boto3")
xxhash = pytest.importorskip("xxhash")

from psnode_ec2 import s3_checkpoints as s3  # noqa: E402
from psnode_ec2.ec2_errors import SettingsError  # noqa: E402
from psnode_ec2.policies import policy  # noqa: E402
from psnode_ec2.settings import Settings  # noqa: E402

URL = "s3://bucket/some/where/first"


@pytest.fixture
def store(aws: Any, moto_port: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a boto3 client with an empty bucket."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{moto_port}")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    client = pytest.importorskip("boto3").client("s3")
    client.create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    return client


def names(store: Any) -> set[str]:
    found = store.list_objects_v2(Bucket="bucket").get("Contents", [])
    return {each["Key"].removeprefix("some/where/first/") for each in found}


def published(run: Path, step: int, **files: bytes) -> Path:
    """Publish a checkpoint in psnode's form, with a manifest of the size and the hash of every file."""
    folder = run / "checkpoints" / f"step-{step:08d}"
    (folder / "state").mkdir(parents=True)
    contents = {"model.safetensors": bytes([step % 256]) * 100, "state/optimizer.safetensors": b"o", **files}
    entries = {}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
        entries[name] = {"bytes": len(content), "xxh3_128": xxhash.xxh3_128_hexdigest(content)}
    (folder / "manifest.json").write_text(json.dumps({"step": step, "files": entries}))
    (run / "checkpoints" / "latest").write_text(f"{folder.name}\n")
    (run / "config.json").write_text("{}")
    (run / "metrics.jsonl").write_text(f"{step}\n")
    return folder


def test_a_checkpoint_is_complete_before_latest_names_it_and_what_the_run_deleted_goes(store: Any, tmp_path: Path) -> None:
    run, order = tmp_path / "runs" / "a", list[str]()

    class Watched(s3.ClusterPrefix):
        def write(self, name: str, content: bytes) -> None:
            order.append(name)
            super().write(name, content)

        def upload(self, name: str, path: Path) -> None:
            order.append(name)
            super().upload(name, path)

    bucket, kept = Watched(URL), dict[str, tuple[str, bytes]]()
    first = published(run, 10)
    s3.bring_up(bucket, tmp_path, "runs/a", kept, over=False)
    here = [f"runs/a/checkpoints/step-00000010/{name}" for name in ("model.safetensors", "state/optimizer.safetensors")]
    assert order[:3] == [*here, "runs/a/checkpoints/step-00000010/manifest.json"]
    assert order[-1] == "runs/a/checkpoints/latest"
    s3.bring_up(bucket, tmp_path, "runs/a", kept, over=False)
    assert len(order) == 6  # six with two records; nothing is sent twice
    # cut off during the second checkpoint: a new master finds the first
    published(run, 20)

    def cut(name: str, content: bytes) -> None:
        raise ConnectionError

    bucket.write = cut  # type: ignore[method-assign]
    with pytest.raises(ConnectionError):
        s3.bring_up(bucket, tmp_path, "runs/a", kept, over=False)
    elsewhere = tmp_path / "new"
    assert s3.restore(elsewhere, URL, "runs/a") == "step-00000010"
    assert (elsewhere / "runs/a/checkpoints/step-00000010/model.safetensors").read_bytes() == bytes([10]) * 100
    assert (elsewhere / "runs/a/metrics.jsonl").read_text() == "10\n"
    # the run deletes the first checkpoint, and another process uploads the second
    for path in (*first.glob("state/*"), first / "state", *first.glob("*.*")):
        path.rmdir() if path.is_dir() else path.unlink()
    first.rmdir()
    s3.bring_up(s3.ClusterPrefix(URL), tmp_path, "runs/a", {}, over=False)
    assert {name.split("/")[3] for name in names(store) if "/step-" in name} == {"step-00000020"}
    assert s3.restore(elsewhere, URL, "runs/a") == "step-00000020"
    assert s3.restore(elsewhere, URL, "runs/a") == ""  # the run exists already
    assert (elsewhere / "runs/a/checkpoints/latest").read_text() == "step-00000020\n"
    assert s3.restore(elsewhere, URL, "runs/b") == ""


def test_a_damaged_checkpoint_does_not_take_the_place_of_a_good_one(store: Any, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "a"
    published(run, 10)
    s3.bring_up(s3.ClusterPrefix(URL), tmp_path, "runs/a", {}, over=False)
    elsewhere = tmp_path / "new"
    published(elsewhere / "runs/a", 5)
    key = "some/where/first/runs/a/checkpoints/step-00000010/model.safetensors"
    for content in (bytes([11]) * 100, b""):
        store.put_object(Bucket="bucket", Key=key, Body=content)
        with pytest.raises(ValueError, match=r"in the bucket is damaged: model\.safetensors"):
            s3.restore(elsewhere, URL, "runs/a")
        assert (elsewhere / "runs/a/checkpoints/latest").read_text() == "step-00000005\n"
    store.put_object(Bucket="bucket", Key="some/where/first/runs/a/checkpoints/latest", Body=b"../../evil\n")
    with pytest.raises(ValueError, match="which is no checkpoint"):
        s3.restore(elsewhere, URL, "runs/a")


def test_the_role_of_the_nodes_reaches_the_clusters_own_part_and_nothing_else(store: Any, aws: Any, moto_port: int) -> None:
    boto3 = pytest.importorskip("boto3")
    store.put_object(Bucket="bucket", Key="some/where/other/secret", Body=b"x")
    store.put_object(Bucket="bucket", Key="some/where/first/mine", Body=b"x")
    endpoint = f"http://127.0.0.1:{moto_port}"
    iam = boto3.client("iam", endpoint_url=endpoint)
    settings = Settings(name="first", checkpoints="s3://bucket/some/where", instance_profile="nodes")
    iam.create_role(RoleName="nodes", AssumeRolePolicyDocument=policy("iam-trust", settings))
    iam.put_role_policy(RoleName="nodes", PolicyName="checkpoints", PolicyDocument=policy("iam-policy", settings))
    arn = "arn:aws:iam::123456789012:role/nodes"
    got = boto3.client("sts", endpoint_url=endpoint).assume_role(RoleArn=arn, RoleSessionName="i-1")["Credentials"]
    keys = {"aws_access_key_id": got["AccessKeyId"], "aws_secret_access_key": got["SecretAccessKey"]}
    node = boto3.client("s3", endpoint_url=endpoint, aws_session_token=got["SessionToken"], **keys)
    mine, other = ({"Bucket": "bucket", "Key": f"some/where/{name}"} for name in ("first/mine", "other/secret"))

    def enforced(calls: str) -> None:
        asked = urllib.request.Request(
            f"{endpoint}/moto-api/reset-auth", calls.encode(), {"Content-Type": "text/plain"}, method="POST"
        )
        urllib.request.urlopen(asked).close()

    denied = node.exceptions.ClientError
    enforced("0")
    try:
        node.put_object(**mine, Body=b"y")
        assert node.get_object(**mine)["Body"].read() == b"y"
        node.delete_object(**mine)
        for forbidden in (
            lambda: node.get_object(**other),
            lambda: node.put_object(**other, Body=b"y"),
            lambda: node.delete_object(**other),
            lambda: node.put_bucket_policy(Bucket="bucket", Policy="{}"),
        ):
            with pytest.raises(denied) as caught:
                forbidden()
            assert caught.value.response["Error"]["Code"] == "AccessDenied"
    finally:
        enforced("inf")


def test_the_policy_lists_the_clusters_own_names_alone(ec2: Callable[..., Any]) -> None:
    """Check the policy's condition on s3:prefix in its text: AWS evaluates it, but the stand-in does not."""
    where = ("--name", "first", "--checkpoints", "s3://bucket/some/where", "--instance-profile", "nodes")
    made = json.loads(ec2("export", "iam-policy", *where, "--region", "us-gov-west-1").out)
    objects, listing = made["Statement"]
    assert objects["Resource"] == "arn:aws-us-gov:s3:::bucket/some/where/first/*"
    assert listing["Resource"] == "arn:aws-us-gov:s3:::bucket"
    assert listing["Condition"] == {"StringLike": {"s3:prefix": "some/where/first/*"}}
    trust = json.loads(ec2("export", "iam-trust", *where).out)
    assert trust["Statement"][0]["Principal"] == {"Service": "ec2.amazonaws.com"}
    done = ec2("export", "iam-policy")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "checkpoints is not set: name the bucket" in done.err


def test_a_place_without_a_way_to_it_is_refused() -> None:
    with pytest.raises(SettingsError, match="checkpoints and instance_profile belong together"):
        Settings(name="x", checkpoints="s3://bucket")
    for text in ("s3://", "bucket", "s3://Bucket", "s3://bucket/a//b", "s3://bucket/a b"):
        with pytest.raises(SettingsError):
            Settings(name="x", checkpoints=text, instance_profile="nodes")


def test_the_master_alone_gets_the_profile(ec2: Callable[..., Any], aws: Any) -> None:
    ec2("launch", "--yes", "--checkpoints", "s3://bucket", "--instance-profile", "nodes")
    started = [form for action, form in aws.calls if action == "RunInstances"]
    given = {next(role for role in ("master", "worker") if role in form.values()): form for form in started}
    assert {role: form.get("IamInstanceProfile.Name") for role, form in given.items()} == {"master": "nodes", "worker": None}


# replaces psnode: writes a checkpoint prepared by the test, and ends
TRAINS = """#!/bin/bash
mkdir -p runs/a && cp -r "$HOME/ready/." runs/a/
echo "$@"
"""


def test_what_a_job_leaves_is_found_by_the_next_master(nodes: Any, store: Any, tmp_path: Path) -> None:
    """Check, with the programs of a node, that the checkpoint of a job is stored, and that a job that resumes finds it."""
    home = nodes.home("master")
    (home / "psnode/.venv/bin").mkdir(parents=True)
    (home / "psnode/.venv/bin/psnode").write_text(TRAINS)
    (home / "psnode/.venv/bin/psnode").chmod(0o755)
    (home / "psnode/.venv/bin/python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (home / "psnode/.venv/bin/python").chmod(0o755)
    published(home / "ready", 30)
    more = ("--checkpoints", "s3://bucket/some/where", "--instance-profile", "nodes")
    done = nodes.ec2("run", *more, "--", "train", "--train-dir", "runs/a")
    assert done.code == 0, done.err
    assert "everything is kept" in done.err
    home.joinpath("psnode/runs/a/checkpoints/latest").unlink()
    done = nodes.ec2("run", *more, "--", "train", "--resume", "--train-dir", "runs/a")
    assert done.code == 0, done.err
    assert "runs/a: step-00000030 came from s3://bucket/some/where/" in done.err
    refused = nodes.ec2("run", *more, "--", "train", "--resume", "--train-dir", "/mnt/a")
    assert refused.code == 2
    assert "is not below remote_dir" in refused.err
