"""The rules of the house that a machine can see.

Every checker takes the folder that holds both source roots and returns its findings, one line
each, so that it runs over the project and over small wrong trees, which prove that it bites.

What is checked: who imports whom (between packages, and inside those with ranks), which foreign
packages may be imported where, which modules must not reach for files, sockets or the clock, the
forbidden calls and names, and that ``setup.cfg`` names exactly the packages that there are.
"""

import ast
import configparser
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
SOURCES = ("broker", "connector")  # the two source roots

# Layer -> the layers of ours that it may import besides itself.
LAYERS: dict[str, set[str]] = {
    "errors": set(),
    "extras": set(),
    "clock": set(),
    "known_keys": set(),  # data of settings
    "settings": {"errors", "known_keys"},
    "protocol": {"errors"},
    "filter": {"errors"},
    "store": {"errors", "clock", "protocol"},
    "net": {"errors", "clock", "protocol"},
    "namesrv": {"errors", "clock", "settings", "protocol", "net"},
    "broker": {"errors", "extras", "clock", "settings", "protocol", "filter", "store", "net"},
    "client": {"errors", "clock", "protocol", "filter", "net"},
    "pyspark_pymq": {"errors", "protocol", "client"},
    # These two show the public names of the others, and nobody leans on them in turn.
    "sync": {"client"},
    "pymq": {"errors", "clock", "protocol", "client", "sync"},
}
EDGES = ("testing", "cli")  # import everything; nothing but they themselves imports them
LAYERS |= {edge: {*LAYERS, *EDGES} for edge in EDGES}

# Layer -> foreign packages it may import anywhere. Compression codecs are everybody's, but only
# where their absence can be survived: in a function or a `try`.
FOREIGN: dict[str, set[str]] = {
    "protocol": {"numpy"},
    "store": {"numpy"},
    "broker": {"numpy", "prometheus_client"},
    "testing": {"pytest"},
    "cli": {"typer", "rich", "click", "uvloop"},
    "pyspark_pymq": {"pyspark", "pyarrow", "numpy", "fastavro"},
}
OPTIONAL: dict[str, set[str]] = {
    "protocol": {"isal", "lz4", "zstandard"},
    "client": {"numpy", "lz4", "zstandard"},
}

# Layer -> its ranks, from the inside out: a module may import those of its own rank and of ranks
# before it. A rank holds modules and sub-packages by name; "*" is every one that no rank names.
# The layer's `__init__` belongs to the last one.
RANKS: dict[str, tuple[tuple[str, ...], ...]] = {
    "broker": (("config",), ("state",), ("*",), ("handlers",), ("assembly",), ("broker",)),
    "store": (
        ("files", "config", "progress"),
        ("log",),
        ("queues",),
        ("index",),
        ("state",),
        ("*",),
        ("recovery",),
        ("retention",),
        ("opening",),
        ("message_store",),
        ("inspection",),
        ("rebuild",),
    ),
}
# Sub-packages whose modules never import one another.
STRANGERS = {"broker.handlers"}

OUTSIDE_WORLD = {
    *("asyncio", "concurrent", "multiprocessing", "queue", "sched", "_thread", "threading"),
    *("select", "selectors", "socket", "socketserver", "ssl", "signal", "subprocess"),
    *("fcntl", "fileinput", "glob", "mmap", "os", "pathlib", "shutil", "tempfile", "time"),
}
# Layer -> standard modules it must never import.
BANNED_IMPORTS: dict[str, set[str]] = {
    "protocol": OUTSIDE_WORLD,
    "filter": OUTSIDE_WORLD,
    "store": {"asyncio", "socket", "ssl", "selectors"},
    "pyspark_pymq": {"asyncio", "concurrent", "multiprocessing", "threading", "_thread"},
}

FILE_MODULES = {"fcntl", "fileinput", "glob", "mmap", "shutil", "tempfile"}
PURE_OS = {"path", "PathLike", "fspath", "fsencode", "fsdecode", "getpid", "sep"}
PURE_OS_PATH = {"join", "basename", "dirname", "split", "splitext", "normpath", "isabs"}
PATH_READS = {"read_text", "write_text", "read_bytes", "write_bytes", "iterdir", "rglob"}

BANNED_CALLS = {
    "print": "print: log it, return it or, in cli, hand it to the console",
    "time.sleep": "time.sleep: wait for the condition, with a deadline",
    "asyncio.create_task": "tasks start through net.tasks only",
    "asyncio.ensure_future": "tasks start through net.tasks only",
    "asyncio.TaskGroup": "tasks start through net.tasks only",
}
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
PATTERN_NAME = re.compile(r"(^(Abstract|Base)[A-Z])|((Impl|Manager|Helper|Utils?)$)")
NAMELESS_MODULE = {"utils", "util", "helpers", "helper", "common", "misc"}


# ------------------------------------------------------------------------------ reading a tree


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
            tree = ast.parse(text, str(path))
            found.append(Module(path.relative_to(root), name, is_package, text, tree))
    return found


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


# ---------------------------------------------------------------------------------- the rules


def layer_findings(root: Path) -> list[str]:
    """Imports between packages of ours that the table does not allow."""
    found = []
    for module in modules(root):
        if module.layer not in LAYERS:
            found.append(f"{module.path}: {module.layer} is in no line of the layer table")
            continue
        allowed = LAYERS[module.layer]
        for imported in imports(module):
            target = imported.target
            if target.partition(".")[0] not in ("pymq", "pyspark_pymq"):
                continue
            layer = layer_of(target)
            if layer not in LAYERS:  # `from pymq import Producer`
                layer = "pymq"
            if layer != module.layer and layer not in allowed:
                found.append(
                    f"{module.at(imported.node)}: {module.layer} imports {target}; it may import "
                    f"only {', '.join(sorted(allowed)) or 'nothing of ours'}"
                )
    return found


def rank_of(name: str) -> int:
    """The rank of a dotted name inside its layer: an index into ``RANKS[layer]``."""
    _, layer, *rest = name.split(".")
    ranks = RANKS[layer]
    if not rest:
        return len(ranks) - 1
    found = [number for number, names in enumerate(ranks) if rest[0] in names]
    return found[0] if found else ranks.index(("*",))


def rank_findings(root: Path) -> list[str]:
    """Edges inside a layer that point outwards, and imports between strangers."""
    found = []
    named = {module.name for module in modules(root)}
    for module in modules(root):
        ranks = RANKS.get(module.layer)
        if ranks is None:
            continue
        rank = rank_of(module.name)
        for imported in imports(module):
            target = imported.target
            if layer_of(target) != module.layer:
                continue
            if target not in named:  # the last part is a class or function: what holds it counts
                target = target.rpartition(".")[0]
            if rank_of(target) > rank:
                found.append(
                    f"{module.at(imported.node)}: {module.name} imports {target}, which is further "
                    f"out ({' <- '.join(' '.join(names) for names in ranks)})"
                )
            elif is_between_strangers(module.name, target):
                found.append(
                    f"{module.at(imported.node)}: {module.name} imports {target}: modules of "
                    "this folder never import one another"
                )
    return found


def is_between_strangers(name: str, target: str) -> bool:
    """Are these two different modules of one folder of strangers?"""
    folders = [name.split(".")[1:3], target.split(".")[1:3]]
    return (
        folders[0] == folders[1]
        and ".".join(folders[0]) in STRANGERS
        and name.split(".")[:4] != target.split(".")[:4]
    )


def foreign_findings(root: Path) -> list[str]:
    """Third-party packages where the house does without, and standard modules out of bounds."""
    found = []
    for module in modules(root):
        anywhere = FOREIGN.get(module.layer, set())
        optional = OPTIONAL.get(module.layer, set())
        banned = BANNED_IMPORTS.get(module.layer, set())
        for imported in imports(module):
            first = imported.target.partition(".")[0]
            where = module.at(imported.node)
            if first in banned:
                found.append(f"{where}: {module.layer} must never import {first}")
            elif first in sys.stdlib_module_names or first in ("pymq", "pyspark_pymq"):
                continue
            elif first in optional and not imported.guarded:
                found.append(f"{where}: {first} may be missing: import it in a function or a try")
            elif first not in anywhere | optional:
                found.append(f"{where}: {module.layer} does without {first}")
    return found


def file_findings(root: Path) -> list[str]:
    """Modules that reach the file system past ``store/files.py``; protocol and filter at all."""
    found = []
    for module in modules(root):
        if module.layer not in ("store", "protocol", "filter") or module.name == "pymq.store.files":
            continue
        for imported in imports(module):
            if imported.target.partition(".")[0] in FILE_MODULES:
                found.append(f"{module.at(imported.node)}: {imported.target}: use store.files")
        for name, node in calls(module):
            if reaches_files(name):
                found.append(f"{module.at(node)}: {name}(): only store/files.py calls the system")
    return found


def reaches_files(name: str) -> bool:
    """Does a call of this full name go to the operating system for files?"""
    match name.split("."):
        case ["open"] | ["io", "open" | "FileIO"]:
            return True
        case ["os", "path", function]:
            return function not in PURE_OS_PATH
        case ["os", function]:
            return function not in PURE_OS
        case [*holder, function]:
            return function in PATH_READS and holder[-1:] not in (["files"], ["_files"])
    return False


def ban_findings(root: Path) -> list[str]:
    """Calls, statements, names and words that are not in this house."""
    found = []
    for module in modules(root):
        if module.path.stem in NAMELESS_MODULE:
            found.append(f"{module.path}: name the module after the noun it is about")
        for number, line in enumerate(module.text.splitlines(), 1):
            if UNFINISHED.search(line):
                found.append(f"{module.path}:{number}: unfinished: {line.strip()}")
        starts_tasks = module.name == "pymq.net.tasks"
        for name, node in calls(module):
            reason = BANNED_CALLS.get(name)
            if reason is None and name.endswith((".create_task", ".ensure_future")):
                reason = BANNED_CALLS["asyncio.create_task"]
            if reason and not (starts_tasks and "net.tasks" in reason):
                found.append(f"{module.at(node)}: {reason}")
        for node in ast.walk(module.tree):
            match node:
                case ast.ExceptHandler(type=None):
                    found.append(f"{module.at(node)}: bare except: name what you can handle")
                case ast.ImportFrom(names=[ast.alias(name="*")]):
                    found.append(f"{module.at(node)}: import *: name what you use")
                case ast.ClassDef(name=name) if PATTERN_NAME.search(name):
                    found.append(f"{module.at(node)}: {name}: roles and patterns lose their names")
    return found


def package_findings(root: Path) -> list[str]:
    """Differences between the packages of ``setup.cfg`` and the directories with Python files."""
    setup = configparser.ConfigParser()
    setup.read(root / "setup.cfg", encoding="utf-8")
    listed = setup["options"]["packages"].split()
    found = [f"setup.cfg: {name} is listed twice" for name in set(listed) if listed.count(name) > 1]
    there = set()
    for source in SOURCES:
        for folder in {path.parent for path in (root / source).rglob("*.py")}:
            name = ".".join(folder.relative_to(root / source).parts)
            there.add(name)
            if not (folder / "__init__.py").exists():
                found.append(f"{folder.relative_to(root)}: holds Python files and no __init__.py")
    found += [f"setup.cfg: {name} is not listed in packages" for name in there - set(listed)]
    for name in set(listed) - there:
        source = SOURCES[name.startswith("pyspark_pymq")]
        folder = root / source / name.replace(".", "/")
        if not folder.is_dir() or any(folder.iterdir()):  # empty: somebody is about to fill it
            found.append(f"setup.cfg: {name} is listed, but there is none")
    return sorted(found)


def connector_findings(root: Path) -> list[str]:
    """An exception while Spark imports us would break discovery of every data source."""
    found = []
    for module in modules(root):
        if module.name != "pyspark_pymq":
            continue
        for imported in imports(module):
            if imported.target.partition(".")[0] not in sys.stdlib_module_names and (
                not imported.guarded
            ):
                found.append(f"{module.at(imported.node)}: {imported.target} may fail to import")
        statements = sum(isinstance(node, ast.stmt) for node in ast.walk(module.tree))
        if statements > 25:
            found.append(f"{module.path}: {statements} statements, at most 25: keep it tiny")
    return found


CHECKERS: tuple[Callable[[Path], list[str]], ...] = (
    layer_findings,
    rank_findings,
    foreign_findings,
    file_findings,
    ban_findings,
    package_findings,
    connector_findings,
)


@pytest.mark.parametrize("checker", CHECKERS, ids=lambda checker: checker.__name__)
def test_project(checker: Callable[[Path], list[str]]) -> None:
    findings = checker(PROJECT)
    assert not findings, "\n" + "\n".join(findings)


def test_there_is_something_to_check() -> None:
    names = {module.name for module in modules(PROJECT)}
    assert {"pymq.errors", "pymq.clock"} <= names
    for layer, ranks in RANKS.items():
        ranked = {f"pymq.{layer}.{name}" for rank in ranks for name in rank if name != "*"}
        assert ranked <= names, f"ranks name what is not there: {sorted(ranked - names)}"


# ------------------------------------------------------------------- the rules bite, and only then

WRONG: list[tuple[Callable[[Path], list[str]], str, str, str]] = [
    # checker, file, its text, a piece of the finding
    (layer_findings, "pymq/errors.py", "from pymq import clock", "may import only nothing of ours"),
    (layer_findings, "pymq/protocol/a.py", "import pymq.clock", "protocol imports pymq.clock"),
    (layer_findings, "pymq/protocol/a.py", "from .. import net", "protocol imports pymq.net"),
    (layer_findings, "pymq/protocol/__init__.py", "from ..net import b", "imports pymq.net.b"),
    (layer_findings, "pymq/store/a.py", "def f():\n    import pymq.net.tls", "store imports"),
    (
        layer_findings,
        "pymq/store/a.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pymq.broker import Broker",
        "a.py:3: store imports pymq.broker.Broker",
    ),
    (layer_findings, "pymq/net/a.py", "from pymq.filter.tags import x", "net imports"),
    (layer_findings, "pymq/namesrv/a.py", "from pymq import store", "namesrv imports pymq.store"),
    (layer_findings, "pymq/client/a.py", "from pymq.settings import x", "client imports"),
    (layer_findings, "pymq/client/a.py", "from pymq import Producer", "client imports pymq.Prod"),
    (layer_findings, "pymq/broker/a.py", "import pymq.testing.cluster", "broker imports"),
    (layer_findings, "pymq/broker/a.py", "import pyspark_pymq.reader", "broker imports pyspark_"),
    (layer_findings, "pymq/__init__.py", "from .testing import Cluster", "imports pymq.te"),
    (layer_findings, "pymq/store/a.py", "import_module('pymq.net')", "store imports pymq.net"),
    (layer_findings, "pymq/plugins/a.py", "", "in no line of the layer table"),
    (layer_findings, "pyspark_pymq/a.py", "import pymq.net.blocking", "pyspark_pymq imports"),
    (rank_findings, "pymq/broker/state/a.py", "import pymq.broker.ha.master", "further out"),
    (rank_findings, "pymq/broker/schedule.py", "from .handlers import send", "further out"),
    (rank_findings, "pymq/broker/handlers/a.py", "from ..broker import Broker", "further out"),
    (rank_findings, "pymq/broker/handlers/a.py", "from . import b", "never import one another"),
    (rank_findings, "pymq/broker/handlers/a.py", "from .b import c", "never import one another"),
    (rank_findings, "pymq/store/log/a.py", "from ..queues import queue_table", "further out"),
    (rank_findings, "pymq/store/log/a.py", "from pymq.store import Files", "further out"),
    (rank_findings, "pymq/store/queues/a.py", "import pymq.store.index.key_index", "further out"),
    (rank_findings, "pymq/store/files.py", "from .log.segment import Segment", "further out"),
    (rank_findings, "pymq/store/append.py", "from .recovery import recovery", "further out"),
    (rank_findings, "pymq/store/opening.py", "from .message_store import A", "further out"),
    (rank_findings, "pymq/store/message_store.py", "from .inspection import b", "further out"),
    (foreign_findings, "pymq/client/a.py", "import numpy as np", "import it in a function or a tr"),
    (foreign_findings, "pymq/client/a.py", "def f():\n    import pyarrow", "client does without"),
    (foreign_findings, "pymq/net/a.py", "def f():\n    import uvloop", "net does without"),
    (foreign_findings, "pymq/store/a.py", "import socket", "store must never import socket"),
    (foreign_findings, "pymq/protocol/a.py", "from time import time_ns", "never import time"),
    (foreign_findings, "pymq/protocol/a.py", "import asyncio.streams", "never import asyncio"),
    (foreign_findings, "pymq/filter/a.py", "def f():\n    import os", "filter must never import"),
    (foreign_findings, "pyspark_pymq/a.py", "import threading", "pyspark_pymq must never import"),
    (file_findings, "pymq/store/a.py", "open('x')", "open(): only store/files.py"),
    (file_findings, "pymq/store/a.py", "import os as o\no.pwrite(3, b'', 0)", "os.pwrite()"),
    (file_findings, "pymq/store/a.py", "from os import fsync as sync\nsync(3)", "os.fsync()"),
    (file_findings, "pymq/store/a.py", "import os.path\nos.path.exists('x')", "os.path.exists()"),
    (file_findings, "pymq/store/a.py", "import mmap", "mmap: use store.files"),
    (file_findings, "pymq/store/a.py", "def f(p):\n    return p.read_bytes()", "read_bytes()"),
    (file_findings, "pymq/protocol/a.py", "import io\nio.open('x')", "io.open()"),
    (ban_findings, "pymq/cli/a.py", "print('x')", "print: "),
    (ban_findings, "pymq/cli/a.py", "from time import sleep as nap\nnap(1)", "time.sleep"),
    (ban_findings, "pymq/net/a.py", "import asyncio as a\na.create_task(f())", "net.tasks only"),
    (ban_findings, "pymq/net/a.py", "async def f(loop):\n    loop.create_task(g())", "net.task"),
    (ban_findings, "pymq/net/a.py", "try:\n    f()\nexcept:\n    pass", "bare except"),
    (ban_findings, "pymq/net/a.py", "from os.path import *", "import *"),
    (ban_findings, "pymq/net/a.py", "x = 1  # TO" + "DO: count", "unfinished"),
    (ban_findings, "pymq/net/a.py", "class FooServiceImpl:\n    pass", "lose their names"),
    (ban_findings, "pymq/net/utils.py", "", "after the noun"),
    (package_findings, "pymq/store/a.py", "", "no __init__.py"),
    (package_findings, "pymq/plugins/__init__.py", "", "pymq.plugins is not listed"),
    (connector_findings, "pyspark_pymq/__init__.py", "from .reader import A", "may fail to import"),
    (connector_findings, "pyspark_pymq/__init__.py", "x = 1\n" * 26, "26 statements"),
]

RIGHT: list[tuple[str, str]] = [
    ("pymq/__init__.py", "import typing\nif typing.TYPE_CHECKING:\n    from .client import P"),
    ("pymq/protocol/a.py", "import struct\nimport numpy as np\nfrom ..errors import ProtocolError"),
    ("pymq/protocol/b.py", "try:\n    import lz4.frame\nexcept ImportError:\n    pass"),
    ("pymq/store/files.py", "import mmap\nimport os\nopen('x')\nos.pwrite(3, b'', 0)"),
    ("pymq/store/a.py", "import os\nos.path.join('a')\ndef f(self):\n    self.files.read_bytes()"),
    ("pymq/store/b.py", "from . import files\nfrom .files import open_file\nopen_file('x')"),
    ("pymq/net/tasks.py", "import asyncio\nasyncio.create_task(f())"),
    ("pymq/broker/handlers/a.py", "from ..state.topics import A\nfrom ..long_poll import B"),
    ("pymq/broker/assembly.py", "from .handlers import send, pull\nfrom .config import A"),
    ("pymq/broker/broker.py", "from . import assembly\nfrom .ha.master import Master"),
    ("pymq/store/queues/a.py", "from . import b\nfrom ..log.segment import c"),
    ("pymq/store/append.py", "from .dispatch import a\nfrom .state.checkpoint import b"),
    ("pymq/store/rebuild.py", "from pymq.store import MessageStore\nfrom .inspection import b"),
    ("pymq/client/a.py", "def f():\n    import numpy\n    from pymq.filter import tags"),
    ("pymq/testing/a.py", "import pymq.broker\nimport pymq.cli.main\nfrom pymq import Producer"),
    ("pyspark_pymq/__init__.py", "def __getattr__(name):\n    from pyspark_pymq import reader"),
]


@pytest.fixture
def tree(tmp_path: Path) -> Callable[[str, str], Path]:
    """Writes one module, with the `setup.cfg` of the project beside it, and returns the folder."""

    def write(name: str, text: str) -> Path:
        source = SOURCES[name.startswith("pyspark_pymq")]
        path = tmp_path / source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        (tmp_path / "setup.cfg").write_text((PROJECT / "setup.cfg").read_text(encoding="utf-8"))
        return tmp_path

    return write


@pytest.mark.parametrize(("checker", "name", "text", "finding"), WRONG)
def test_a_wrong_tree_is_found(
    tree: Callable[[str, str], Path],
    checker: Callable[[Path], list[str]],
    name: str,
    text: str,
    finding: str,
) -> None:
    findings = checker(tree(name, text))
    assert any(finding in line for line in findings), findings


def test_a_right_tree_has_no_findings(tree: Callable[[str, str], Path]) -> None:
    for name, text in RIGHT:
        root = tree(name, text)
    for checker in CHECKERS:
        if checker is not package_findings:
            assert checker(root) == []


def test_packages_match_when_each_has_its_directory(tree: Callable[[str, str], Path]) -> None:
    setup = configparser.ConfigParser()
    setup.read(PROJECT / "setup.cfg", encoding="utf-8")
    names = setup["options"]["packages"].split()
    for name in names:
        root = tree(name.replace(".", "/") + "/__init__.py", "")
    assert package_findings(root) == []
    (root / "broker/pymq/cli/__init__.py").unlink()
    assert package_findings(root) == []  # git keeps no empty folder: in a clone there is none
    (root / "broker/pymq/cli").rmdir()
    assert package_findings(root) == ["setup.cfg: pymq.cli is listed, but there is none"]


# -------------------------------------------------------------------------- in a fresh interpreter


def loaded_after(statement: str, *sources: str) -> set[str]:
    """Names in ``sys.modules`` after a statement, run where only the standard library is installed.

    ``-S`` leaves out site-packages: what is imported there has nothing else to lean on.
    """
    paths = [str(PROJECT / source) for source in sources]
    code = (
        f"import sys; before = set(sys.modules); sys.path[:0] = {paths!r}\n"
        f"{statement}\nprint(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, f"{statement}\n{done.stderr}"
    return set(done.stdout.split())


@cache
def client_modules() -> tuple[str, ...]:
    layers = ("errors", "clock", "settings", "filter", "net", "client")
    return tuple(m.name for m in modules(PROJECT) if m.layer in layers and m.name != "pymq")


def test_importing_pymq_is_cheap() -> None:
    loaded = loaded_after("import pymq", "broker")
    first = {name.partition(".")[0] for name in loaded}
    assert first - set(sys.stdlib_module_names) <= {"pymq"}
    assert not {"asyncio", "ssl", "pymq.client", "pymq.broker", "pymq.store"} & loaded


def test_the_client_needs_only_the_standard_library() -> None:
    """Every module of it can be imported where nothing is installed."""
    loaded = loaded_after("; ".join(f"import {name}" for name in client_modules()), "broker")
    assert set(client_modules()) <= loaded
    assert not {layer_of(name) for name in loaded} & {"store", "broker", "namesrv", *EDGES}


@pytest.mark.skipif(
    not (PROJECT / "connector/pyspark_pymq/__init__.py").exists(), reason="there is no connector"
)
@pytest.mark.parametrize("sources", [("connector",), ("broker", "connector")])
def test_the_connector_imports_without_spark(sources: tuple[str, ...]) -> None:
    loaded = loaded_after("import pyspark_pymq", *sources)
    first = {name.partition(".")[0] for name in loaded}
    assert first - set(sys.stdlib_module_names) <= {"pymq", "pyspark_pymq"}
