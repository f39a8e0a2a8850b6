"""Every exception that this tool raises on purpose, and the exit code it stands for.

    Ec2Error                     1   EC2 refused for a reason that is not known here
    ├── SettingsError            2   a setting is unknown, out of bounds, or EC2 has no such thing
    │   ├── AccessError          2   no credentials, or not the right to do this
    │   ├── NotOfferedError      2   the zone or the region has no such instance type
    │   ├── QuotaError           2   the account's quota is exceeded
    │   ├── CapError             2   over max_instances or max_hourly_price
    │   ├── NoClusterError       2   the command needs nodes and there are none
    │   ├── NoKeyPairError       2   EC2 has no key pair of that name
    │   └── DeclinedError        2   the question was answered with no
    ├── CapacityError            3   no zone and no type had room, or took the price
    │   └── PriceTooLowError     3   spot_price is below the market everywhere
    ├── ThrottledError           3   EC2 asked to slow down until patience ended
    ├── DeadlineError            3   nodes did not get ready in time
    ├── GivenUpError             3   a job that was kept alive is not restarted any more
    ├── NodeLostError            3   EC2 took a node away (spot, or a failure of its own)
    ├── HostKeyError             4   a host key is not known yet, or is another one
    ├── KeepError                1   trained weights cannot be fetched from nodes that are to end
    ├── RemoteError              n   a command on a node failed; its exit code
    ├── AlreadyThereError        1   a resource to be made exists; callers look it up
    ├── NotShownError            1   EC2 does not know this id yet, or any more; callers try again, or are content
    ├── InUseError               1   a resource to be removed is in use, perhaps by a node that is ending; callers try again
    ├── SpentTokenError          1   the instances of a client token have ended; callers take the next one
    ├── TakenTokenError          1   another launch has used a client token; callers look at its instances
    └── OthersError              1   another launch changes the same cluster; callers plan again

A message is one line that names the fault and the remedy.
"""

from __future__ import annotations

from typing import Protocol

UNREACHED = 255  # ssh's own exit code


class Ec2Error(Exception):
    """Root of the tree; `exit_code` is that of the process."""

    exit_code = 1


class SettingsError(Ec2Error):
    """A setting is unknown, out of bounds, or names something that does not exist."""

    exit_code = 2


class AccessError(SettingsError):
    """No credentials, expired ones, or ones without the permission."""


class NotOfferedError(SettingsError):
    """An instance type that the zone or the region does not have."""


class QuotaError(SettingsError):
    """The account's limit of vCPUs or instances is reached."""


class CapError(SettingsError):
    """The cluster would pass the limits in the configuration."""


class NoClusterError(SettingsError):
    """A command that needs nodes found none."""


class NoKeyPairError(SettingsError):
    """A key pair that EC2 does not have, or not any more."""


class DeclinedError(SettingsError):
    """The user said no, or could not be asked."""


class CapacityError(Ec2Error):
    """EC2 has no room for the instances in any of the places tried."""

    exit_code = 3


class PriceTooLowError(CapacityError):
    """The market asks more than spot_price."""


class ThrottledError(Ec2Error):
    """EC2 refused too many calls in a row because there were too many."""

    exit_code = 3


class DeadlineError(Ec2Error):
    """A wait ended without success."""

    exit_code = 3


class GivenUpError(Ec2Error):
    """The restarts of a job, or its hours, are used up."""

    exit_code = 3


class NodeLostError(Ec2Error):
    """EC2 ended an instance by itself; `reason` is its code, such as Server.SpotInstanceTermination."""

    exit_code = 3

    def __init__(self, instance: str, reason: str) -> None:
        super().__init__(f"{instance} was ended by EC2 ({reason}): run launch again to replace it")
        self.instance = instance
        self.reason = reason


class HostKeyError(Ec2Error):
    """The host key of an instance cannot be told."""

    exit_code = 4


class KeepError(Ec2Error):
    """The newest checkpoint cannot be fetched, so that nothing was ended."""


class RemoteError(Ec2Error):
    """A command on a node ended with a code other than 0."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.exit_code = code


class AlreadyThereError(Ec2Error):
    """A resource of that name exists."""


class NotShownError(Ec2Error):
    """EC2 does not know the instance, or the group, that was named: not yet, or not any more."""


class InUseError(Ec2Error):
    """The group is still in use, perhaps by a network card of an instance that has just ended."""


class SpentTokenError(Ec2Error):
    """The instances that a client token stands for have ended."""


class TakenTokenError(Ec2Error):
    """A client token was used by another launch, or by an earlier one that was cut off."""


class OthersError(Ec2Error):
    """Another launch of the same cluster has changed it since the plan was made."""


class Named(Protocol):
    """A node."""

    @property
    def name(self) -> str: ...

    @property
    def id(self) -> str: ...


def failure(node: Named, what: str, code: int, stderr: str) -> Ec2Error:
    """The typed error for a command that ended with `code`."""
    if code == UNREACHED and ("Host key verification failed" in stderr or "REMOTE HOST IDENTIFICATION" in stderr):
        return HostKeyError(
            f"{node.name} ({node.id}) shows another host key than its console did: somebody may be in between; "
            "if the node was made anew, end it and run launch"
        )
    return RemoteError(f"{node.name}: {what} ended with code {code}: {last_line(stderr)}", code if 0 < code < 255 else 1)


def last_line(stderr: str) -> str:
    """Last line that a program printed."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"
