"""A run is named after its coding: by its scheme, or by the codec that has replaced the scheme's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from psnode.codecs import table
from psnode.codecs.registry import known_codec
from psnode.config import Config
from psnode.config.coding_name import coding_name
from psnode.config.resolve import resolve
from psnode.config.schemes import SCHEMES

LOGARITHMIC = Path(__file__).resolve().parents[2] / "examples" / "codec.py"


def name_of(**settings: Any) -> str:
    config = Config(**settings)
    scheme = resolve(config)
    return coding_name(scheme.name, scheme.codec, replaced=bool(config.codec))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_scheme_with_its_own_codec_has_its_own_name(scheme: str) -> None:
    assert name_of(scheme=scheme) == scheme


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"codec": "topk:ratio=0.05"}, "topk:ratio=0.05"),
        ({"codec": "topk"}, "topk"),
        ({"codec": "identity", "feedback": "none"}, "identity"),
        ({"codec": "polar:rate=1,block=16384"}, "polar:rate=1,block=16384"),  # the default's stages, with other settings
        ({"codec": "polar:rate=2,block=16384"}, "polar-2bit"),  # the default's own codec
        ({"scheme": "terngrad", "codec": "qsgd:levels=7"}, "qsgd:levels=7"),
        ({"scheme": "dithered:step=2"}, "dithered:step=2"),
        ({"scheme": "dgc:ratio=0.02"}, "dgc:ratio=0.02"),
        ({"scheme": "topk:ratio=0.005+fp16"}, "topk:ratio=0.005+fp16"),
        ({"scheme": "atomo:rank=2"}, "atomo:rank=2"),
        ({"scheme": "qsgd", "quantization_level": 2}, "qsgd:levels=3"),  # two bits: a sign and levels 0 to 3
    ],
)
def test_a_changed_codec_gives_the_run_its_name(settings: dict[str, Any], name: str) -> None:
    found = name_of(**settings)
    assert found == name or known_codec(found) == known_codec(name)  # the order of settings is free
    assert found.partition(":")[0] == name.partition(":")[0]


def test_a_codec_of_ones_own_gives_the_run_its_name() -> None:
    assert name_of(codec=f"{LOGARITHMIC}:Logarithmic:octaves=8").startswith("logarithmic:octaves=8")


def test_a_record_is_named_without_executing_what_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class Offered:
        value: str = "offered"

        def load(self) -> None:
            raise AssertionError("the package was imported")

    monkeypatch.setattr(table, "offered", lambda: {"strange": Offered()})
    assert coding_name("topk", "strange:k=3", replaced=True) == "strange:k=3"
    assert coding_name("topk", "absent.py:Codec:k=3", replaced=True) == "absent.py:Codec:k=3"


@pytest.mark.parametrize(
    ("scheme", "codec", "name"),
    [
        ("of another version", "topk", "of another version"),
        ("topk", None, "topk"),
        ("topk", "topk:ratio=0.01", "topk"),  # as earlier versions recorded it
        ("topk", "topk:ratio=", "topk:ratio="),
        ("topk", "+", "+"),
        ("topk", "qsgd:levels=-1", "qsgd:levels=-1"),
    ],
)
def test_old_and_damaged_records_are_named_too(scheme: str, codec: str | None, name: str) -> None:
    assert coding_name(scheme, codec, replaced=False) == name
