"""Print the table of codecs in docs/codecs.md, measured on this machine: scripts/codec_table.py [--write]

--write: also write the table into the page.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from psnode.codecs import get_codec

PAGE = Path(__file__).resolve().parents[1] / "docs" / "codecs.md"
BEGIN, END = "<!-- codec table: begin -->\n", "<!-- codec table: end -->\n"
REPEATS = 15


class Row(NamedTuple):
    """A codec's spec, and the paper that describes the codec."""

    spec: str
    paper: str


ROWS = (
    Row("identity", ""),
    Row("fp16", "IEEE 754 binary16"),
    Row("bf16", "Kalamkar et al. 2019"),
    Row("natural", "Horváth et al. 2019"),
    Row("qsgd", "Alistarh et al., NeurIPS 2017"),
    Row("qsgd+ans", "the same, entropy coded (Duda 2013)"),
    Row("nuqsgd", "Ramezani-Kebrya et al., JMLR 2021"),
    Row("dithered+ans", "Zamir and Feder 1992"),
    Row("terngrad", "Wen et al., NeurIPS 2017"),
    Row("minmax", "Bai et al., HiPress, SOSP 2021"),
    Row("onebit", "Seide et al., Interspeech 2014"),
    Row("scaledsign", "Karimireddy et al., ICML 2019"),
    Row("polar", "Korada and Urbanke, IEEE Trans. IT 2010"),
    Row("svd", "Wang et al., ATOMO, NeurIPS 2018"),
    Row("entrywise", "Wang et al., ATOMO, NeurIPS 2018"),
    Row("topk:ratio=0.01", "Stich et al., NeurIPS 2018"),
    Row("topk:ratio=0.001,sampled=true", "Lin et al., DGC, ICLR 2018"),
    Row("randk:ratio=0.01", "Stich et al., NeurIPS 2018"),
    Row("graddrop", "Aji and Heafield, EMNLP 2017"),
    Row("adacomp", "Chen et al., AAAI 2018"),
    Row("lss", "Ge et al., CASQ, CLUSTER 2021"),
    Row("lss:bits=4,rate=1+ans", "the same, entropy coded"),
    Row("sketchml", "Jiang et al., SIGMOD 2018"),
    Row("countsketch", "Charikar et al. 2002; Ivkin et al., NeurIPS 2019"),
    Row("countmean", "Alon, Matias, Szegedy 1996"),
    Row("fourier", "Wang et al., ATOMO, NeurIPS 2018"),
)


def fastest(call: Callable[[], object]) -> float:
    """Return the seconds of the fastest of `REPEATS` calls, after a first call that compiles and warms up."""
    call()
    seconds = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def measured(row: Row, values: np.ndarray) -> str:
    """Return the table's line for `row`, measured on `values`."""
    codec = get_codec(row.spec)
    x = values[: 512 * 4608].reshape(512, 4608) if codec.shaped else values
    rng, total = np.random.default_rng(1), np.zeros_like(x)
    buffer = np.empty(codec.max_nbytes(x.shape), np.uint8)
    payload = codec.encode(x, rng)
    error = np.square(codec.decode(payload).astype(np.float64) - x).sum() / np.square(x.astype(np.float64)).sum()
    encode = x.nbytes / 1e9 / fastest(lambda: codec.encode(x, rng, out=buffer))
    add = x.nbytes / 1e9 / fastest(lambda: codec.decode_add(payload, total))
    bias = "none, exact" if codec.lossless else "none" if codec.unbiased else "biased"
    shown = f"{add:.1f}" if add < 100 else "> 100"
    return f"| `{row.spec}` | {8 * payload.nbytes / x.size:.3g} | {bias} | {error:.2g} | {encode:.2g} / {shown} | {row.paper} |"


def main() -> None:
    values = np.random.default_rng(0).standard_normal(1 << 24).astype(np.float32)
    lines = ["| codec | bits a coordinate | bias | squared error | GB/s encode / add | source |", "|---|---:|---|---:|---:|---|"]
    for row in ROWS:
        lines.append(measured(row, values))
        print(lines[-1], flush=True)
    if "--write" in sys.argv[1:]:
        head, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(head + BEGIN + "\n".join(lines) + "\n" + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
