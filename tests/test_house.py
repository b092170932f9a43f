"""The rules of the house that a machine can see: see ``tests/house``."""

import configparser
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tests.house import ratchets
from tests.house.ratchets import length_findings, orphan_findings, unused_findings
from tests.house.rules import (
    EDGES,
    RANKS,
    ban_findings,
    connector_findings,
    file_findings,
    foreign_findings,
    layer_findings,
    package_findings,
    rank_findings,
)
from tests.house.tree import PROJECT, SOURCES, layer_of, modules

CHECKERS: tuple[Callable[[Path], list[str]], ...] = (
    layer_findings,
    rank_findings,
    foreign_findings,
    file_findings,
    ban_findings,
    package_findings,
    connector_findings,
)


@pytest.mark.parametrize(
    "checker", [*CHECKERS, *ratchets.CHECKERS], ids=lambda checker: checker.__name__
)
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
    (layer_findings, "pymq/broker/a.py", "import pyspark_pymq.source", "broker imports pyspark_"),
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


def test_the_files_that_the_architecture_names_are_there() -> None:
    text = (PROJECT / "docs/architecture.md").read_text(encoding="utf-8")
    roots = [PROJECT, PROJECT / "broker/pymq", PROJECT / "broker/pymq/broker"]
    roots.append(PROJECT / "connector/pyspark_pymq")
    missing, count = [], 0
    for line in text.splitlines():
        # The row of a room names what is in it, and in its neighbours, without the room.
        named = re.findall(r"^\|.*?\| `(\w+/\w+/)`", line)
        rooms = [PROJECT / "broker/pymq" / room for room in named]
        homes = [*roots, *rooms, *(room.parent for room in rooms)]
        for name in re.findall(r"`([\w/]+(?:\.py|/))`", line):
            count += 1
            if not any((home / name).exists() for home in homes):
                missing.append(name)
    assert count > 30
    assert not missing, f"docs/architecture.md names what is not there: {missing}"


# ------------------------------------------------------------------------------- what may shrink

LONG_FUNCTION = "def long():\n" + "    x = 1\n" * 70


@pytest.mark.parametrize(
    ("text", "allowed", "finding"),
    [
        ("x = 1\n" * 401, {}, "pymq.a has 401 lines, at most 400"),
        ("x = 1\n" * 401, {"pymq.a": 401}, None),
        ("x = 1\n" * 402, {"pymq.a": 401}, "pymq.a has 402 lines, at most 401"),
        ("x = 1\n" * 400, {"pymq.a": 401}, "LONG_MODULES: pymq.a has 400 lines by now: take"),
        ("x = 1\n" * 401, {"pymq.a": 500}, "LONG_MODULES: pymq.a has 401 lines by now: let"),
        (LONG_FUNCTION, {}, "pymq.a.long has 71 lines, at most 70"),
        (f"class A:\n{textwrap.indent(LONG_FUNCTION, '    ')}", {}, "pymq.a.A.long has 71"),
        ("", {"pymq.gone": 900}, "LONG_MODULES: pymq.gone has 0 lines by now: take it out"),
    ],
)
def test_lengths(
    tree: Callable[[str, str], Path], text: str, allowed: dict[str, int], finding: str | None
) -> None:
    findings = length_findings(tree("pymq/a.py", text), allowed, {})
    assert len(findings) == (finding is not None) and (not finding or finding in findings[0])


@pytest.mark.parametrize(
    ("text", "unused"),
    [
        ("def f():\n    pass", ["f"]),
        ("def f():\n    pass\nf()", []),
        ("class A:\n    def m(self):\n        pass\nA()", ["A.m"]),
        ("class A:\n    def m(self): ...\n    def __len__(self): ...", ["A", "A.m"]),
        ("LIMIT = 3", ["LIMIT"]),
        ("LIMIT = 3\nx = LIMIT\nx", []),
        ("@app.command()\ndef f():\n    pass\napp", []),
        ("from functools import cache\n@cache\ndef f():\n    pass", ["f"]),
        ("import asyncio\nclass A(asyncio.Protocol):\n    def eof_received(self): A()", []),
    ],
)
def test_what_nobody_uses(
    tree: Callable[[str, str], Path], text: str, unused: list[str]
) -> None:
    findings = unused_findings(tree("pymq/a.py", text), {})
    assert findings == [f"pymq.a.{name} is not used: take it out" for name in unused]


def test_an_exception_that_is_used_or_gone(tree: Callable[[str, str], Path]) -> None:
    root = tree("pymq/a.py", "def f():\n    pass\nf()")
    assert unused_findings(root, {"pymq.a.f": "why"}) == [
        "UNUSED: pymq.a.f is used or gone: take it out"
    ]


def test_files_that_nobody_imports(tree: Callable[[str, str], Path]) -> None:
    tree("pymq/__init__.py", "")
    tree("pymq/cli/main.py", "from pymq import a\nimport pymq.b\nfrom pymq.c import x")
    for name in "abc":
        tree(f"pymq/{name}.py", "")
    root = tree("pymq/d.py", "import pymq.d")
    assert orphan_findings(root) == ["broker/pymq/d.py: nobody imports it"]


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
