"""Who may import what, and what no file of ours may do.

Every checker takes the folder that holds both source roots and returns its findings, one line
each, so that it runs over the project and over small wrong trees, which prove that it bites.

What is checked: who imports whom (between packages, and inside those with ranks), which foreign
packages may be imported where, which modules must not reach for files, sockets or the clock, the
forbidden calls and names, and that ``setup.cfg`` names exactly the packages that there are.
"""

import ast
import configparser
import re
import sys
from pathlib import Path

from tests.house.tree import SOURCES, calls, imports, layer_of, modules

# What each kind of server may import.
SERVER = {"errors", "extras", "clock", "settings", "setting_changes", "protocol", "net"}
# Layer -> the layers of ours that it may import besides itself.
LAYERS: dict[str, set[str]] = {
    "errors": set(),
    "extras": set(),
    "clock": set(),
    "known_keys": set(),  # data of settings
    "settings": {"errors", "known_keys"},
    "protocol": {"errors"},
    "setting_changes": {"errors", "settings", "protocol"},
    "filter": {"errors"},
    "store": {"errors", "clock", "protocol"},
    "net": {"errors", "clock", "protocol"},
    "namesrv": SERVER,
    "controller": SERVER,
    "broker": SERVER | {"filter", "store"},
    "columns": {"errors", "protocol"},  # needs numpy and pyarrow: clients import it in functions
    "client": {"errors", "clock", "protocol", "filter", "net", "columns"},
    "pyspark_pymq": {"errors", "protocol", "filter", "client", "columns"},
    "spark": {"extras", "pyspark_pymq"},
    # These show the public names of the others, and nobody leans on them in turn.
    "blocking": {"extras", "client"},
    "selectors": {"client"},
    "allocation": {"client"},
    "otel": {"extras", "protocol", "client"},
    "integrations": {"errors", "extras", "protocol", "client", "blocking", "pymq"},
    "pymq": {"errors", "extras", "clock", "protocol", "client"}
    | {"allocation", "selectors", "blocking"},
}
EDGES = ("testing", "cli")  # import everything; nothing but they themselves imports them
LAYERS |= {edge: {*LAYERS, *EDGES} for edge in EDGES}

# Layer -> foreign packages it may import anywhere. Compression codecs are everybody's, but only
# where their absence can be survived: in a function or a `try`.
FOREIGN: dict[str, set[str]] = {
    "protocol": {"numpy"},
    "columns": {"numpy", "pyarrow"},
    "store": {"numpy"},
    "broker": {"numpy", "prometheus_client"},
    "testing": {"pytest", "docker", "testcontainers"},
    "otel": {"opentelemetry"},
    "integrations": {"amqp", "anyio", "fast_depends", "faststream", "kombu"},
    "cli": {"typer", "rich", "click", "uvloop"},
    "pyspark_pymq": {"pyspark", "pyarrow", "numpy", "fastavro"},
}
OPTIONAL: dict[str, set[str]] = {
    "controller": {"etcd3gw", "requests"},
    "protocol": {"isal", "lz4", "orjson", "zstandard"},
    "client": {"numpy", "lz4", "zstandard"},
    "columns": {"pandas", "polars"},
}

# Layer -> its ranks, from the inside out: a module may import those of its own rank and of ranks
# before it. A rank holds modules and sub-packages by name; "*" is every one that no rank names.
# The layer's `__init__` belongs to the last one.
RANKS: dict[str, tuple[tuple[str, ...], ...]] = {
    "client": (
        ("checks", "operations"),
        ("*",),
        ("cluster",),
        ("sending", "group"),
        ("sockets", "consuming", "administration"),
        ("pulling",),
        ("threaded",),
    ),
    "controller": (
        ("config",),
        ("reports",),
        ("groups",),
        ("two_of_one_id",),
        ("elections", "liveness", "live_settings"),
        ("stores",),
        ("*",),
        ("failover",),
        ("handlers", "administration"),
        ("server",),
    ),
    "broker": (
        ("config", "replication_config"),
        ("state",),
        ("*",),
        ("handlers",),
        ("parts",),
        (
            "escape_feature",
            "features",
            "light_queue_feature",
            "pop_feature",
            "replication_feature",
            "sink_feature",
            "table_saving",
            "timer_feature",
            "transaction_feature",
        ),
        ("assembly",),
        ("run",),
        ("client_ports", "role_changes"),
        ("broker",),
    ),
    "store": (
        ("pages", "files", "config", "progress", "searches"),
        ("log",),
        ("queues",),
        ("index",),
        ("state",),
        ("*",),
        ("recovery",),
        ("retention",),
        ("opening", "truncation"),
        ("closing",),
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
    "columns": OUTSIDE_WORLD,
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


#: ``pages`` has what ``files`` needs for calls that Python does not have as they are needed.
_FILE_DOORS = ("pymq.store.files", "pymq.store.pages")


def file_findings(root: Path) -> list[str]:
    """Modules that reach the file system past ``store/files.py``; protocol and filter at all."""
    found = []
    for module in modules(root):
        if module.layer not in ("store", "protocol", "filter") or module.name in _FILE_DOORS:
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
