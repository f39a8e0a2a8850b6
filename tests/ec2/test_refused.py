"""Bad input, quotas and zones without capacity: one line with a remedy, the right exit code, and nothing started."""

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
    """Return a function that runs a launch, checks that it ends with code 2 and changes nothing, and returns its last line."""

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


def test_a_key_that_others_may_read_is_found_before_nodes_cost_money(
    refused: RefusedLaunch, keyfile: Path, tmp_path: Path
) -> None:
    for name in ("id", "id.pub"):
        (tmp_path / name).write_bytes((keyfile if name == "id" else keyfile.with_suffix(".pub")).read_bytes())
    (tmp_path / "id").chmod(0o640)
    line = refused("--path-to-keyfile", tmp_path / "id")
    assert line == f"path_to_keyfile {tmp_path}/id may be read by others, and ssh refuses it: chmod 600 {tmp_path}/id"


def test_a_public_half_of_another_key_is_found_before_nodes_cost_money(
    refused: RefusedLaunch, keyfile: Path, tmp_path: Path
) -> None:
    (tmp_path / "id").write_bytes(keyfile.read_bytes())
    (tmp_path / "id").chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
    (tmp_path / "id.pub").write_bytes((tmp_path / "other.pub").read_bytes())
    line = refused("--path-to-keyfile", tmp_path / "id")
    assert line.startswith(f"{tmp_path}/id.pub is not the public half of {tmp_path}/id, which nodes would not let in: ")


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
    # moto's table is a copy of AWS's, in which this type is in two of the four zones
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
        ("--name", "Ada's", 'name is "Ada\'s", which is not valid'),
        ("--spot-price", 0.1, "spot_price is 0.1 but method is on-demand"),
        ("--prices", "m5.large=0", "prices: that of m5.large is 0: it must be more than 0"),
        ("--prices", "m5.large=-2", "prices: that of m5.large is -2: it must be more than 0"),
        ("--ssh-from", "0.0.0.0/0", "the whole Internet"),
        ("--ssh-from", "0.0.0.0/1", "much of the Internet: name the addresses that you use, at most a /8"),
        ("--ssh-from", "2000::/3", "much of the Internet: name the addresses that you use, at most a /16"),
        ("--ssh-from", "203.0.113.7/24", "write auto, or a range of addresses"),
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
    # three nodes at 0.096 or 1.00 USD, with 3 x 50 GiB at 0.08 / 730 and 3 addresses at 0.005
    line = refused("--max-hourly-price", 0.2)
    assert "3 nodes may cost 0.32 USD an hour with their volumes and addresses, over max_hourly_price = 0.2" in line
    assert "may cost 3.03 USD" in refused("--method", "spot", "--spot-price", 1, "--max-hourly-price", 3.02)


def test_volumes_and_addresses_are_under_the_cap_too(refused: RefusedLaunch) -> None:
    # 9 x 16 TiB at 0.08 USD per GiB and month: 16.16 USD an hour, and 9 x (0.096 + 0.005)
    line = refused("--n-workers", 8, "--volume-gib", 16384, "--max-hourly-price", 1)
    assert "9 nodes may cost 17.07 USD an hour" in line
    assert "0.04 USD" in refused("--n-workers", 1, "--volume-gib", 8, "--max-hourly-price", 0.03, "--prices", "m5.large=0.015")


def test_a_volume_whose_price_nobody_knows_is_asked_for(refused: RefusedLaunch, aws: Any) -> None:
    del aws.prices["gp3"]
    assert 'write prices = {"gp3" = USD for a GiB and a month}' in refused()


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


@pytest.mark.parametrize(
    ("code", "message", "remedy"),
    [
        ("RequestExpired", "Request has expired", "the clock of this machine is wrong: set it"),
        ("SignatureDoesNotMatch", "Signature expired: 20260101T000000Z", "the clock of this machine is wrong: set it"),
        ("ExpiredToken", "The security token included in the request is expired", "expired: log in again, with aws sso login"),
        ("OptInRequired", "You are not subscribed to this service", "the account may not use this yet"),
    ],
)
def test_what_is_wrong_with_the_desk_is_told_with_what_helps(
    refused: RefusedLaunch, aws: Any, code: str, message: str, remedy: str
) -> None:
    aws.refuse("DescribeInstances", code, message)
    assert f"({code}): " in (line := refused())
    assert remedy in line


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


def test_all_that_this_machine_lacks_is_told_before_any_call(
    refused: RefusedLaunch, aws: Any, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    config.write_text(config.read_text().replace('region = "us-west-2"\n', ""))
    line = refused("--path-to-keyfile", tmp_path / "none")
    assert all(words in line for words in ("/none cannot be read", "no region: set region", "no AWS credentials: "))
    assert aws.calls == []


def test_all_unknown_prices_are_told_at_once_with_the_address(
    refused: RefusedLaunch, aws: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws.prices.clear()
    monkeypatch.setattr("psnode_ec2.resources._OWN_ADDRESS", "http://127.0.0.1:9")  # nothing listens there
    line = refused("--worker-type", "c5.2xlarge", "--ssh-from", "auto")
    table = '{"c5.2xlarge" = USD an hour, "m5.large" = USD an hour, "gp3" = USD for a GiB and a month}'
    assert f"write prices = {table}; this machine's public address cannot be found out" in line
