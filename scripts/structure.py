"""Measures of the layout of the code: scripts/structure.py [CHECKOUT]

The script prints lines by package, entries per folder, the longest parameter lists, modules with LLVM instructions, and names
that occur twice. tests/test_house.py holds these measures to limits. scripts/structure.py --page writes the lines by package to
docs/decisions/layout.md.

Lines: all lines of a package's modules, and of the tests in the folder of the same name. Entries: modules and packages, without
__init__.py. Parameters: without self and cls. LLVM: modules that make their own instructions for Numba. Names: of classes and
of files, if they occur in different modules.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("psnode", "tools")
PAGE = ROOT / "docs" / "decisions" / "layout.md"
START, END = "<!-- lines: scripts/structure.py --page -->", "<!-- end of lines -->"
_HERE = "(modules)"
_LONGEST = 5


def lines_by_folder(folder: Path) -> Counter[str]:
    """Return the number of lines of the Python files in each folder directly in `folder`.

    Files directly in `folder` count together, under one name.
    """
    counts: Counter[str] = Counter()
    for path in folder.rglob("*.py"):
        inside = path.relative_to(folder).parts
        counts[inside[0] if len(inside) > 1 else _HERE] += len(path.read_text().splitlines())
    return counts


def entries(folder: Path) -> list[str]:
    """Return the names of the modules and packages directly in `folder`, except __init__ and a program's entry point __main__."""
    found = [path for path in folder.iterdir() if path.suffix == ".py" or any(path.rglob("*.py"))]
    return sorted(path.stem for path in found if path.name not in ("__init__.py", "__main__.py"))


def parameters(source: str) -> Iterator[tuple[int, str]]:
    """Yield the number of parameters and the name of every function in `source`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            listed = node.args
            every = [*listed.posonlyargs, *listed.args, *listed.kwonlyargs, listed.vararg, listed.kwarg]
            yield sum(one is not None and one.arg not in ("self", "cls") for one in every), node.name


def positional(source: str) -> Iterator[tuple[int, str]]:
    """Yield the number of parameters that can be passed by position, and the function's name as Class.method."""
    ahead = [(node, "") for node in ast.parse(source).body]
    while ahead:
        node, outside = ahead.pop()
        inside = outside
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield sum(one.arg not in ("self", "cls") for one in (*node.args.posonlyargs, *node.args.args)), outside + node.name
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            inside = f"{outside}{node.name}."
        ahead += [(child, inside) for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]


def classes(source: str) -> list[str]:
    """Return the names of the classes in `source`, including nested classes."""
    return [node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]


def twice(names: Iterable[str]) -> list[str]:
    """Return the names that occur more than once in `names`, sorted."""
    return sorted(name for name, count in Counter(names).items() if count > 1)


def sources_of(root: Path) -> dict[Path, str]:
    """Return the sources of the product's modules in the checkout `root`, by path relative to `root`."""
    return {path.relative_to(root): path.read_text() for folder in PRODUCT for path in sorted((root / folder).rglob("*.py"))}


def makes_instructions(source: str) -> bool:
    """Return True if `source` imports llvmlite, or `intrinsic`, Numba's decorator for instructions."""
    for node in ast.walk(ast.parse(source)):
        names = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
        module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        if "intrinsic" in names or any(name.partition(".")[0] == "llvmlite" for name in [module, *names]):
            return True
    return False


def table(root: Path) -> str:
    """Return a table in Markdown of the lines by package, in hundreds."""
    product, tests = product_and_tests(root)
    lines = ["| package | product | tests |", "|---|---:|---:|"]
    for name in sorted(product | tests):
        lines.append(f"| {name} | {product[name] / 100:.0f} | {tests[name] / 100:.0f} |")
    return "\n".join([*lines, f"| all | {product.total() / 100:.0f} | {tests.total() / 100:.0f} |"])


def product_and_tests(root: Path) -> tuple[Counter[str], Counter[str]]:
    """Return the numbers of lines by package in the checkout `root`: of the product, with tools and studies, and of the tests."""
    product, tests = lines_by_folder(root / "psnode"), lines_by_folder(root / "tests")
    product["ec2"] = sum(lines_by_folder(root / "tools").values())
    product["studies"] = sum(lines_by_folder(root / "studies").values())
    return product, tests


def write_page() -> None:
    """Write the table of lines into PAGE."""
    before, _, rest = PAGE.read_text().partition(START)
    PAGE.write_text(f"{before}{START}\n\n{table(ROOT)}\n\n{END}{rest.partition(END)[2]}")


def main(arguments: list[str]) -> int:
    """Print the measures of a checkout, and return the exit code."""
    if arguments == ["--page"]:
        write_page()
        return 0
    root = Path(arguments[0]).resolve() if arguments else ROOT
    product, tests = product_and_tests(root)
    print(f"{'lines':16}{'product':>8}{'tests':>8}")
    for name in sorted(product | tests):
        print(f"{name:16}{product[name]:8}{tests[name]:8}")
    print(f"{'all':16}{product.total():8}{tests.total():8}")
    inside = {name: len(entries(root / "psnode" / name)) for name in product if (root / "psnode" / name).is_dir()}
    fullest = max(sorted(inside), key=inside.__getitem__)
    print(f"\nentries of psnode/: {len(entries(root / 'psnode'))}")
    print(f"entries of its packages: {sum(inside.values())}, most in {fullest}: {inside[fullest]}")
    sources = sources_of(root)
    found = [(count, f"{path}: {name}") for path, source in sources.items() for count, name in parameters(source)]
    longest = sorted(found, key=lambda entry: (-entry[0], entry[1]))[:_LONGEST]
    print("\nlongest parameter lists", *(f"{count:3}  {place}" for count, place in longest), sep="\n")
    made = [str(path) for path, source in sources.items() if makes_instructions(source)]
    print(f"\nmodules with LLVM instructions: {len(made)}", *made, sep="\n  ")
    print("\nclasses of one name:", *twice(name for source in sources.values() for name in set(classes(source))))
    print("\nfiles of one name:", *twice(path.name for path in sources if not path.name.startswith("__")))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
