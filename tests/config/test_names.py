"""Matching of names that users type."""

import pytest

from psnode.config.names import boolean, choose, positive, settle
from psnode.errors import ConfigurationError


@pytest.mark.parametrize("name", ["a-b", "A_B", "ab", "AB", "a--b"])
def test_case_hyphens_and_underscores_do_not_matter(name):
    assert choose("thing", name, ["a-b", "c"]) == "a-b"


def test_an_exact_match_wins_over_an_ambiguous_one():
    assert choose("thing", "a_1", ["a_1", "a-1", "a1"]) == "a_1"
    with pytest.raises(ConfigurationError, match="thing 'A1' is ambiguous: write a-1 or a1 or a_1"):
        choose("thing", "A1", ["a_1", "a-1", "a1"])


def test_a_name_unlike_all_others_gets_the_choices_without_a_guess():
    with pytest.raises(ConfigurationError, match=r"^unknown thing 'zzz': the choices are apple, pear, or your own$"):
        choose("thing", "zzz", ["pear", "apple"], remark=", or your own")


def test_options_come_back_under_their_proper_names():
    assert settle("option", {"Mean-Std": "x"}, ["mean_std", "size"]) == {"mean_std": "x"}
    with pytest.raises(ConfigurationError, match="unknown option 'sise': did you mean size"):
        settle("option", {"sise": "3"}, ["mean_std", "size"])
    with pytest.raises(ConfigurationError, match="option 'size' is not understood: there is nothing to set here"):
        settle("option", {"size": "3"}, [])


@pytest.mark.parametrize("text", ["0", "-3", "1.5", "", "many"])
def test_positive_numbers_are_whole_and_at_least_one(text):
    assert positive("count", "12") == 12
    with pytest.raises(ConfigurationError, match=f"count must be a whole number of at least 1, not '{text}'"):
        positive("count", text)


def test_booleans_are_true_or_false():
    assert [boolean("flag", text) for text in ("true", "False")] == [True, False]
    with pytest.raises(ConfigurationError, match="flag must be true or false, not 'on'"):
        boolean("flag", "on")
