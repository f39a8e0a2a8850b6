"""Calls to AWS: typed errors, retries with backoff, and a dry run that makes only calls that change nothing."""

from __future__ import annotations

import dataclasses
import random
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import click

from psnode.config.declaration import nearest
from psnode.config.plain_json import to_json
from psnode_ec2 import ec2_errors
from psnode_ec2.settings import Settings

_THROTTLED_TRIES = 7  # tries by botocore of a call that EC2 throttles: up to 51 s
_PATIENCE = 7  # tries of a call whose connection fails, each with botocore's own retries: half a minute
_UNSHOWN = 8  # tries of a call on a resource that EC2 does not know yet: about a minute
_THROTTLED = {"RequestLimitExceeded", "Throttling", "ThrottlingException", "RequestThrottled", "EC2ThrottledException"}
_AGAIN = {"InternalError", "InternalFailure", "ServiceUnavailable", "Unavailable", "ServerInternal"}
_CLOCK = "the clock of this machine is wrong: set it, for example with timedatectl set-ntp true"
_TYPED: Mapping[str, tuple[type[ec2_errors.Ec2Error], str]] = {
    "InsufficientInstanceCapacity": (ec2_errors.CapacityError, "add fallback_zones or fallback_types, or try later"),
    "InsufficientHostCapacity": (ec2_errors.CapacityError, "add fallback_zones or fallback_types, or try later"),
    "InsufficientCapacity": (ec2_errors.CapacityError, "add fallback_zones or fallback_types, or try later"),
    "InsufficientCapacityOnHost": (ec2_errors.CapacityError, "add fallback_zones or fallback_types, or try later"),
    "UnfulfillableCapacity": (ec2_errors.CapacityError, "add fallback_zones or fallback_types, or try later"),
    "InsufficientVolumeCapacity": (ec2_errors.CapacityError, "add fallback_zones, or try later"),
    "InsufficientAddressCapacity": (ec2_errors.CapacityError, "add fallback_zones, or try later"),
    "InsufficientFreeAddressesInSubnet": (ec2_errors.CapacityError, "add fallback_zones, or set subnet_id to a larger subnet"),
    "SpotMaxPriceTooLow": (ec2_errors.PriceTooLowError, "raise spot_price, or leave it out"),
    "Unsupported": (ec2_errors.NotOfferedError, "choose another type or zone"),
    "InvalidInstanceType": (ec2_errors.NotOfferedError, "see AWS's list of instance types"),
    "VcpuLimitExceeded": (ec2_errors.QuotaError, "ask for more in the Service Quotas console, or take fewer or smaller nodes"),
    "InstanceLimitExceeded": (ec2_errors.QuotaError, "ask for more in the Service Quotas console, or take fewer nodes"),
    "MaxSpotInstanceCountExceeded": (
        ec2_errors.QuotaError,
        "ask for more in the Service Quotas console, or use method on-demand",
    ),
    "VolumeLimitExceeded": (ec2_errors.QuotaError, "ask for more in the Service Quotas console, or lower volume_gib"),
    "InvalidKeyPair.NotFound": (ec2_errors.NoKeyPairError, "check key_name and region, or leave key_name out"),
    "InvalidAMIID.NotFound": (ec2_errors.SettingsError, "images belong to one region: check image_id"),
    "InvalidAMIID.Malformed": (ec2_errors.SettingsError, "check image_id"),
    "InvalidSubnetID.NotFound": (ec2_errors.SettingsError, "check subnet_id and region"),
    "InvalidGroup.Duplicate": (ec2_errors.AlreadyThereError, ""),
    "InvalidKeyPair.Duplicate": (ec2_errors.AlreadyThereError, ""),
    "InvalidPlacementGroup.Duplicate": (ec2_errors.AlreadyThereError, ""),
    "InvalidPermission.Duplicate": (ec2_errors.AlreadyThereError, ""),
    "InvalidInstanceID.NotFound": (ec2_errors.NotShownError, "see status, and try again"),
    **dict.fromkeys(
        ("InvalidGroup.NotFound", "InvalidPlacementGroup.Unknown"),
        (ec2_errors.NotShownError, "see status, and try again"),
    ),
    **dict.fromkeys(
        ("DependencyViolation", "InvalidGroup.InUse", "InvalidPlacementGroup.InUse"),
        (ec2_errors.InUseError, "see in the console what uses it, and run shutdown again"),
    ),
    "IdempotentInstanceTerminated": (ec2_errors.SpentTokenError, ""),
    "IdempotentParameterMismatch": (ec2_errors.TakenTokenError, "another launch is at work: see status, and try again"),
    **dict.fromkeys(("RequestExpired", "RequestInTheFuture", "RequestTimeTooSkewed"), (ec2_errors.AccessError, _CLOCK)),
    **dict.fromkeys(
        ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"),
        (ec2_errors.AccessError, "these credentials have expired: log in again, with aws sso login for example"),
    ),
    **dict.fromkeys(
        ("OptInRequired", "PendingVerification", "Blocked"),
        (ec2_errors.AccessError, "the account may not use this yet: see its messages in the console"),
    ),
    **dict.fromkeys(
        ("AuthFailure", "InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch"),
        (ec2_errors.AccessError, "these credentials are not valid (any more): aws sts get-caller-identity shows whose they are"),
    ),
    **dict.fromkeys(
        ("UnauthorizedOperation", "AccessDenied", "AccessDeniedException"),
        (ec2_errors.AccessError, "docs/ec2.md lists the permissions that this tool needs"),
    ),
}  # fmt: skip


# codes with which RunInstances rejects types or a zone for the placement group; it may accept other types or zones
_UNPLACED = {"InvalidParameterCombination", "InvalidParameterValue", "Unsupported", "UnsupportedOperation"}


_DESCRIPTIONS: list[Any] = []  # botocore's loader of the descriptions of services; empty before the first session
_READING, _SAYING = threading.Lock(), threading.Lock()


class Cloud:
    """A region of AWS with the user's credentials.

    Args:
        say: called with the lines that --dry-run prints.
        dry_run: True to let `change` print the call instead of making it.
        clients: clients of services by name, used instead of new ones.
        sleep: function that waits for a number of seconds.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        dry_run: bool = False,
        say: Callable[[str], None] = print,
        clients: Mapping[str, Any] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.dry_run = dry_run
        self.say = say
        self.sleep = sleep
        self.clock = clock
        self._settings = settings
        self.listed: dict[str, float] = {}  # prices already read from AWS's price list
        self._said = set[str]()
        self._clients: dict[str, Any] = dict(clients or {})
        self._shared: Any = None  # the session of all clients, as soon as there is one

    def in_region(self, region: str) -> Cloud:
        """Return a Cloud with the same settings in another region."""
        settings = dataclasses.replace(self._settings, region=region)
        return Cloud(settings, dry_run=self.dry_run, say=self.say, sleep=self.sleep, clock=self.clock)

    @property
    def region(self) -> str:
        return str(self._client("ec2").meta.region_name)

    def ask(self, operation: str, service: str = "ec2", **parameters: Any) -> dict[str, Any]:
        """Make a call that changes nothing, and return its result. If the result has several pages, all are returned together."""
        client = self._client(service)
        if self.dry_run:
            self.tell(_shown(client, service, operation, parameters))
        if not client.can_paginate(operation):
            return self._patiently(lambda: getattr(client, operation)(**parameters))
        return self._patiently(lambda: client.get_paginator(operation).paginate(**parameters).build_full_result())

    def change(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """Make a call to EC2 that changes something. In a dry run, print the call and return an empty dict."""
        if self.dry_run:
            self.tell("would " + _shown(self._client("ec2"), "ec2", operation, parameters))
            return {}
        return self._patiently(lambda: getattr(self._client("ec2"), operation)(**parameters))

    def change_shown(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """Call `change`. If EC2 does not know a resource that has just been made, repeat the call for up to a minute."""
        for attempt in range(_UNSHOWN - 1):
            try:
                return self.change(operation, **parameters)
            except ec2_errors.NotShownError:
                self.pause(attempt)
        return self.change(operation, **parameters)

    def pause(self, attempt: int, first: float = 0.5, longest: float = 30.0) -> None:
        """Wait before the next try, after the failed `attempt` (0, 1, ...).

        The time doubles with each attempt, up to `longest` seconds, and has random jitter.
        """
        self.sleep(min(longest, first * 2.0**attempt) * random.uniform(0.5, 1.0))

    def tell(self, line: str) -> None:
        """Print a line of a dry run, unless it was printed before."""
        with _SAYING:  # several threads call the regions at the same time
            if line not in self._said:
                self._said.add(line)
                self.say(line)

    def _patiently(self, call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        import botocore.exceptions as found
        from botocore.parsers import ResponseParserError

        for attempt in range(_PATIENCE):
            last = attempt == _PATIENCE - 1
            try:
                return call()
            except found.ClientError as error:
                code = error.response["Error"].get("Code", "")
                if code not in _AGAIN or last:
                    raise translated(error) from error
            except (found.ConnectionError, found.HTTPClientError) as error:
                if last or isinstance(error, found.ConnectTimeoutError | found.ReadTimeoutError):  # botocore's tries took minutes
                    raise ec2_errors.Ec2Error(f"AWS cannot be reached ({error}): check the network and region") from error
            except ResponseParserError as error:
                if last:
                    raise ec2_errors.Ec2Error(f"an answer of AWS cannot be read ({_line(error)}): try later") from error
            except (found.SSOError, found.TokenRetrievalError) as error:
                raise ec2_errors.AccessError(f"the log-in has ended ({_line(error)}): aws sso login") from error
            except (found.NoCredentialsError, found.PartialCredentialsError, found.CredentialRetrievalError) as error:
                raise _no_credentials() from error
            except found.BotoCoreError as error:
                raise ec2_errors.Ec2Error(f"{type(error).__name__}: {_line(error)}") from error
            self.pause(attempt)
        raise AssertionError("unreachable")

    def _client(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service], self._shared = _client(service, self._settings, self._shared)
        return self._clients[service]


def translated(error: Any) -> ec2_errors.Ec2Error:
    """Return the typed error for a botocore ClientError: EC2's message on one line, and a remedy."""
    code, text = error.response["Error"].get("Code", "?"), _without_page(error.response["Error"].get("Message", ""))
    kind, remedy = _TYPED.get(code, (ec2_errors.Ec2Error, ""))
    if code in _THROTTLED:
        kind, remedy = ec2_errors.ThrottledError, "others use this account too: try later"
    elif code == "SignatureDoesNotMatch" and "expired" in text.lower():
        remedy = _CLOCK
    elif error.operation_name == "RunInstances" and code == "InvalidPlacementGroup.InUse":
        kind, remedy = (
            ec2_errors.CapacityError,
            "it still is where the last attempt was: try again, or set placement_group = false",
        )
    elif error.operation_name == "RunInstances" and code in _UNPLACED and "placement group" in text.lower():
        kind, remedy = ec2_errors.NotOfferedError, "set placement_group = false, or choose types that have it"
    message = f"{error.operation_name}: {' '.join(str(text).split()).rstrip('.')} ({code})"
    return kind(f"{message}: {remedy}" if remedy else message)


def _without_page(text: str) -> str:
    """Return the title of `text` if it is a web page, otherwise `text` itself. Servers other than AWS send pages for errors."""
    title = re.search(r"<title>(.*?)</title>", text, re.S)
    return title[1] if title else text


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _client(service: str, settings: Settings, session: Any) -> tuple[Any, Any]:
    """Return a new client for `service`, and its session. The session is `session`, or a new one if that is None."""
    try:
        import boto3
        import botocore.config
        import botocore.exceptions
    except ImportError:
        raise ec2_errors.SettingsError("boto3 is not installed: pip install '.[ec2]' in a clone of psnode") from None
    try:
        session = session or _session(boto3, settings)
        return _made(session, botocore.config, service), session
    except botocore.exceptions.ProfileNotFound:
        raise ec2_errors.AccessError(
            f"profile {settings.profile!r} is not in the AWS configuration: aws configure makes one"
        ) from None
    except (botocore.exceptions.BotoCoreError, ValueError) as error:
        text = " ".join(str(error).split())
        raise ec2_errors.AccessError(f"the AWS configuration cannot be used ({text}): aws configure makes one") from error


def _made(session: Any, config: Any, service: str) -> Any:
    region = session.region_name
    if region is None:
        also = "" if session.get_credentials() is not None else f"; {_no_credentials()}"
        raise ec2_errors.SettingsError(f"no region: set region, for example us-west-2, or AWS_REGION{also}")
    known = [name for part in session.get_available_partitions() for name in session.get_available_regions("ec2", part)]
    if region not in known:
        raise ec2_errors.SettingsError(f"unknown region {region!r}{nearest(region, known)}; a very new one needs a newer boto3")
    if session.get_credentials() is None:
        raise _no_credentials()
    # the price list is the same in all regions, but few regions have an endpoint for it
    where = "us-east-1" if service == "pricing" else region
    patient = config.Config(
        retries={"mode": "adaptive", "total_max_attempts": _THROTTLED_TRIES}, connect_timeout=10, read_timeout=60
    )
    return session.client(service, region_name=where, config=patient)


def _session(boto3: Any, settings: Settings) -> Any:
    """Return a session of boto3. Sessions share botocore's descriptions of services, since reading these takes a second."""
    import botocore.session

    core = botocore.session.Session()
    with _READING:
        if not _DESCRIPTIONS:
            _DESCRIPTIONS.append(core.get_component("data_loader"))
    core.register_component("data_loader", _DESCRIPTIONS[0])
    return boto3.Session(botocore_session=core, profile_name=settings.profile or None, region_name=settings.region or None)


def _no_credentials() -> ec2_errors.AccessError:
    return ec2_errors.AccessError("no AWS credentials: run aws configure, log in with aws sso login, or set AWS_PROFILE")


def _shown(client: Any, service: str, operation: str, parameters: Mapping[str, Any]) -> str:
    """Return a call as one line: service, operation, region and parameters.

    Of a script among the parameters, only the number of lines is shown.
    """
    if "UserData" in parameters:
        parameters = {**parameters, "UserData": f"({len(parameters['UserData'].splitlines())} lines of sh)"}
    return f"call {service} {operation} in {client.meta.region_name} {to_json(parameters, default=_plain, sort_keys=True)}"


def _plain(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def progress(text: str) -> None:
    """Print `text` with a newline to stderr. Several threads may call this.

    Unprintable characters except newline and tab become ?.
    """
    click.echo("".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text), err=True)
