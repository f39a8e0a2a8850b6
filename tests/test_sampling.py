"""The sample of the sweeps that runs without --long: its size, and its dependence on the seed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import SAMPLED, is_sampled

ROOT = Path(__file__).resolve().parents[1]


def collected(*arguments: str) -> set[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-n", "0", *arguments]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stdout + found.stderr
    return {line for line in found.stdout.splitlines() if "::" in line}


def test_one_case_in_so_many_is_chosen_and_another_seed_chooses_others() -> None:
    names = [f"tests/codecs/test__contract.py::test_a[{number}]" for number in range(9000)]
    chosen = [{name for name in names if is_sampled(name, seed)} for seed in range(2)]
    for found in chosen:  # a binomial count of 9000 trials with probability 1 / SAMPLED, within five standard deviations
        assert abs(len(found) - len(names) / SAMPLED) < 5 * (len(names) * (SAMPLED - 1)) ** 0.5 / SAMPLED
    assert abs(len(chosen[0] & chosen[1]) - len(names) / SAMPLED**2) < 5 * (len(names) / SAMPLED**2) ** 0.5


def test_a_sweep_is_sampled_and_small_tests_are_whole() -> None:
    measures, golden = "tests/codecs/test__measure.py", "tests/codecs/test__golden.py"
    whole, sampled = collected("--long", measures, golden), collected(measures, golden)
    assert sampled < whole
    assert {name for name in sampled if golden in name} == {name for name in whole if golden in name} != set()
    left = [name for name in whole if measures in name]
    assert 0.5 < SAMPLED * len([name for name in sampled if measures in name]) / len(left) < 1.5


@pytest.mark.long
def test_a_marked_test_is_sampled_also_where_its_cases_are_few() -> None:
    networks = "tests/tasks/models/test_networks.py"
    whole, sampled = collected("--long", networks), collected(networks)
    left = whole - sampled
    assert {name.partition("::")[2].partition("[")[0] for name in left} == {
        "test_logits_have_one_column_a_class",
        "test_smallest_accepted_image_goes_through",
    }
    assert collected("--sample", "1", networks) != sampled


def test_a_long_test_is_sampled_unless_its_file_is_named() -> None:
    folder, file = "tests/faults", "tests/faults/test_suspended.py"
    whole, sampled = collected("--long", "-m", "long", folder), collected("-m", "long", folder)
    assert len(whole) >= 6
    assert sampled == {name for name in whole if is_sampled(name, 0)}
    assert collected("-m", "long", file) == {name for name in whole if name.startswith(file)}


def test_of_a_sequence_the_first_and_the_last_are_always_sampled(
    sampled: Callable[..., list[int]], pytestconfig: pytest.Config
) -> None:
    found = sampled(range(100))
    assert (found[0], found[-1]) == (0, 99)
    assert found == sorted(set(found))
    assert len(found) == 100 if pytestconfig.getoption("--long") else abs(len(found) - 100 / SAMPLED) <= 2
    assert sampled(range(2)) == [0, 1]
