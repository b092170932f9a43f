"""The key-value configuration: namespace -> key -> string, kept in one small JSON file.

::

    {"configTable":{"ORDER_TOPIC_CONFIG":{"TopicA":"broker-a:4;broker-b:4"}}}

Source: RocketMQ KVConfigManager (``kvConfig.json``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pymq.errors import BrokerSystemError, ConfigurationError, RemoteProtocolError
from pymq.namesrv.files import NotSynced, replace_file
from pymq.protocol import fastjson
from pymq.protocol.headers.codec import wire
from pymq.protocol.json_object import JsonObject

#: Topic -> the ``broker:queue count`` pairs of an order topic, joined by ``;``.
ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"

_Tables = dict[str, dict[str, str]]


@dataclass(slots=True, kw_only=True)
class _KVFile(JsonObject):
    tables: _Tables = wire("configTable", default_factory=dict)


@dataclass(slots=True)
class KVConfig:
    """The tables of all namespaces; every change is on disk before it takes effect.

    A change writes and flushes the whole file (a few KB) on the caller's thread: administrators
    make a handful of changes, and an answer must not promise what a crash could undo.
    """

    path: Path | None = None
    _tables: _Tables = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path | None) -> "KVConfig":
        """Return the contents of the file; empty without a file, or without a path.

        Raises:
            ConfigurationError: the file exists but cannot be read. It is never replaced by an
                empty one.
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
                "repair it, or move it away to start with an empty one"
            ) from error

    def value(self, namespace: str, key: str) -> str | None:
        """Return the value of a key, ``None`` if it has none."""
        return self._tables.get(namespace, {}).get(key)

    def table(self, namespace: str) -> Mapping[str, str] | None:
        """Return all keys of a namespace, ``None`` if it never had any."""
        return self._tables.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Store a value.

        Raises:
            BrokerSystemError: the file cannot be written; nothing has changed. Or it is unknown
                whether the disk keeps it, and it has; the text says which.
        """
        self._replace({**self._tables.get(namespace, {}), key: value}, namespace)

    def delete(self, namespace: str, key: str) -> None:
        """Delete a value, if there is one.

        Raises:
            BrokerSystemError: the file cannot be written; nothing has changed. Or it is unknown
                whether the disk keeps it, and it has; the text says which.
        """
        table = self._tables.get(namespace, {})
        if key in table:
            self._replace({k: v for k, v in table.items() if k != key}, namespace)

    def _replace(self, table: dict[str, str], namespace: str) -> None:
        tables = {**self._tables, namespace: table}
        if self.path is not None:
            try:
                replace_file(self.path, fastjson.dump_pretty(_KVFile(tables=tables).to_json()))
            except OSError as error:
                if isinstance(error, NotSynced):
                    self._tables = tables  # as after a restart
                text = f"cannot write the key-value configuration {self.path}: {error}"
                raise BrokerSystemError(text, code=1, remark=text) from error
        self._tables = tables
