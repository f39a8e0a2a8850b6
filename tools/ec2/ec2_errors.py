"""Exceptions that this tool raises on purpose, with their exit codes.

    Ec2Error                     1   EC2 refused for an unknown reason
    ├── SettingsError            2   a setting is unknown, out of bounds, or names something that EC2 does not have
    │   ├── AccessError          2   no credentials, or no permission for this call
    │   ├── NotOfferedError      2   the zone or the region has no such instance type
    │   ├── QuotaError           2   the account's quota is exceeded
    │   ├── CapError             2   over max_instances or max_hourly_price
    │   ├── NoClusterError       2   the command needs nodes, and the cluster has none
    │   ├── NoKeyPairError       2   EC2 has no key pair of that name
    │   └── DeclinedError        2   the user answered no, or could not be asked
    ├── CapacityError            3   no zone and type had room at the offered price
    │   └── PriceTooLowError     3   spot_price is below the market everywhere
    ├── ThrottledError           3   EC2 throttled a call until the last try
    ├── DeadlineError            3   nodes were not ready in time
    ├── GivenUpError             3   a job that is kept alive is not restarted again
    ├── NodeLostError            3   a node of this launch ended before the cluster was complete
    ├── HostKeyError             4   a host key is not known yet, or differs from the known one
    ├── KeepError                1   trained weights cannot be fetched from nodes about to be ended
    ├── RemoteError              n   a command on a node failed; n is its exit code
    ├── AlreadyThereError        1   a resource to be made exists already; callers look it up
    ├── NotShownError            1   EC2 does not know this id, yet or any more; callers try again or ignore the error
    ├── InUseError               1   a resource to be removed is in use, perhaps by a node that is ending; callers try again
    ├── SpentTokenError          1   the instances of a client token have ended; callers take the next one
    ├── TakenTokenError          1   another launch has used a client token; callers look at the instances of that launch
    └── OthersError              1   another launch changes the same cluster; callers make a new plan

The message of an error is one line with the fault and, if one is known, the remedy.
"""

from __future__ import annotations

from typing import Protocol

UNREACHED = 255  # ssh's own exit code


class Ec2Error(Exception):
    """Base of all errors; `exit_code` is the exit code of the process."""

    exit_code = 1


class SettingsError(Ec2Error):
    """A setting that is unknown, out of bounds, or names something that does not exist."""

    exit_code = 2


class AccessError(SettingsError):
    """Credentials are missing or expired, or lack the permission for a call."""


class NotOfferedError(SettingsError):
    """The zone or the region does not have an instance type."""


class QuotaError(SettingsError):
    """The account's limit of vCPUs, instances or volumes is reached."""


class CapError(SettingsError):
    """The cluster would exceed max_instances or max_hourly_price."""


class NoClusterError(SettingsError):
    """A command needs nodes, and the cluster has none."""


class NoKeyPairError(SettingsError):
    """EC2 does not have a key pair, or no longer has it."""


class DeclinedError(SettingsError):
    """The user said no, or could not be asked."""


class CapacityError(Ec2Error):
    """EC2 has no room for the instances in any of the zones that were tried."""

    exit_code = 3


class PriceTooLowError(CapacityError):
    """The market price is above spot_price."""


class ThrottledError(Ec2Error):
    """EC2 rejected a call repeatedly because there were too many calls."""

    exit_code = 3


class DeadlineError(Ec2Error):
    """A wait ended without success."""

    exit_code = 3


class GivenUpError(Ec2Error):
    """A job that is kept alive is not restarted again.

    Its restarts or its hours are used up, or several restarts brought no newer checkpoint.
    """

    exit_code = 3


class NodeLostError(Ec2Error):
    """An instance of this launch has ended; `reason` is EC2's code, such as Server.SpotInstanceTermination."""

    exit_code = 3

    def __init__(self, instance: str, reason: str) -> None:
        super().__init__(f"{instance} was ended by EC2 ({reason}): run launch again to replace it")
        self.instance = instance
        self.reason = reason


class HostKeyError(Ec2Error):
    """The host key of an instance is unknown or differs from the pinned one."""

    exit_code = 4


class KeepError(Ec2Error):
    """The newest checkpoint cannot be fetched; no node was ended."""


class RemoteError(Ec2Error):
    """A command on a node ended with a nonzero code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.exit_code = code


class AlreadyThereError(Ec2Error):
    """A resource of the same name exists already."""


class NotShownError(Ec2Error):
    """EC2 does not know the named instance or group: not yet, or no longer."""


class InUseError(Ec2Error):
    """A resource is still in use, perhaps by a network card of an instance that has just ended."""


class SpentTokenError(Ec2Error):
    """The instances of a client token have ended."""


class TakenTokenError(Ec2Error):
    """A client token was used by another launch, or by an earlier launch that was interrupted."""


class OthersError(Ec2Error):
    """Another launch of the same cluster has changed the cluster since this launch made its plan."""


class Named(Protocol):
    """A node, by its name and id."""

    @property
    def name(self) -> str: ...

    @property
    def id(self) -> str: ...


def failure(node: Named, what: str, code: int, stderr: str) -> Ec2Error:
    """Return the typed error for the command `what`, which ended on `node` with the nonzero `code`."""
    if code == UNREACHED and ("Host key verification failed" in stderr or "REMOTE HOST IDENTIFICATION" in stderr):
        return HostKeyError(
            f"{node.name} ({node.id}) shows another host key than its console did: somebody may be in between; "
            "if the node was made anew, end it and run launch"
        )
    return RemoteError(f"{node.name}: {what} ended with code {code}: {last_line(stderr)}", code if 0 < code < 255 else 1)


def last_line(stderr: str) -> str:
    """Return the last non-empty line that a program printed."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"
