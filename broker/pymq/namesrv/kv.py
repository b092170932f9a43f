"""The key-value configuration: namespace -> key -> text, kept in one small JSON file.

::

    {"configTable":{"ORDER_TOPIC_CONFIG":{"TopicA":"broker-a:4;broker-b:4"}}}

Source: RocketMQ KVConfigManager (``kvConfig.json``).
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pymq.errors import BrokerSystemError, ConfigurationError, RemoteProtocolError
from pymq.protocol import fastjson
from pymq.protocol.headers.codec import wire
from pymq.protocol.json_object import JsonObject

#: Topic -> ``broker:queue count`` pairs that an ordered topic is to have, joined by ``;``.
ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"

_Tables = dict[str, dict[str, str]]


@dataclass(slots=True, kw_only=True)
class _KVFile(JsonObject):
    tables: _Tables = wire("configTable", default_factory=dict)


@dataclass(slots=True)
class KVConfig:
    """The tables of all namespaces; every change is on disk before it counts.

    A change writes and syncs the whole file (some KB) on the caller's thread: administrators
    make a handful of them, and an answer must not promise what a crash could take back.
    """

    path: Path | None = None
    _tables: _Tables = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path | None) -> "KVConfig":
        """Return what the file holds; empty when there is no file, or no path.

        Raises:
            ConfigurationError: the file is there and cannot be read. It is never replaced by
                an empty one.
        """
        if path is None:
            return cls(path)
        try:
            return cls(path, _KVFile.decode(path.read_bytes()).tables)
        except FileNotFoundError:
            return cls(path)
        except (OSError, RemoteProtocolError) as error:
            raise ConfigurationError(
                f"cannot read the key-value configuration {path}: {error}; "
                "mend it, or move it away to start with an empty one"
            ) from error

    def value(self, namespace: str, key: str) -> str | None:
        """Return what is stored under a key, ``None`` for nothing."""
        return self._tables.get(namespace, {}).get(key)

    def table(self, namespace: str) -> Mapping[str, str] | None:
        """Return all keys of a namespace, ``None`` where there was never one."""
        return self._tables.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Store a value.

        Raises:
            BrokerSystemError: the file cannot be written; nothing has changed.
        """
        self._replace({**self._tables.get(namespace, {}), key: value}, namespace)

    def delete(self, namespace: str, key: str) -> None:
        """Forget a value, if there is one.

        Raises:
            BrokerSystemError: the file cannot be written; nothing has changed.
        """
        table = self._tables.get(namespace, {})
        if key in table:
            self._replace({k: v for k, v in table.items() if k != key}, namespace)

    def _replace(self, table: dict[str, str], namespace: str) -> None:
        tables = {**self._tables, namespace: table}
        if self.path is not None:
            try:
                _replace_file(self.path, fastjson.dump_pretty(_KVFile(tables=tables).to_json()))
            except OSError as error:
                text = f"cannot write the key-value configuration {self.path}: {error}"
                raise BrokerSystemError(text, code=1, remark=text) from error
        self._tables = tables


def _replace_file(path: Path, text: str) -> None:
    """Write a file so that, whatever happens, the old or the new content is there whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".tmp")
    with fresh.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name is durable, too
    finally:
        os.close(folder)
