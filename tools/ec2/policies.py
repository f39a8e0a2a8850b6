"""IAM policies with the least permissions, as JSON: for the master, which stores checkpoints, and for users of this tool."""

from __future__ import annotations

from typing import Any

from psnode.config.plain_json import to_json
from psnode_ec2.ec2_errors import SettingsError
from psnode_ec2.settings import Settings
from psnode_ec2.tags import CLUSTER

# calls on resources that already carry the cluster's tag
_OWN = (
    "AuthorizeSecurityGroupEgress", "AuthorizeSecurityGroupIngress", "DeleteKeyPair", "DeletePlacementGroup",
    "DeleteSecurityGroup", "RevokeSecurityGroupIngress", "TerminateInstances",
)  # fmt: skip
_MAKING = ("CreatePlacementGroup", "CreateSecurityGroup", "ImportKeyPair", "RunInstances")
_READING = (
    "ec2:DescribeImages", "ec2:DescribeInstanceTypeOfferings", "ec2:DescribeInstanceTypes", "ec2:DescribeInstances",
    "ec2:DescribeKeyPairs", "ec2:DescribePlacementGroups", "ec2:DescribeRegions", "ec2:DescribeSecurityGroups",
    "ec2:DescribeSpotPriceHistory", "ec2:DescribeSubnets", "ec2:DescribeVolumes", "ec2:GetConsoleOutput",
    "ec2:GetSpotPlacementScores", "pricing:GetProducts", "sts:GetCallerIdentity",
)  # fmt: skip


def policy(kind: str, settings: Settings) -> str:
    """Return the policy `kind` as JSON for `aws iam`.

    iam-policy is for the nodes' role, iam-trust for the service that may take this role, and iam-user for users of this tool.
    """
    made = {"iam-policy": _nodes, "iam-trust": _trust, "iam-user": _user}[kind](settings)
    return to_json({"Version": "2012-10-17", "Statement": made}, indent=2) + "\n"


def _nodes(settings: Settings) -> list[dict[str, Any]]:
    """Return the statements that let the master use the cluster's prefix of the bucket.

    Raises SettingsError if the setting checkpoints is empty.
    """
    if not settings.checkpoints:
        raise SettingsError("checkpoints is not set: name the bucket, --checkpoints s3://BUCKET/PREFIX")
    bucket, _, prefix = settings.store.removeprefix("s3://").partition("/")
    where = f"{_arn(settings)}:s3:::{bucket}"
    return [
        {
            "Sid": "Checkpoints",
            "Effect": "Allow",
            "Action": ["s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:PutObject"],
            "Resource": f"{where}/{prefix}/*",
        },
        {
            "Sid": "ListCheckpoints",
            "Effect": "Allow",
            "Action": "s3:ListBucket",
            "Resource": where,
            "Condition": {"StringLike": {"s3:prefix": f"{prefix}/*"}},
        },
    ]


def _trust(settings: Settings) -> list[dict[str, Any]]:
    who = "ec2.amazonaws.com.cn" if _arn(settings) == "arn:aws-cn" else "ec2.amazonaws.com"
    return [{"Effect": "Allow", "Principal": {"Service": who}, "Action": "sts:AssumeRole"}]


def _user(settings: Settings) -> list[dict[str, Any]]:
    arn = _arn(settings)
    tagged = {"Null": {f"aws:ResourceTag/{CLUSTER}": "false"}}
    made: list[dict[str, Any]] = [{"Sid": "Read", "Effect": "Allow", "Action": list(_READING), "Resource": "*"}]
    made.append({"Sid": "Make", "Effect": "Allow", "Action": [f"ec2:{name}" for name in _MAKING], "Resource": "*"})
    made.append({
        "Sid": "TagWhatIsMade",
        "Effect": "Allow",
        "Action": "ec2:CreateTags",
        "Resource": f"{arn}:ec2:*:*:*/*",
        "Condition": {"StringEquals": {"ec2:CreateAction": list(_MAKING)}},
    })  # fmt: skip
    made.append(
        {"Sid": "Own", "Effect": "Allow", "Action": [f"ec2:{name}" for name in _OWN], "Resource": "*", "Condition": tagged}
    )
    made.append({
        "Sid": "Extend",
        "Effect": "Allow",
        "Action": "ec2:CreateTags",
        "Resource": f"{arn}:ec2:*:*:instance/*",
        "Condition": {**tagged, "ForAllValues:StringEquals": {"aws:TagKeys": ["psnode:hours"]}},
    })  # fmt: skip
    if settings.instance_profile:
        made.append({
            "Sid": "GiveNodesTheirRole",
            "Effect": "Allow",
            "Action": "iam:PassRole",
            "Resource": f"{arn}:iam::*:role/{settings.instance_profile}",
            "Condition": {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}},
        })  # fmt: skip
    return made


def _arn(settings: Settings) -> str:
    """Return the beginning of ARNs in the partition of AWS to which the region belongs."""
    return "arn:aws" + next(
        (part for start, part in (("cn-", "-cn"), ("us-gov-", "-us-gov")) if settings.region.startswith(start)), ""
    )
