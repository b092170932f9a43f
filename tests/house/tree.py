"""The source files of the project, or of a small wrong tree, parsed."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
SOURCES = ("broker", "connector")  # the two source roots


@dataclass(frozen=True, slots=True)
class Module:
    """One source file of ours, parsed."""

    path: Path  # below the project's folder
    name: str  # dotted, without a trailing __init__
    is_package: bool
    text: str
    tree: ast.Module

    @property
    def layer(self) -> str:
        """The row of the table this module belongs to."""
        return layer_of(self.name)

    def at(self, node: ast.AST) -> str:
        """Where a finding is, as editors understand it."""
        return f"{self.path}:{getattr(node, 'lineno', 1)}"


@dataclass(frozen=True, slots=True)
class Import:
    """One module imported by one statement."""

    target: str  # dotted and absolute; may end in a name that is no module
    node: ast.AST
    guarded: bool  # in a function, a `try`, or under TYPE_CHECKING


def layer_of(name: str) -> str:
    """The layer of one of our dotted names: ``pymq.store.files`` -> ``store``."""
    first, _, rest = name.partition(".")
    layer = rest.partition(".")[0]
    return layer if first == "pymq" and layer else first


def modules(root: Path) -> list[Module]:
    """Every Python file of both source roots, in a fixed order."""
    found = []
    for source in SOURCES:
        for path in sorted((root / source).rglob("*.py")):
            parts = path.relative_to(root / source).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            text = path.read_text(encoding="utf-8")
            name = ".".join(parts[:-1] if is_package else parts)
            found.append(Module(path.relative_to(root), name, is_package, text, parsed(text)))
    return found


@cache
def parsed(text: str) -> ast.Module:
    """The tree of a source text; of the project, all of them are 150 MB."""
    return ast.parse(text)


def absolute(module: Module, node: ast.ImportFrom) -> str:
    """The dotted name after ``from``, relative ones resolved."""
    if not node.level:
        return node.module or ""
    drop = node.level - module.is_package
    package = module.name.split(".")[: -drop or None]
    return ".".join([*package, *([node.module] if node.module else [])])


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports(module: Module) -> Iterator[Import]:
    """Every import of a module, wherever it stands, those by ``import_module("...")`` included.

    ``from package import name`` yields ``package.name``: it may be a module, and every rule here
    looks at the front of the name only.
    """

    def walk(node: ast.AST, guarded: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node, guarded) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = absolute(module, node)
            yield from (Import(f"{source}.{alias.name}", node, guarded) for alias in node.names)
        elif isinstance(node, ast.Call) and dotted(node.func).endswith(
            ("import_module", "__import__")
        ):
            match node.args:
                case [ast.Constant(value=str(target)), *_]:
                    yield Import(target, node, guarded)
        guards = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Try
        inside = guarded or isinstance(node, guards)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, inside or is_type_checking(child))

    yield from walk(module.tree, False)


def dotted(node: ast.expr) -> str:
    """``a.b.c`` of a name or attribute chain; what is not a name becomes ``?``."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            return f"{dotted(value)}.{attr}"
    return "?"


def aliases(module: Module) -> dict[str, str]:
    """Local name -> what it stands for, for every import of the module."""
    names: dict[str, str] = {}
    for node in ast.walk(module.tree):
        match node:
            case ast.Import():
                names |= {a.asname: a.name for a in node.names if a.asname}
            case ast.ImportFrom():
                source = absolute(module, node)
                names |= {a.asname or a.name: f"{source}.{a.name}" for a in node.names}
    return names


def calls(module: Module) -> Iterator[tuple[str, ast.Call]]:
    """Every call with the full name of what is called: ``sleep(1)`` -> ``time.sleep``."""
    known = aliases(module)
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call):
            first, dot, rest = dotted(node.func).partition(".")
            yield known.get(first, first) + dot + rest, node
