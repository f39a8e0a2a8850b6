"""Bad input, quotas and empty zones: one line with the remedy, the right code, and nothing that was started."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RefusedLaunch = Callable[..., str]


@pytest.fixture
def refused(ec2: Callable[..., Any], aws: Any) -> RefusedLaunch:
    """Run a launch that must end with code 2 and one line, having started nothing; returns the line."""

    def run(*args: object) -> str:
        done = ec2("launch", "--yes", *args)
        assert done.code == 2, done.err
        (line,) = done.err.strip().splitlines()[-1:]
        assert line.startswith("psnode-ec2: error: ")
        assert done.out == ""
        assert [action for action in aws.actions() if not action.startswith(("Describe", "Get"))] == []
        return line.removeprefix("psnode-ec2: error: ")

    return run


def test_a_key_file_that_is_missing(refused: RefusedLaunch, tmp_path: Path) -> None:
    line = refused("--path-to-keyfile", tmp_path / "none")
    assert re.search(r"path_to_keyfile \S+/none cannot be read \(No such file or directory\): .*ssh-keygen -t ed25519", line)


def test_a_key_file_that_is_a_folder_or_no_key(refused: RefusedLaunch, tmp_path: Path) -> None:
    assert "cannot be read (Is a directory)" in refused("--path-to-keyfile", tmp_path)
    (tmp_path / "text").write_text("no key\n")
    assert "is no private key" in refused("--path-to-keyfile", tmp_path / "text")


def test_a_region_that_does_not_exist(refused: RefusedLaunch) -> None:
    line = refused("--region", "us-west-9")
    assert "unknown region 'us-west-9'; did you mean us-west-" in line


def test_a_zone_that_does_not_exist(refused: RefusedLaunch) -> None:
    assert "zone us-west-2x has no subnet to use; did you mean us-west-2" in refused("--availability-zone", "us-west-2x")


def test_a_type_that_does_not_exist(refused: RefusedLaunch) -> None:
    line = refused("--worker-type", "m5.hugest")
    assert "m5.hugest" in line
    assert line.count(":") >= 1


def test_a_type_that_is_not_offered_in_the_zone(refused: RefusedLaunch) -> None:
    # moto's table is a copy of AWS's: this one is in two of the four zones
    line = refused("--worker-type", "trn1.2xlarge", "--availability-zone", "us-west-2a")
    assert line == "trn1.2xlarge is not offered in us-west-2a: it is in us-west-2b, us-west-2d"


def test_types_that_no_image_fits_both(refused: RefusedLaunch) -> None:
    line = refused("--master-type", "m6g.large", "--prices", "m6g.large=0.1")
    assert "m5.large is x86_64, m6g.large is arm64" in line


def test_an_unknown_key_in_the_file(refused: RefusedLaunch, config: Path) -> None:
    config.write_text(config.read_text() + "n_worker = 3\n")
    line = refused()
    assert "n_worker" in line
    assert "did you mean n_workers?" in line


def test_a_file_that_is_no_toml_or_missing(refused: RefusedLaunch, config: Path) -> None:
    config.write_text("name = \n")
    assert str(config) in refused()
    config.unlink()
    assert "cannot be read" in refused()


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("--n-workers", 0, "n_workers must be 1 to 255, not 0"),
        ("--n-workers", "two", "n_workers must be a whole number, not 'two'"),
        ("--method", "Spot", "method must be on-demand or spot, not 'Spot'; did you mean spot?"),
        ("--name", "Ada's", 'name is "Ada\'s", which it cannot be'),
        ("--spot-price", 0.1, "spot_price is 0.1 but method is on-demand"),
        ("--prices", "m5.large=0", "prices: that of m5.large is 0: it must be more than 0"),
        ("--prices", "m5.large=-2", "prices: that of m5.large is -2: it must be more than 0"),
        ("--ssh-from", "0.0.0.0/0", "the whole Internet"),
        ("--image-id", "ami-0123456789abcdef0", "check image_id"),
        ("--subnet-id", "subnet-00000000", "check subnet_id"),
        ("--key-name", "nobodys", "check key_name"),
        ("--nfs-mount-point", "/mnt", "set both or none"),
        ("--nfs-ip-address", "files", "nfs_"),
    ],
)
def test_a_setting_that_cannot_be(refused: RefusedLaunch, flag: str, value: object, words: str) -> None:
    assert words in refused(flag, value)


def test_a_key_name_of_another_key(refused: RefusedLaunch, aws: Any, api: Any, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
    name = f"other-{os.getpid()}"
    api.import_key_pair(KeyName=name, PublicKeyMaterial=(tmp_path / "other.pub").read_bytes())
    aws.calls.clear()
    assert f"key_name {name} is another key than" in refused("--key-name", name)


def test_more_nodes_or_more_money_than_the_caps_allow(refused: RefusedLaunch) -> None:
    assert "max_instances = 9: raise it" in refused("--n-workers", 9)
    # three at 0.096 and at 1.00 USD
    assert "3 nodes may cost 0.29 USD an hour, over max_hourly_price = 0.2" in refused("--max-hourly-price", 0.2)
    assert "may cost 3.00 USD" in refused("--method", "spot", "--spot-price", 1, "--max-hourly-price", 2.99)


@pytest.mark.parametrize("price", [-1, 0.00001])
def test_a_spot_price_that_nothing_costs(refused: RefusedLaunch, price: float) -> None:
    assert "spot_price must be" in refused("--method", "spot", "--spot-price", price)


def test_a_price_of_nothing_is_no_price(refused: RefusedLaunch, aws: Any) -> None:
    aws.prices["r5.large"] = 0.0
    assert "write prices = {" in refused("--worker-type", "r5.large")


def test_a_price_that_nobody_knows(refused: RefusedLaunch) -> None:
    assert "write prices = {" in refused("--worker-type", "r5.large")


def test_no_credentials(refused: RefusedLaunch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert refused().startswith("no AWS credentials: run aws configure")
    assert "profile 'none'" in refused("--profile", "none")


def test_half_of_the_credentials(refused: RefusedLaunch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert "aws_secret_access_key" in refused().lower()


@pytest.mark.parametrize("variable", ["AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"])
def test_a_file_of_aws_that_cannot_be_read(
    refused: RefusedLaunch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    (tmp_path / "broken").write_text("[default\nregion us-west-2\n")
    monkeypatch.setenv(variable, str(tmp_path / "broken"))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    line = refused()
    assert "the AWS configuration cannot be used" in line
    assert str(tmp_path / "broken") in line


def test_a_directory_that_cannot_be_written(ec2: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ec2("launch", "--yes")
    for words in (["get_hosts", "--directory", tmp_path / "file" / "hosts"], ["ssh", "--state-dir", tmp_path / "file", "true"]):
        done = ec2(*words, "--launch-deadline", 1)
        assert done.code in (2, 4)
        assert "Traceback" not in done.err
    done = ec2("get_hosts", "--directory", tmp_path / "file" / "hosts")
    assert done.code == 2
    assert re.search(r"error: \S+ cannot be written \(Not a directory\): choose another --directory", done.err)


@pytest.mark.parametrize("code", ["AuthFailure", "ExpiredToken", "UnauthorizedOperation"])
def test_credentials_that_are_refused(refused: RefusedLaunch, aws: Any, code: str) -> None:
    aws.refuse("DescribeInstances", code, "AWS was not able to validate the provided access credentials")
    assert re.search(rf"\({code}\): .*(credentials|permissions)", refused())


@pytest.mark.parametrize("code", ["VcpuLimitExceeded", "InstanceLimitExceeded", "MaxSpotInstanceCountExceeded"])
def test_a_quota_that_is_reached_leaves_nothing(ec2: Callable[..., Any], aws: Any, api: Any, code: str) -> None:
    aws.refuse("RunInstances", code, "You have requested more vCPU capacity than your current vCPU limit of 32 allows")
    done = ec2("launch", "--yes")
    assert done.code == 2
    assert re.search(rf"vCPU limit of 32 allows .*\({code}\): ask for more in the Service Quotas console", done.err)
    assert aws.actions().count("RunInstances") == 1
    assert "0 of 3 nodes" in ec2("status").out
    assert aws.groups == {}
