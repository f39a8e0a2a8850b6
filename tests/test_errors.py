"""Error lines about exceptions raised by other code."""

from __future__ import annotations

import re

import pytest

from psnode.codecs import get_codec
from psnode.errors import CodecSpecError, in_one_line, location


def test_the_place_of_an_error_is_in_the_users_code_not_in_psnodes() -> None:
    with pytest.raises(CodecSpecError) as caught:
        get_codec("no such codec")
    assert re.fullmatch(r"test_errors\.py:\d+ in test_the_place\w+", location(caught.value))


def test_an_exception_is_one_line_with_its_place() -> None:
    with pytest.raises(ValueError) as caught:
        raise ValueError("two\nlines")
    assert re.fullmatch(r"ValueError: two lines \(test_errors\.py:\d+ in test_an_\w+\)", in_one_line(caught.value))
