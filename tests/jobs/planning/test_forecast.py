"""The verdict on forecasts: the fastest scheme, the schemes that lose too much accuracy, and the link rate up to which
compression pays.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from psnode.jobs.planning.forecast import Forecast, forecasts, judge, limit_of, sentences
from psnode.jobs.planning.profile import GroupCosts, HostCosts, Profile, SchemeCosts, TensorTimes
from psnode.jobs.planning.scenario import GOODPUT, Scenario


def forecast(name: str, seconds: float, *, lossy: bool = False, doubtful: bool = False, peer: bool = False) -> Forecast:
    accuracy = f"{name} lost 9 points" if doubtful else ""
    return Forecast(name, seconds, {"link": seconds}, 0.1, "link", 1000, lossy, doubtful, accuracy, peer)


DDP = forecast("DDP fp32", 1.0, peer=True)


@pytest.mark.parametrize(("seconds", "compress"), [(0.97, True), (0.985, False), (1.5, False)])
def test_what_loses_nothing_is_preferred_within_two_percent(seconds: float, compress: bool) -> None:
    verdict = judge([DDP, forecast("qsgd", seconds, lossy=True)])
    assert verdict.compress is compress
    assert verdict.best.name == ("qsgd" if compress else "DDP fp32")
    assert sentences(verdict)[0].startswith("compress: qsgd" if compress else "do not compress: DDP fp32")


def test_a_scheme_that_the_record_speaks_against_is_named_and_not_chosen() -> None:
    verdict = judge([forecast("topk", 0.1, lossy=True, doubtful=True), DDP, forecast("polar", 0.5, lossy=True)])
    assert (verdict.compress, verdict.best.name, [each.name for each in verdict.quicker]) == (True, "polar", ["topk"])
    assert sentences(verdict)[-1] == "topk would take 100 ms, but topk lost 9 points"


def test_ddp_is_advised_by_name_where_it_is_fastest() -> None:
    verdict = judge([forecast("DDP bf16", 0.2, peer=True), forecast("dense", 0.4), forecast("qsgd", 0.3, lossy=True)])
    assert "use torch's DistributedDataParallel with its hook" in sentences(verdict)


def test_without_a_scheme_to_compare_there_is_no_verdict() -> None:
    assert judge([DDP]).compress is None


def test_compression_pays_up_to_the_rate_at_which_both_take_as_long() -> None:
    """Check the rate up to which the coded scheme pays. It sends a tenth of dense's bytes and costs .1 s more; at the limit
    dense takes 1.02 times its step.
    """
    nothing = GroupCosts(0, 0, 0.0, 0.0, 0.0, 0.0, 0.1, 0.0)
    dense, coded = replace(nothing, up=10**6, down=10**6), replace(nothing, up=10**5, down=10**5, update=0.1)
    profile = Profile(
        "model", 1, 0.1, 0.1, 0.0, (TensorTimes((250_000,), 0.1, 0.0),), HostCosts(0.0, 0.0, 0.0, 0.0, 2, 1.0),
        {"dense": SchemeCosts((dense,), 0.0, 0.0, False), "coded": SchemeCosts((coded,), 0.0, 0.0, True)}, {},
    )  # fmt: skip
    scenario = Scenario(1, None, 0.0, 2)
    found = limit_of(profile, scenario) or 0.0
    # .2 + 2e6 / b = 1.02 (.3 + 2e5 / b) for b bytes per second
    assert found == pytest.approx((2e6 - 1.02 * 2e5) / (1.02 * 0.3 - 0.2) * 8 / GOODPUT, rel=0.01)
    below, above = (judge(forecasts(profile, replace(scenario, rate=found * factor))) for factor in (0.9, 1.1))
    assert (below.compress, above.compress) == (True, False)
    assert limit_of(profile, replace(scenario, workers=33)) is None


def test_powersgd_is_not_advised_under_adam() -> None:
    profile = Profile(
        "model", 1, 0.1, 0.1, 0.0, (TensorTimes((1000, 1000), 0.1, 0.0),), HostCosts(0.0, 0.0, 0.0, 0.0, 2, 1.0), {},
        {"fp32": 0.0, "powersgd:rank=2": 0.0},
    )  # fmt: skip
    for of_adam in (False, True):
        verdict = judge(forecasts(replace(profile, of_adam=of_adam), Scenario(4, 1e8, 0.0, 2)))
        assert (verdict.best.name == "DDP powersgd:rank=2") is not of_adam
        assert ("under adamw" in " ".join(sentences(verdict))) is of_adam
