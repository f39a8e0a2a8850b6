"""examples/row_codec.py: a codec given by two formulas works like any other codec, and payloads of peers cause no compilation."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from psnode.codecs import Payload, get_codec
from psnode.codecs.registry import load_codec
from psnode.codecs.rng import Key, words
from psnode.codecs.rows import known
from psnode.codecs.rows.codec import Generated, coder_of, interpreted
from psnode.codecs.rows.numba.text import text_of
from psnode.errors import PayloadError
from tests.codecs.family import gaussian
from tests.codecs.promises import check_promises
from tests.rows.forms import KEY, program
from tests.test_docs import python_blocks

ROOT = Path(__file__).parents[2]
EXAMPLE = f"{ROOT / 'examples' / 'row_codec.py'}:Levels"


def test_values_are_rounded_at_random_to_levels_of_their_row() -> None:
    """Compare decoded values with the definition in float64; within rounding errors of a boundary, either side is accepted."""
    codec, key = get_codec(load_codec(f"{EXAMPLE}:levels=3")), Key.derive(1)
    x = gaussian(1200)
    payload = codec.encode(x, key)
    random = words(np.array(key.words, np.uint64), 193, 3 * 64).reshape(3, 64, 4).transpose(0, 2, 1).reshape(3, 256)
    sixteen = np.concatenate([random & 0xFFFF, random >> 16], axis=1).reshape(-1)[: x.size]
    top = np.repeat([np.abs(x[start : start + 512]).max() for start in (0, 512, 1024)], 512)[: x.size].astype(float)
    exact = x * 3 / top + (sixteen + 0.5) / 65536
    sure = np.abs(exact - np.round(exact)) > 1e-4
    assert sure.mean() > 0.99
    np.testing.assert_allclose(codec.decode(payload)[sure], (np.floor(exact) * top / 3)[sure], rtol=1e-6, atol=1e-7)
    assert payload.nbytes == 12 + 8 + 3 * 4 + 2 * 192 + math.ceil(176 * 2 / 8) + math.ceil(176 / 8)


def test_the_page_shows_the_example() -> None:
    [block] = python_blocks(ROOT / "docs" / "rows.md")
    kept = [line for line in (ROOT / "examples" / "row_codec.py").read_text().splitlines() if "check_integer" not in line]
    text = "\n".join(kept).replace("    def __post_init__(self) -> None:\n\n", "")
    example = re.sub(r'    """.*?"""\n\n', "", text.partition("@dataclass")[2], flags=re.S)
    assert block.strip() == "@dataclass" + example.rstrip()


@pytest.mark.long
def test_it_keeps_the_promises_of_every_codec() -> None:
    check_promises(EXAMPLE, "contract", "hostile", "statistics")


def test_payloads_of_other_parameters_are_read_without_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    codec, other = get_codec(load_codec(EXAMPLE)), get_codec(load_codec(f"{EXAMPLE}:levels=31"))
    x = gaussian(3, 700)
    payload = other.encode(x, Key.derive(2))
    expected = other.decode(payload)
    coder_of.cache_clear()
    codec.encode(x, Key.derive(2))
    monkeypatch.setattr("psnode.codecs.rows.codec.compiled", lambda text: pytest.fail("kernels of another setting were made"))
    np.testing.assert_array_equal(codec.decode(payload), expected)
    for levels in (0, 128, 2**40, -1):
        data = bytearray(payload.to_bytes())
        data[16:24] = levels.to_bytes(8, "little", signed=True)
        with pytest.raises(PayloadError, match="are no parameters"):
            codec.decode(Payload.from_bytes(bytes(data)))


def test_numbers_that_no_encoder_writes_decode_to_finite_values() -> None:
    codec = get_codec(load_codec(f"{EXAMPLE}:levels=1"))
    data = bytearray(codec.encode(gaussian(512), Key.derive(2)).to_bytes())
    data[20:24] = np.float32(3e38).tobytes()
    data[24:] = b"\xff" * (len(data) - 24)  # codes of 3, although 2 is the largest
    np.testing.assert_array_equal(codec.decode(Payload.from_bytes(bytes(data))), np.full(512, np.finfo(np.float32).max))
    data[20:24] = np.float32(np.nan).tobytes()
    with pytest.raises(PayloadError, match="top is not finite"):
        codec.decode(Payload.from_bytes(bytes(data)))


def test_a_job_trains_with_it_and_the_bench_measures_it(psnode: Callable[..., Any], tmp_path: Path) -> None:
    flags = ["--local", "2", "--network", "FC", "--threads", "1", "--no-tensorboard", "--max-steps", "60", "--lr", "0.05"]
    done = psnode("train", *flags, "--codec", EXAMPLE, "--feedback", "ef", "--train-dir", tmp_path / "run")
    assert done.code == 0, done.err
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["loss"] < 0.5 * rows[0]["loss"]
    assert 0.1 < rows[-1]["uplink_bytes"] / rows[-1]["downlink_bytes"] < 0.25  # four bits per coordinate up, 32 down
    done = psnode("bench", "codecs", "--codec", EXAMPLE, "--size", "4096", "--seconds", "0", "--copies", "1")
    assert (done.code, "levels" in done.out) == (0, True), done.err


SOURCE = """
from psnode.codecs.rows.compiled import compiled
module = compiled("def answer():\\n    return 42\\n")
print(module.answer(), module.__file__)
"""


def test_a_generated_module_that_somebody_changed_is_written_anew(tmp_path: Path) -> None:
    """Check that a changed module is written anew, and that an existing file is not executed if others may write to its
    folder.
    """

    def answer() -> tuple[str, Path]:
        environment = {"PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(tmp_path), "TMPDIR": str(tmp_path), "HOME": str(tmp_path)}
        done = subprocess.run([sys.executable, "-c", SOURCE], env=environment, capture_output=True, text=True, check=True)
        found, file = done.stdout.split()
        return found, Path(file)

    found, file = answer()
    assert (found, file.parent) == ("42", tmp_path / "psnode_rows")
    file.write_text("def answer():\n    return 'attack'\n")
    assert answer() == ("42", file)
    file.parent.chmod(0o777)
    found, elsewhere = answer()
    assert found == "42"
    assert elsewhere.parent != file.parent


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("dithered:step=0.6", "dithered:step=2"),
        ("dithered:step=0.04,bucket=512", "dithered:step=0.05,bucket=512"),
        ("nuqsgd", "nuqsgd:levels=14"),
        ("nuqsgd:levels=62,norm=max", "nuqsgd:levels=31,norm=max"),
        ("terngrad:clip=2.5", "terngrad:clip=0.5"),
    ],
)
def test_settings_that_differ_in_a_parameter_share_their_kernels(one: str, other: str) -> None:
    """Check that both settings share their kernels, and that each of them, in turn, gives the bytes of the interpreter."""
    codecs = [cast(Generated, get_codec(spec)) for spec in (one, other)]
    assert coder_of(codecs[0]).functions is coder_of(codecs[1]).functions
    x, bodies = gaussian(5000), []
    for codec in (*codecs, *codecs):
        error, expected = np.empty_like(x), np.empty_like(x)
        payload = codec.encode(x, KEY, error=error)
        body = np.empty(interpreted(codec).program.nbytes(x.size), np.uint8)
        interpreted(codec).encode(x, np.array(KEY.words, np.uint64), body, expected)
        bodies.append(body[: interpreted(codec).program.length(body, x.size)].tobytes())
        assert payload.body.tobytes() == bodies[-1]
        np.testing.assert_array_equal(error, expected)
        np.testing.assert_array_equal(x - codec.decode(payload), expected)
    assert bodies[0] != bodies[1]


def test_the_limit_of_tbq_is_not_in_the_text() -> None:
    assert text_of(program(get_codec("tbq:tau=0.01"))) == text_of(program(get_codec("tbq:tau=3")))


def test_nothing_of_rows_is_loaded_by_a_codec_that_is_none() -> None:
    codecs = "from psnode.codecs import get_codec; get_codec('qsgd'), get_codec('topk')"
    program = f"import sys; {codecs}; print([m for m in sys.modules if 'rows' in m])"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_codecs_of_psnode_are_known_by_their_formulas() -> None:
    assert known.formula_of(get_codec("qsgd:bucket=100")) is None
    assert known.formula_of(get_codec("topk")) is None
