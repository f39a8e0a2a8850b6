"""Measures of the prose in docstrings and comments: scripts/prose.py [FOLDER]... prints them and the lines to look at.

Counts docstrings that begin with What, Who, Where, Whether, Which, How or When, and the word "what" in 1 000 words of docstrings
and comments. The exit code is 1 if any docstring begins so.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("psnode", "tools", "scripts", "examples", "tests")
_FIRST = re.compile(r"\s*(What|Who|Whom|Whose|Where|Whether|Which|How|When)\b")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring in `source`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)) is not None:
            yield node.body[0].lineno, text


def comments(source: str) -> Iterator[str]:
    """Every comment in `source`, without its sign."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string.lstrip("#! ")


def main(folders: list[str]) -> int:
    """Print the measures of the files below `folders`; the exit code."""
    words = whats = 0
    begins: list[str] = []
    for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        source = path.read_text()
        found = list(docstrings(source))
        begins += [f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}" for line, text in found if _FIRST.match(text)]
        for text in [*(text for _, text in found), *comments(source)]:
            spoken = re.findall(r"[a-z']+", text.lower())
            words += len(spoken)
            whats += spoken.count("what")
    print(*begins, sep="\n", end="\n" * bool(begins))
    print(f"{len(begins)} docstrings begin with a question word; {1000 * whats / max(words, 1):.2f} 'what' in 1 000 words")
    return bool(begins)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(FOLDERS)))
