"""Spec strings: accepted ones, and error messages."""

from __future__ import annotations

import dataclasses
from typing import Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from psnode.codecs import get_codec, spec
from psnode.codecs.registry import codec_of
from psnode.errors import CodecSpecError, ConfigurationError


@dataclasses.dataclass(frozen=True)
class Example:
    """An object with one field of every kind."""

    count: int = 1
    ratio: float = 0.5
    flag: bool = False
    kind: Literal["a", "b"] = "a"
    limit: float | None = None
    size: int | None = None


@given(
    st.builds(
        Example,
        count=st.integers(),
        ratio=st.floats(allow_nan=False, allow_infinity=False),
        flag=st.booleans(),
        kind=st.sampled_from(["a", "b"]),
        limit=st.none() | st.floats(allow_nan=False, allow_infinity=False),
        size=st.none() | st.integers(),
    )
)
def test_what_is_shown_is_parsed_back(example: Example) -> None:
    wrapped, stages = spec.parse(str(spec.Stage.of("example", example)))
    assert not wrapped
    assert spec.construct(Example, stages[0]) == example


def test_values_are_shown_as_short_as_can_be() -> None:
    assert (
        str(spec.Stage.of("example", Example(3, 1.0, True, "b", 1e-5)))
        == "example:count=3,ratio=1,flag=true,kind=b,limit=1e-05,size="
    )
    assert repr(get_codec("identity")) == "identity"
    assert repr(get_codec("qsgd")) == "qsgd:levels=15,bucket=512,norm=l2"


def test_space_around_parts_is_ignored() -> None:
    assert get_codec(" qsgd : levels = 3 , bucket=64 + zstd ") == get_codec("qsgd:levels=3,bucket=64+zstd")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty stage"),
        ("qsgd+", "empty stage"),
        (":levels=3", "empty stage"),
        ("qsgd:", "where name=value is expected"),
        ("qsgd:levels", "where name=value is expected"),
        ("qsgd:=3", "where name=value is expected"),
        ("qsgd:levels=3,levels=4", "sets 'levels' twice"),
        ("qsgd:levels=three", "levels='three' is not an integer"),
        ("qsgd:levels=", "levels='' is not an integer"),
        ("contractive(qsgd", "closing parenthesis"),
        ("qsgf", r"unknown codec 'qsgf' \(did you mean qsgd\?\): valid are .*identity"),
        (
            "qsgd:levls=3",
            r"unknown parameter of codec qsgd: 'levls' \(did you mean levels\?\): valid are bucket, factors, levels, norm",
        ),
        ("identity:x=1", "valid are none"),
        ("contractive(contractive(qsgd))", "unknown codec"),
        ("chain", "unknown codec"),
    ],
)
def test_what_cannot_be_read_is_explained(text: str, message: str) -> None:
    with pytest.raises(CodecSpecError, match=message) as caught:
        get_codec(text)
    assert isinstance(caught.value, ConfigurationError)
    assert "\n" not in str(caught.value)


def test_a_spec_is_text() -> None:
    with pytest.raises(CodecSpecError, match="is a string"):
        get_codec(None)  # type: ignore[arg-type]


@given(st.text(max_size=40))
@example(".py")
@example(".py:")
@example(".py:Name")
@example("~unknown/own.py:Name")
def test_no_text_gives_anything_but_a_codec_or_a_spec_error(text: str) -> None:
    """Check that any text gives a codec or CodecSpecError; a text that names a file may also give ConfigurationError."""
    try:
        codec = get_codec(text)
    except CodecSpecError:
        return
    except ConfigurationError:
        if ".py:" in text:
            return
        raise
    assert get_codec(repr(codec)) == codec


@pytest.mark.parametrize("text", ["qsgd", "topk:ratio=0.01+qsgd:levels=7,norm=+ans", "contractive(topk:ratio=0.1+fp16)"])
def test_a_spec_is_printed_as_it_was_parsed(text: str) -> None:
    assert str(spec.parse(text)) == text


def test_settings_of_a_stage_can_be_changed() -> None:
    parsed = spec.parse("contractive(topk:ratio=0.1+qsgd:levels=7,bucket=64)")
    assert (parsed.holder("ratio"), parsed.holder("levels"), parsed.holder("rank")) == (0, 1, None)
    assert str(parsed.changed(1, {"levels": "3", "norm": "l2"})) == "contractive(topk:ratio=0.1+qsgd:levels=3,bucket=64,norm=l2)"


@pytest.mark.parametrize("text", ["qsgd", "svd+qsgd+ans", "contractive(topk+qsgd:levels=3)"])
def test_a_codec_is_made_of_its_spec(text: str) -> None:
    codec = get_codec(text)
    assert codec_of(codec.spec) == codec
    assert repr(codec) == str(codec.spec)
