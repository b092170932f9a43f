"""What may only get better: lengths of modules and functions, definitions and files nobody uses.

Each rule has a list of exceptions, which only shrinks: an exception that is not needed any more, or
allows far more than is there, is a finding, too.
"""

import ast
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

from tests.house.tree import Module, aliases, dotted, imports, modules, parsed

MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
#: An exception may allow for this much more than is there.
SLACK = 0.9

#: Modules that are longer, each one thought: how many lines they may have.
LONG_MODULES: dict[str, int] = {
    "pymq.store.files": 558,
}
#: Functions that are longer.
LONG_FUNCTIONS: dict[str, int] = {}

_PEERS = "a format of the protocol: written or read by peers, or by requests to come"
_DISKS = "the disks of the crash tests"
#: Definitions that nothing of ours uses, and why they are there.
UNUSED: dict[str, str] = {
    "pymq.client.sockets.bulk_client.BulkClient.send_batches": "how tests fill queues",
    "pymq.filter.bloom.BloomFilter.is_hit": "how tests read bit maps of RocketMQ",
    "pymq.protocol.batch_body.decode_batch": _PEERS,
    "pymq.protocol.registration_body.RegisterBrokerBody.encode_compressed": _PEERS,
    "pymq.store.retention.deleted_segments.DeletedSegments.held_count": "what tests look at",
    "pymq.testing.inspection.Inspection.dead_letters": "what tests look at",
    "pymq.testing.faulty_files.FaultyFiles": _DISKS,
    "pymq.testing.faulty_files.FaultyFiles.fault_met": _DISKS,
    "pymq.testing.faulty_files.FaultyFiles.mend": _DISKS,
    "pymq.testing.lost_power.Disk.lose_power": _DISKS,
}
#: Decorators that do not hand a function to anybody.
QUIET_DECORATORS = {
    *("abstractmethod", "cache", "cached_property", "classmethod", "contextmanager", "dataclass"),
    *("final", "lru_cache", "overload", "override", "property", "setter", "staticmethod"),
}
#: Libraries that call what is defined in classes that inherit from theirs.
CALLING_LIBRARIES = {
    *("asyncio", "pyspark", "logging", "ast", "threading", "faststream", "kombu"),
}
#: Files that are run or found by others: by the interpreter, by pytest, by Spark, by installers.
ENTRANCES = {
    *("pymq.cli.__main__", "pymq.cli.main", "pymq.testing.pytest_plugin", "pyspark_pymq"),
    *("pymq.allocation", "pymq.selectors", "pymq.blocking", "pymq.spark", "pymq.otel"),
    *("pymq.integrations.faststream", "pymq.integrations.kombu"),
    *("pymq.integrations.structured_logging", "pymq.integrations.faststream_testing"),
    *("pymq.testing.containers", "pymq.testing.faulty_files"),
}


def length_findings(
    root: Path,
    long_modules: Mapping[str, int] | None = None,
    long_functions: Mapping[str, int] | None = None,
) -> list[str]:
    """Modules and functions that are too long, and exceptions that are not needed any more."""
    long_modules = LONG_MODULES if long_modules is None else long_modules
    long_functions = LONG_FUNCTIONS if long_functions is None else long_functions
    lines = {module.name: len(module.text.splitlines()) for module in modules(root)}
    functions = {
        f"{module.name}.{name}": node.end_lineno - node.lineno + 1
        for module in modules(root)
        for name, node in definitions(module)
        if not isinstance(node, ast.ClassDef) and node.end_lineno is not None
    }
    return [
        *_length_findings(lines, MODULE_LINES_MAX, long_modules, "LONG_MODULES"),
        *_length_findings(functions, FUNCTION_LINES_MAX, long_functions, "LONG_FUNCTIONS"),
    ]


def _length_findings(
    lines: Mapping[str, int], most: int, allowed: Mapping[str, int], table: str
) -> Iterator[str]:
    for name, count in sorted(lines.items()):
        if count > allowed.get(name, most):
            yield f"{name} has {count} lines, at most {allowed.get(name, most)}: cut it"
    for name, count in sorted(allowed.items()):
        found = lines.get(name, 0)
        if found <= most:
            yield f"{table}: {name} has {found} lines by now: take it out"
        elif found < SLACK * count:
            yield f"{table}: {name} has {found} lines by now: let it have no more"


def definitions(
    module: Module,
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]]:
    """Every class, function and method, by its name in the module; not those inside functions."""

    def walk(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.stmt]]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from walk(node.body, f"{prefix}{node.name}.")

    yield from walk(module.tree.body, "")  # type: ignore[misc]  # yields these three alone


def unused_findings(root: Path, unused: Mapping[str, str] | None = None) -> list[str]:
    """Definitions whose names occur nowhere else in the packages and the examples.

    Names are compared, not what they stand for: one that is used anywhere counts as used.
    """
    unused = UNUSED if unused is None else unused
    used = names_used(root)
    called_by_others = public_classes(root) | foreign_classes(root)
    found = set()
    for module in modules(root):
        for name, node in definitions(module):
            holder, _, own = f".{name}".rpartition(".")
            if not (
                used[own]
                or own.startswith("__")
                or holder.rpartition(".")[-1] in called_by_others
                or any(map(_hands_over, node.decorator_list))
            ):
                found.add(f"{module.name}.{name}")
        for name in constants(module):
            if used[name] <= 1 and not name.startswith("__"):  # once where it is set
                found.add(f"{module.name}.{name}")
    return [
        *(f"{name} is not used: take it out" for name in sorted(found - unused.keys())),
        *(f"UNUSED: {name} is used or gone: take it out" for name in sorted(unused.keys() - found)),
    ]


def constants(module: Module) -> Iterator[str]:
    """Every name that is set at the top of a module."""
    for node in module.tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        yield from (target.id for target in targets if isinstance(target, ast.Name))


@cache
def names_used(root: Path) -> Counter[str]:
    """How often each name is read or set in packages and examples, strings included."""
    used: Counter[str] = Counter()
    trees = [module.tree for module in modules(root)]
    for path in sorted((root / "examples").rglob("*.py")):
        trees.append(parsed(path.read_text(encoding="utf-8")))
    for tree in trees:
        for node in ast.walk(tree):
            match node:
                case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                    used[name] += 1
                case ast.Constant(value=str(text)) if text.isidentifier():
                    used[text] += 1
    return used


@cache
def public_classes(root: Path) -> frozenset[str]:
    """The classes that users see: whatever a package's ``__all__`` names."""
    found: set[str] = set()
    for module in modules(root):
        if not module.is_package and module.name != "pymq.blocking":
            continue
        for node in module.tree.body:
            match node:
                case ast.Assign(
                    targets=[ast.Name(id="__all__")], value=ast.List() | ast.Tuple() as names
                ):
                    found |= {ast.literal_eval(name) for name in names.elts}
    return frozenset(found)


@cache
def foreign_classes(root: Path) -> frozenset[str]:
    """The classes whose methods some library calls: they inherit from one of it."""
    found: set[str] = set()
    count = -1
    while count < len(found):  # also those that inherit from one of these
        count = len(found)
        for module in modules(root):
            known = aliases(module)
            for node in ast.walk(module.tree):
                if isinstance(node, ast.ClassDef):
                    bases = (b.value if isinstance(b, ast.Subscript) else b for b in node.bases)
                    first = {dotted(base).partition(".")[0] for base in bases}
                    sources = {known.get(name, name).partition(".")[0] for name in first}
                    if sources & CALLING_LIBRARIES or first & found:
                        found.add(node.name)
    return frozenset(found)


def _hands_over(decorator: ast.expr) -> bool:
    """Does a decorator make somebody else call the function?"""
    if isinstance(decorator, ast.Call):
        decorator = decorator.func
    name = decorator.attr if isinstance(decorator, ast.Attribute) else getattr(decorator, "id", "")
    return name not in QUIET_DECORATORS


def orphan_findings(root: Path) -> list[str]:
    """Files that no other file imports."""
    found = list(modules(root))
    imported = {
        part
        for module in found
        for one in imports(module)
        if one.target != module.name
        for part in (one.target, one.target.rpartition(".")[0])
    }
    return [
        f"{module.path}: nobody imports it"
        for module in found
        if not module.is_package and module.name not in imported | ENTRANCES
    ]


CHECKERS: tuple[Callable[[Path], list[str]], ...] = (
    length_findings,
    unused_findings,
    orphan_findings,
)
