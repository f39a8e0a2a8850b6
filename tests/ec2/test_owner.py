"""A cluster has one owner: the same for every command, under any session name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from psnode_ec2.cluster import owner_of


@pytest.mark.parametrize(
    ("arn", "owner"),
    [
        ("arn:aws:iam::123456789012:user/ada", "ada"),
        ("arn:aws:iam::123456789012:user/science/ada", "ada"),
        ("arn:aws:iam::123456789012:root", "root"),
        ("arn:aws-us-gov:sts::123456789012:assumed-role/train/botocore-session-1732213667", "role-train"),
        ("arn:aws:sts::123456789012:assumed-role/node/i-0123456789abcdef0", "role-node"),
        ("arn:aws:sts::123456789012:assumed-role/AWSReservedSSO_Power_0123456789abcdef/ada@example.org", "ada@example.org"),
        ("arn:aws:sts::123456789012:federated-user/ada", "ada"),
    ],
)
def test_the_owner_is_a_user_or_a_role_and_no_session(arn: str, owner: str) -> None:
    assert owner_of(arn) == owner


def test_who_assumed_a_role_again_still_finds_and_removes_the_cluster(
    ec2: Callable[..., Any], aws: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sts = pytest.importorskip("boto3").client("sts", region_name="us-west-2")

    def assume(session: str) -> None:
        got = sts.assume_role(RoleArn="arn:aws:iam::123456789012:role/train", RoleSessionName=session)["Credentials"]
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", got["AccessKeyId"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", got["SecretAccessKey"])
        monkeypatch.setenv("AWS_SESSION_TOKEN", got["SessionToken"])

    assume("botocore-session-1")
    assert ec2("launch", "--yes").code == 0
    assume("botocore-session-2")
    assert "3 of 3 nodes" in ec2("status").out
    assert ec2("launch", "--yes").code == 0
    assert aws.actions().count("RunInstances") == 2
    assert ec2("shutdown", "--yes").code == 0
    assert "0 of 3 nodes" in ec2("status").out
