"""`python -m studies`: print the name of every study, with the first paragraph of its docstring."""

from __future__ import annotations

import ast
from pathlib import Path

if __name__ == "__main__":
    for path in sorted(Path(__file__).parent.glob("*.py")):
        tree = ast.parse(path.read_text())
        if any(isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "STUDY" for node in tree.body):
            first = (ast.get_docstring(tree) or "").partition("\n\n")[0]
            print(f"{path.stem:18}{' '.join(first.split())}")
