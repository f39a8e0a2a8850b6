"""Measures of the prose in docstrings and comments: scripts/prose.py [--show PATTERN] [PACKAGE]...

The script prints a row per package. For every pattern it has the number of matches per 1 000 words of docstrings and comments.
The exception is "question": the number of docstrings whose first word is What, Who, Where, Whether, Which, How or When. --show
prints the lines that match one pattern instead. tests/test_prose.py holds every package to GOAL.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("tools", "scripts", "examples", "tests")
QUESTION, WORDS = "question", "words"
_FIRST = re.compile(r"\s*(What|Who|Whom|Whose|Where|Whether|Which|How|When)\b")
_WORD = re.compile(r"[A-Za-z']+")
# Word order taken over from another language; the comment gives the usual English.
PATTERNS = {
    "what": re.compile(r"\bwhat\b", re.I),  # a noun: "the bytes", "the values"
    "behind": re.compile(r"\bbehind\b", re.I),  # after
    "whoever": re.compile(r"\b(whoever|nobody|somebody)\b", re.I),  # the caller, a peer; no process
    "so many": re.compile(r"\bso (many|much)\b", re.I),  # the number itself: "Runs in parallel"
    "there": re.compile(r"\bthere(?=[.,;:)]|\s*$)", re.I),  # name the place
    "none of": re.compile(r"\bnone of\b", re.I),  # no
    "as of": re.compile(r"\bas of\b", re.I),  # see, like
    "is none": re.compile(r"(?<!there )\b(is|are|be) none\b|\b(is|are) no \w+ of\b"),  # there is no; is not
    "from here on": re.compile(r"\bfrom here on\b", re.I),  # now
}
NAMES = (*PATTERNS, QUESTION)
GOAL = dict.fromkeys(PATTERNS, 0.4) | {"what": 0.5, QUESTION: 0}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of every docstring in `source`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)) is not None:
            yield node.body[0].lineno, text


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of every comment in `source`, without its sign."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("#! ")


def packages() -> dict[str, list[Path]]:
    """Return the Python files by package: `psnode/NAME` for packages and modules of psnode, else the top-level folder."""
    found: dict[str, list[Path]] = {}
    for path in sorted((ROOT / "psnode").rglob("*.py")):
        name = path.relative_to(ROOT / "psnode").parts[0]
        found.setdefault(f"psnode/{name}", []).append(path)
    return found | {folder: sorted((ROOT / folder).rglob("*.py")) for folder in FOLDERS}


def texts(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Yield line and text of every docstring and every comment in `path`, with True for a docstring and False for a comment."""
    source = path.read_text()
    yield from ((line, text, True) for line, text in docstrings(source))
    yield from ((line, text, False) for line, text in comments(source))


def matches(found_texts: Iterable[tuple[int, str, bool]]) -> Iterator[tuple[str, int, str]]:
    """Yield pattern, line number and text of every match in `found_texts`."""
    for start, text, is_docstring in found_texts:
        if is_docstring and _FIRST.match(text):
            yield QUESTION, start, text.splitlines()[0]
        for name, pattern in PATTERNS.items():
            for found in pattern.finditer(text):
                before = text[: found.start()].count("\n")
                yield name, start + before, text.splitlines()[before]


def count(paths: list[Path]) -> Counter[str]:
    """Count the words, and the matches of each pattern, in the prose of `paths`."""
    counts: Counter[str] = Counter()
    for path in paths:
        found = list(texts(path))
        counts[WORDS] += sum(len(_WORD.findall(text)) for _, text, _ in found)
        counts.update(name for name, _, _ in matches(found))
    return counts


def rate(counts: Counter[str], name: str) -> float:
    """Return the figure of pattern `name`: matches per 1 000 words, or a plain count for QUESTION."""
    return counts[name] if name == QUESTION else 1000 * counts[name] / max(counts[WORDS], 1)


def main() -> None:
    """Print the measures, or the matching lines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--show", choices=NAMES, metavar="PATTERN", help=f"print the lines that match: {', '.join(NAMES)}")
    parser.add_argument("packages", nargs="*", help="psnode/NAME, tools, scripts, examples or tests; default: all")
    arguments = parser.parse_args()
    chosen = {name: paths for name, paths in packages().items() if not arguments.packages or name in arguments.packages}
    if arguments.show:
        for path in (path for paths in chosen.values() for path in paths):
            for name, line, text in matches(texts(path)):
                if name == arguments.show:
                    print(f"{path.relative_to(ROOT)}:{line}: {text.strip()}")
        return
    print(f"{'':20}{WORDS:>8}" + "".join(f"{name:>13}" for name in NAMES))
    for package, paths in chosen.items():
        counts = count(paths)
        print(f"{package:20}{counts[WORDS]:8}" + "".join(f"{rate(counts, name):13.2f}" for name in NAMES))


if __name__ == "__main__":
    main()
