"""A ratchet on the layout: today's overfull packages and duplicate names are limits in house.toml; new ones fail.

Lower a limit when the code allows it. scripts/structure.py prints the measures.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from scripts import structure

ROOT = Path(__file__).resolve().parents[1]
HOUSE = tomllib.loads(Path(__file__).with_name("house.toml").read_text())
SOURCES = structure.sources_of(ROOT)


def packages() -> dict[str, int]:
    """Return the number of entries of every package, by its path."""
    folders = {path.parent for path in SOURCES}
    return {str(folder): len(structure.entries(ROOT / folder)) for folder in folders}


def test_no_package_is_too_full() -> None:
    limits = HOUSE["entries"]
    full = {name: count for name, count in packages().items() if count > limits["packages"].get(name, limits["limit"])}
    assert full == {}, limits["reason"]


def test_no_function_takes_too_many_positional_parameters() -> None:
    limits = HOUSE["positional"]
    found = [(count, path, name) for path, source in SOURCES.items() for count, name in structure.positional(source)]
    new = [f"{path}: {name}: {n}" for n, path, name in found if n > limits["functions"].get(name, limits["limit"])]
    assert new == [], limits["reason"]


def test_modules_with_llvm_text_are_those_of_one_list() -> None:
    makers = {str(path) for path, source in SOURCES.items() if structure.makes_instructions(source)}
    assert makers - set(HOUSE["llvm"]["modules"]) == set(), HOUSE["llvm"]["reason"]


@pytest.mark.parametrize("kind", ["classes", "files"])
def test_a_name_stands_for_one_thing(kind: str) -> None:
    if kind == "classes":
        names = [name for source in SOURCES.values() for name in set(structure.classes(source))]
    else:
        modules = [path for path in SOURCES if not path.name.startswith("__")]
        group_of = {folder: group[0] for group in HOUSE["names"]["alike"] for folder in group}
        names = [name for _, name in {(group_of.get(str(path.parent), str(path.parent)), path.name) for path in modules}]
    counts = {name: names.count(name) for name in structure.twice(names)}
    limits = HOUSE["names"][kind]
    new = {name: count for name, count in counts.items() if count > limits.get(name.removesuffix(".py"), 1)}
    assert new == {}, HOUSE["names"]["reason"]


def test_the_table_of_lines_is_up_to_date() -> None:
    """Check that the table differs from the code by at most a tenth and 200 lines, so that small changes need no new table."""
    product, tests = structure.product_and_tests(ROOT)
    rows = [line.strip("| ").split(" | ") for line in structure.PAGE.read_text().splitlines() if line.startswith("| ")]
    told = {row[0]: (100 * int(row[1]), 100 * int(row[2])) for row in rows if row[1].isdigit()}
    assert set(told) == {*product, *tests, "all"}, "run scripts/structure.py --page"
    old = [
        name
        for name in product | tests
        for count, line in zip((product[name], tests[name]), told[name], strict=True)
        if abs(count - line) > 0.1 * count + 200
    ]
    assert old == [], "run scripts/structure.py --page"
