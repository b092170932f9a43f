"""Settings that may change while a broker runs are asked for, and copied nowhere."""

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pymq
from pymq.broker.config import BrokerConfig
from pymq.store import StoreConfig

PACKAGE = Path(pymq.__file__).parent
#: Their functions make the parts of a broker.
MAKERS = ("assembly.py", "features.py", "pop_feature.py", "timer_feature.py", "parts.py")


def _live_fields() -> set[str]:
    return {
        field.name
        for config in (BrokerConfig, StoreConfig)
        for field in dataclasses.fields(config)
        if field.metadata.get("live")
    }


def _asked(node: ast.AST) -> Iterator[ast.Attribute]:
    """Return what is asked of a configuration at once: not in functions for later."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(child, ast.Attribute):
            holder = child.value
            name = holder.attr if isinstance(holder, ast.Attribute) else getattr(holder, "id", "")
            if name.lstrip("_").endswith("config"):
                yield child
        yield from _asked(child)


def test_nobody_copies_a_live_setting() -> None:
    live = _live_fields()
    assert {"permission", "auto_create_topic", "reserved_hours"} <= live
    copied = []
    for path in sorted([*(PACKAGE / "broker").rglob("*.py"), *(PACKAGE / "store").rglob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if node.name == "__init__" or path.name in MAKERS:
                copied += [
                    f"{path.name}:{asked.lineno}: {asked.attr}"
                    for asked in _asked(node)
                    if asked.attr in live
                ]
    assert not copied


def test_the_check_bites() -> None:
    source = """
def __init__(self, config):
    self._copied = config.permission
    self._asked = lambda: config.permission
    self._other = self._config.long_polling
"""
    (function,) = ast.parse(source).body
    assert [asked.attr for asked in _asked(function)] == ["permission", "long_polling"]
