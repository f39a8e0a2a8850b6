"""Keeping a job alive: follow the job. If its nodes are lost, or it fails in a way that need not recur, resume it.

Missing nodes are launched before the job resumes. The loop has several bounds. A launch obeys max_instances and
max_hourly_price, like every launch. Restarts are counted in a file that outlives this process. max_hours counts from the
beginning of the job: nodes that start later get only the remaining hours, rounded up. The loop ends after three restarts
without a newer checkpoint. It also ends if a user has stopped the job or ended nodes of the cluster.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Protocol

from psnode_ec2 import kept_job_record as record
from psnode_ec2.cloud import Cloud, progress
from psnode_ec2.ec2_errors import CapacityError, Ec2Error, GivenUpError, RemoteError, SettingsError
from psnode_ec2.kept_job_record import Charge
from psnode_ec2.settings import Settings

FINAL = (0, 2, 4, 5, 130)  # success, or a failure that would recur after a restart
_STOPPED = 75
_FRUITLESS = 3  # maximum restarts without a newer checkpoint


class Work(Protocol):
    """Actions on the cluster that the loop uses."""

    def follow(self, job: str) -> int | None:
        """Return the exit code of the job after its end; None if the job was lost together with its master."""

    def was_stopped(self) -> str:
        """Return the reason not to restart if a user ended the job or its nodes, otherwise an empty string."""

    def newest(self) -> str:
        """Return the newest checkpoint from which the job can resume; "" if no checkpoint is known."""

    def leave(self, charge: Charge, *, everything: bool) -> None:
        """End the nodes that EC2 wants back, or all nodes if `everything`.

        If the newest checkpoint exists only on these nodes, fetch it first.
        """

    def complete(self, charge: Charge, max_hours: int) -> None:
        """Launch the missing nodes and set them up. New nodes end themselves after `max_hours`."""

    def start(self, charge: Charge) -> str:
        """Start the job, from its newest checkpoint if there is one, and return the folder of the job."""


def _moment() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def keep_alive(
    charge: Charge, settings: Settings, cloud: Cloud, work: Work, now: Callable[[], datetime.datetime] = _moment
) -> int:
    """Follow the job through all restarts to its end, and return its exit code. Raises GivenUpError and SettingsError."""
    if not charge.job and not charge.used:
        _begin(charge, settings, work)
    while True:
        code = work.follow(charge.job) if charge.job else None
        if code in FINAL:
            record.forget(settings)
            return int(code or 0)
        if who := _ended_by(settings, work):
            record.forget(settings)
            progress(f"{who}: nothing is started again")
            return _STOPPED if code is None else code
        progress("the job lost its nodes" if code in (None, _STOPPED) else f"the job ended with code {code}")
        _again(charge, settings, cloud, work, now)


def _ended_by(settings: Settings, work: Work) -> str:
    return "this job is not to be kept alive any more" if record.read(settings) is None else work.was_stopped()


def _begin(charge: Charge, settings: Settings, work: Work) -> None:
    try:
        charge.job = work.start(charge)
    except (SettingsError, RemoteError):
        record.forget(settings)
        raise
    record.write(settings, charge)


def _again(charge: Charge, settings: Settings, cloud: Cloud, work: Work, now: Callable[[], datetime.datetime]) -> None:
    """Restart the job, in as many attempts as are left. Each attempt uses up a restart, and is recorded before it begins."""
    charge.job = ""
    everything = False  # True if there was no room next to the remaining nodes: then these end too
    for attempt in range(10**6):
        hours = charge.hours_left(settings, now())
        _may(charge, settings, hours)
        charge.used += 1
        record.write(settings, charge)
        progress(f"restart {charge.used} of {charge.restarts}")
        try:
            work.leave(charge, everything=everything)
            record.write(settings, charge)
            work.complete(charge, hours)
            step = work.newest()
            if len(charge.steps) >= _FRUITLESS and set(charge.steps[-_FRUITLESS:]) == {step}:
                raise GivenUpError(
                    f"{_FRUITLESS} restarts brought nothing newer than {step or 'none'}: see logs; the nodes stay, and cost"
                )
            charge.steps.append(step)
            charge.job = work.start(charge)
            record.write(settings, charge)
            return
        except (SettingsError, GivenUpError):
            raise
        except Ec2Error as error:
            everything = isinstance(error, CapacityError)
            progress(f"restart {charge.used} failed: {error}")
        cloud.pause(attempt, first=15.0, longest=600.0)


def _may(charge: Charge, settings: Settings, hours: int) -> None:
    if settings.max_hours and hours <= 0:
        raise GivenUpError(f"max_hours = {settings.max_hours} since the job began are over: run --keep-alive again with more")
    if charge.used >= charge.restarts:
        raise GivenUpError(
            f"all {charge.restarts} restarts are used: status shows what runs, and costs; run --keep-alive --restarts goes on, "
            "shutdown ends it"
        )
