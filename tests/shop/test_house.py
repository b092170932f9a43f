"""The shop keeps the limits of the house, and its own rule of who imports whom."""

import ast
from pathlib import Path

from tests.house.ratchets import FUNCTION_LINES_MAX, MODULE_LINES_MAX
from tests.house.tree import PROJECT

from shop.settings import PORTS

SHOP = PROJECT / "examples/shop/shop"
#: Modules that know services; every other one does not.
OUTSIDE = {"definitions.py", "audit.py", "relay.py"}
OUTSIDE_FOLDERS = {"story", "page", "migrations"}


def parsed() -> dict[Path, ast.Module]:
    return {path.relative_to(SHOP): ast.parse(path.read_text()) for path in SHOP.rglob("*.py")}


def test_lengths() -> None:
    found = []
    for path, tree in parsed().items():
        if (count := len((SHOP / path).read_text().splitlines())) > MODULE_LINES_MAX:
            found.append(f"{path}: {count} lines")
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                count = (node.end_lineno or 0) - node.lineno + 1
                # The routes of a service are closures in one function, each short.
                if node.name != "build" and count > FUNCTION_LINES_MAX:
                    found.append(f"{path}: {node.name} has {count} lines")
    assert not found, found


def test_no_service_imports_another() -> None:
    found = []
    for path, tree in parsed().items():
        if path.name in OUTSIDE or path.parts[0] in OUTSIDE_FOLDERS:
            continue
        own = path.parts[0] if path.parts[0] in PORTS else ""
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                parts = [*node.module.split("."), *(name.name for name in node.names)]
                if parts[0] == "shop" and parts[1] in PORTS and parts[1] != own:
                    found.append(f"{path}:{node.lineno}: {node.module}")
    assert not found, found


def test_no_service_needs_spark() -> None:
    found = set()
    for path, tree in parsed().items():
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{name.name}" for name in node.names]
            elif isinstance(node, ast.Import):
                names = [name.name for name in node.names]
            if any(f"{name}.".startswith(("pyspark.", "shop.figures.")) for name in names):
                found.add(str(path))
    assert found == {"figures.py"}


def test_pymq_is_used_through_its_public_names_only() -> None:
    found = []
    for path, tree in parsed().items():
        for node in ast.walk(tree):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.Import):
                names = [name.name for name in node.names]
            found += [f"{path}: {name}" for name in names if name.startswith("pymq.")]
    assert not found, found
