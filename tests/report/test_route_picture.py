"""Pictures and texts of routes: boxes by role, lines by bytes, and sums of every rank's link."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

from psnode.cli import main
from psnode.errors import ConfigurationError
from psnode.exchange.routes.route import Route
from psnode.exchange.routes.topologies import gather
from psnode.jobs.planning.profile import GroupCosts, SchemeCosts
from psnode.jobs.planning.routing.link_loads import RoutedFrame, frames_of, link_loads
from psnode.jobs.planning.routing.route_lines import groups_text, ranks_text, route_lines
from psnode.jobs.planning.routing.routed_groups import RoutedGroups
from psnode.plans.groups import IDENTITY, Group, Plan, Segment, Tensor
from psnode.plans.roles import Layout
from psnode.report.route_picture import route_picture
from tests.jobs.planning.refitting.run_cases import profile

THREE = range(1, 4)
PLAN = Plan((Tensor("w", (600,)),), (Group(0, (Segment(0, IDENTITY, 0, (600,)),)),))
ROUTES = (Route(1, THREE), Route(3, THREE), Route(1, THREE))
SIZES, UPS, DOWNS = (600, 300, 100), (70, 40, 20), (7000, 4000, 2000)


def groups(routes: tuple[Route, ...] = ROUTES) -> RoutedGroups:
    costs = tuple(
        GroupCosts(up, down, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        for up, down in zip(UPS[: len(routes)], DOWNS[: len(routes)], strict=True)
    )
    segments = [[[IDENTITY, sum(SIZES[:index]), [size]]] for index, size in enumerate(SIZES[: len(routes)])]
    tensors = [[f"w{index}", [size]] for index, size in enumerate(SIZES[: len(routes)])]
    plan = Plan.from_dict({"tensors": tensors, "groups": segments})
    return RoutedGroups(SchemeCosts(costs, 0.0, 0.0, True), plan, routes, Layout(3))


def test_the_bytes_of_every_link_are_those_of_all_frames_between_two_ranks() -> None:
    """Check routes of three ranks: rank 1 gets 90 B of gradients from each of ranks 2 and 3, and sends 9000 B to each of
    them, and so on.
    """
    loads = link_loads(ROUTES, THREE, sizes=SIZES, ups=UPS, downs=DOWNS)
    assert [(load.rank, load.groups, load.coordinates) for load in loads] == [
        (0, [], 0),
        (1, [0, 2], 700),
        (2, [], 0),
        (3, [1], 300),
    ]
    assert [(load.gradients_in, load.gradients_out) for load in loads] == [(0, 0), (180, 40), (0, 130), (80, 90)]
    assert [(load.weights_in, load.weights_out) for load in loads] == [(0, 0), (4000, 18_000), (13_000, 0), (9000, 8000)]
    assert sum(load.received for load in loads) == sum(load.sent for load in loads)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_a_link_of_equal_parts_carries_the_same_both_ways(workers: int) -> None:
    """Check P workers with P equal groups: a worker's link carries (P - 1) / P of a gradient and of the weights in each
    direction.

    If the master is the root of all groups, its link carries P gradients in, and P sets of weights out.
    """
    readers = range(1, workers + 1)
    ups, downs = [10] * workers, [30] * workers
    dealt = link_loads([Route(rank, readers) for rank in readers], readers, sizes=ups, ups=ups, downs=downs)
    assert {(load.received, load.sent) for load in dealt[1:]} == {(40 * (workers - 1),) * 2}
    central = link_loads([Route(0, readers) for _ in readers], readers, sizes=ups, ups=ups, downs=downs)
    assert (central[0].received, central[0].sent) == (workers * workers * 10, workers * workers * 30)


class Relayed(Route):
    """A route on which weights go from rank 0 to rank 1, and from there to ranks 2 and 3."""

    def heirs(self, rank: int) -> tuple[int, ...]:
        return {0: (1,), 1: (2, 3)}.get(rank, ())


def test_frames_follow_the_weights_from_reader_to_reader() -> None:
    found = [frame for frame in frames_of([Relayed(0, THREE)], []) if not frame.is_gradient]
    assert found == [RoutedFrame(0, 1, 0, False), RoutedFrame(1, 2, 0, False), RoutedFrame(1, 3, 0, False)]
    picture = route_picture(groups((Relayed(0, THREE),)), "relayed")
    lines = [path.findtext("title") for path in picture.iter("path")]
    assert "rank 1 to rank 3: 7.00 kB" in lines
    assert len(lines) == 3 + 3
    texts = [text.text for text in picture.iter("text")]
    assert texts.count("7.00 kB in, 14.0 kB out") == 1  # rank 1
    assert texts.count("7.00 kB in") == 2


@pytest.mark.parametrize("routes", [ROUTES, (Relayed(0, THREE),), tuple(gather(Layout(3), PLAN))])
def test_all_lines_are_inside_the_picture(routes: tuple[Route, ...]) -> None:
    """Check that all curves lie inside the picture: the four points of each curve do, and a curve lies inside their hull."""
    picture = route_picture(groups(routes), "a title")
    _, _, width, height = map(float, str(picture.get("viewBox")).split())
    for path in picture.iter("path"):
        points = [float(number) for number in re.findall(r"[\d.]+", str(path.get("d")))]
        assert max(points[::2]) <= width and max(points[1::2]) <= height


def test_every_root_of_a_group_has_a_box_between_its_senders_and_its_reader() -> None:
    picture = route_picture(groups(tuple(gather(Layout(3), PLAN))), "gathered")
    lines = Counter(str(path.findtext("title")) for path in picture.iter("path"))
    assert sum(lines.values()) == 9 + 3
    assert {f"rank {rank} to rank {rank}: 7.00 kB, through no link" for rank in THREE} < lines.keys()


def test_a_picture_has_a_box_for_every_role_and_a_line_for_every_way() -> None:
    picture = route_picture(groups(), "a title")
    titles = Counter(str(rect.findtext("title")).partition(":")[0] for rect in picture.iter("rect"))
    assert titles == {"rank 1": 3, "rank 2": 2, "rank 3": 3}  # rank 2 is the root of no group
    widths = {str(path.findtext("title")): float(path.get("stroke-width") or 0) for path in picture.iter("path")}
    assert len(widths) == 2 * 3 + 3 * 2  # two roots get gradients of three workers, and three readers weights of two roots
    assert widths["rank 1 to rank 2: 9.00 kB"] == 9.0  # the most bytes
    assert widths["rank 3 to rank 2: 4.00 kB"] == 4.0
    assert {words for words in widths if words.endswith("through no link")} == {
        "rank 1 to rank 1: 0.09 kB, through no link", "rank 3 to rank 3: 0.04 kB, through no link",
        "rank 1 to rank 1: 9.00 kB, through no link", "rank 3 to rank 3: 4.00 kB, through no link",
    }  # fmt: skip


def test_the_text_tells_ways_shares_and_the_busiest_link() -> None:
    lines = route_lines(groups(), "coded", "dealt")
    assert lines[1] == "coded, --topology dealt: 3 workers, 3 groups; u = 0.13 kB, v = 13.0 kB"
    assert lines[2:4] == [
        "  groups 0, 2: gradients of ranks 1-3 to rank 1, weights to ranks 1-3",
        "  group 1: gradients of ranks 1-3 to rank 3, weights to ranks 1-3",
    ]
    [first] = [line.split() for line in lines if line.startswith("  rank 1 ")]
    assert first == ["rank", "1", "70.0", "%", "0.18", "kB", "4.00", "kB", "0.04", "kB", "18.0", "kB"]
    assert lines[-1] == "-> the busiest link is that of rank 1: 4.18 kB in and 18.0 kB out in a step"
    assert max(map(len, lines)) <= 80


def test_ranks_and_groups_as_text() -> None:
    assert [ranks_text(ranks) for ranks in ([3], [1, 2, 3], [1, 3, 4])] == ["rank 3", "ranks 1-3", "ranks 1, 3-4"]
    assert groups_text([5]) == "group 5"
    assert groups_text(range(20)) == "groups 0, 1, 2, 3, 4, 5, 6, 7 and 12 more"


def test_the_command_draws_the_routes_that_the_verdict_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check the picture of qsgd: at 1 Mbit/s it has the fewest bytes of the schemes that lose little. Two tensors form one
    group, whose root is rank 1.
    """
    profile().save(tmp_path / "profile.json")
    asked = ["plan", "-n", "2", "--rate", "1mbit", "--profile", str(tmp_path / "profile.json"), "--topology", "mesh"]
    file = tmp_path / "deep" / "routes.svg"
    assert main([*asked, "--draw", str(file)]) == 0
    assert f"{file}: routes of qsgd under --topology mesh" in capsys.readouterr().err
    root = ElementTree.parse(file).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "--run0:" in (root[0].text or "")
    assert main([*asked, "--draw", "-"]) == 0
    assert "gradients of ranks 1-2 to rank 1, weights to ranks 1-2" in capsys.readouterr().out
    assert main([*asked, "--draw", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["workers"] == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--draw", "-", "--json"], "--draw - prints text, and --json prints JSON"),
        (["--draw", "-", "--rate", "1gbit"], "--draw needs one --rate"),
        (["--draw", "/proc/none/routes.svg"], "name another file with --draw"),
        (["--draw", "-", "--groups", "best"], "--draw has no meaning beside --groups"),
    ],
)
def test_a_picture_that_cannot_be_is_told_in_one_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile().save(tmp_path / "profile.json")
    assert main(["plan", "-n", "2", "--rate", "1mbit", "--profile", str(tmp_path / "profile.json"), *words]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert said in line


def test_too_many_routes_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psnode.report.route_picture._MOST_LINES", 8)
    with pytest.raises(ConfigurationError, match=r"there are too many routes to be drawn"):
        route_picture(groups(), "many")
