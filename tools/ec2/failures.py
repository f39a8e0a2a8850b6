"""Failures on a node, told from the end of ssh."""

from __future__ import annotations

from psnode_ec2.cluster import Node
from psnode_ec2.errors import Ec2Error, HostKeyError, RemoteError

UNREACHED = 255  # ssh's own exit code


def failure(node: Node, what: str, code: int, stderr: str) -> Ec2Error:
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
