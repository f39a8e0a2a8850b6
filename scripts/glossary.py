"""Make docs/glossary.md, the classes of the data and control planes, from their docstrings.

scripts/glossary.py [--check]   --check: write nothing; the exit code is 1 if the page differs from the code
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "glossary.md"
PACKAGES = {
    "plans": "The plan of a run",
    "codecs/device": "Codecs on a device",
    "feedback": "Feedback rules",
    "transport": "Transport",
    "protocol": "Messages",
    "exchange": "The data plane",
    "worker": "The control plane of a worker",
    "master": "The control plane of the master",
}
_HEAD = """# Names in the code

The classes of the two planes, by package and module, each with the first sentence of its docstring. Made by
`scripts/glossary.py`; the words of the whole program stand in [architecture.md](architecture.md#words).
"""


def classes(package: str) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the module, and the docstring's first sentence of every public class in `package`."""
    folder = ROOT / "psnode" / package
    for path in sorted(folder.rglob("*.py")):
        module = ".".join(path.relative_to(folder).with_suffix("").parts)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, module.removesuffix(".__init__"), _first_sentence(ast.get_docstring(node) or "")


def _first_sentence(text: str) -> str:
    """Return the first sentence of a docstring on one line, escaped for a table."""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    sentence, stop, _ = paragraph.partition(". ")
    return f"{sentence}{stop.strip()}".replace("|", "\\|")


def page() -> str:
    """Return the text of docs/glossary.md."""
    lines = [_HEAD]
    for package, title in PACKAGES.items():
        if found := list(classes(package)):
            lines += [f"## {title}: psnode/{package}/", "", "| name | module | what it is |", "|---|---|---|"]
            lines += [f"| {name} | {module} | {sentence} |" for name, module, sentence in found]
            lines += [""]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Write the page or, with --check, compare it with the code. Return the exit code."""
    if list(arguments) == ["--check"]:
        return int(PAGE.read_text() != page())
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
