"""What ``pymq`` exports: all that a program has to name, and what type checkers are told of it."""

import ast
import dataclasses
import enum
import importlib
import inspect
import sys
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

import pymq
from pymq import blocking, errors, spark
from pymq.client.administration import brokers, groups, messages, offsets, topics
from pymq.client.administration.admin import Admin
from pymq.client.consuming.consumer import Consumer
from pymq.client.pulling.pull_consumer import PullConsumer
from pymq.client.pulling.reader import Reader
from pymq.client.pulling.simple_consumer import SimpleConsumer
from pymq.client.sending.batcher import Batcher
from pymq.client.sending.producer import Producer
from pymq.client.sending.transaction import Transaction
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.client.threaded import (
    admin,
    batcher,
    consumer,
    producer,
    pull_consumer,
    reader,
    simple_consumer,
    transaction,
)
from pymq.protocol.json_object import JsonObject
from pymq.protocol.message import Message, ReceivedMessage

#: Made by ``Admin``, and not by users.
ADMIN_PARTS = (topics.Topics, groups.Groups, offsets.Offsets, messages.Messages, brokers.Brokers)

FACES = (
    *(Producer, Batcher, Transaction, Consumer, PullConsumer, Reader),
    *(SimpleConsumer, blocking.SimpleConsumer, blocking.PullConsumer, blocking.Reader),
    *(blocking.Producer, blocking.Batcher, blocking.Transaction, blocking.Consumer),
    *(BlockingClient, Admin, blocking.Admin),
    # Of ``Admin``; its ``replicas`` and ``sinks`` are for tools that know more than names.
    *ADMIN_PARTS,
)
#: Takes a stored record, which ``pymq.protocol.record`` makes of what a pull returned.
OF_RECORDS = "ReceivedMessage.from_record"

#: Of pull consumers.
PULL = {
    *("group", "client_id", "assignment", "start", "close", "subscribe", "unsubscribe", "assign"),
    *("queues", "poll", "batches", "pause", "resume", "seek", "position", "commit", "committed"),
    *("begin_offsets", "end_offsets", "offsets_for_time"),
}

#: Of simple consumers.
SIMPLE = {
    *("group", "client_id", "start", "close", "subscribe", "unsubscribe"),
    *("receive", "ack", "change_invisible"),
}
#: What programs may call and read of each exported class, besides fields of dataclasses and members
#: of enumerations. Whatever else an instance has begins with an underscore.
SURFACE = {
    "Batcher": {
        *("unanswered_count", "close", "flush", "send", "send_nowait", "wait_room", "abandon"),
    },
    "Admin": {
        *("start", "close", "cluster"),
        *("topics", "groups", "offsets", "messages", "brokers", "replicas", "sinks"),
    },
    "blocking.Admin": {
        *("start", "close", "cluster"),
        *("topics", "groups", "offsets", "messages", "brokers", "replicas", "sinks"),
    },
    "Network": {"reached", "send_address", "client_id", "wrap", "unwrap"},
    "OffsetChange": {"moved"},
    "BlockingClient": {
        *("name_servers", "close", "cluster_info", "route", "known_routes", "forget_route"),
        *("read_queues", "write_queues", "bounds", "offset_by_time"),
        *("committed_offset", "commit_offset", "pull", "pull_range", "send", "send_batch"),
    },
    "Clock": {"wall_ms", "monotonic_s", "at", "age_ms"},
    "ColumnBatch": {
        *("queue", "first", "next_offset", "names", "to_arrow", "to_pandas", "to_polars"),
    },
    "ColumnReceipts": {
        *("message_id", "status", "broker_name", "queue_id", "queue_offset", "is_stored"),
        "to_arrow",
    },
    "ConsumeHook": {"before", "after"},
    "Consumer": {
        *("group", "client_id", "assignment", "backlog_count", "pause", "resume", "paused"),
        *("start", "close", "subscribe", "unsubscribe", "run", "commit", "commit_nowait"),
    },
    "Message": {"encode_properties", "has_timer"},
    "Producer": {
        *("client_id", "in_flight_count", "start", "close", "queues", "flush", "wait_room"),
        *("send", "send_nowait", "send_one_way", "send_batch", "request", "reply"),
        *("send_columns", "recall"),
    },
    "PullConsumer": PULL,
    "QueueLag": {"lag"},
    "RebalanceListener": {"assigned", "revoked", "lost"},
    "ReceivedMessage": {
        *("tags", "keys", "message_id", "offset_message_id", "transaction_id"),
        *("born_host", "store_host", "from_record", "ack", "retry", "reject"),
    },
    "Reader": {"start", "close", "queues", "read"},
    "Reply": {"tags"},
    "Route": {"address", "read_address", "masters", "only"},
    "SendHook": {"before", "after"},
    "SendReceipt": {"durability_unknown"},
    "SendResult": {"durability_unknown", "offset_message_ids"},
    "SimpleConsumer": SIMPLE,
    "Subscription": {"of_tags"},
    "blocking.Batcher": {"unanswered_count", "close", "flush", "send", "send_nowait"},
    "blocking.Consumer": {
        *("client_id", "assignment", "backlog_count", "pause", "resume", "paused"),
        *("start", "close", "subscribe", "unsubscribe", "run", "commit", "commit_nowait"),
        *("receive", "messages", "acknowledge"),
    },
    "Transaction": {"receipt", "message_id", "status", "begin", "commit", "rollback", "leave_open"},
    "blocking.Transaction": {
        *("receipt", "message_id", "status", "begin", "commit", "rollback", "leave_open"),
    },
    "blocking.PullConsumer": PULL,
    "blocking.SimpleConsumer": SIMPLE,
    "blocking.Reader": {"start", "close", "queues", "read"},
    "blocking.Producer": {
        *("client_id", "in_flight_count", "start", "close", "queues", "flush"),
        *("send", "send_nowait", "send_one_way", "send_batch", "request", "reply"),
        *("send_columns", "recall"),
    },
}


def classes_in(hint: object) -> Iterator[type]:
    """Yield the classes of ours that a type is made of."""
    named = typing.get_origin(hint) or hint
    if isinstance(named, type) and named.__module__.startswith("pymq."):
        yield named
    for argument in typing.get_args(hint):
        parts = argument if isinstance(argument, list | tuple) else [argument]
        for part in parts:
            yield from classes_in(part)


def functions_of(owner: type) -> Iterator[tuple[str, typing.Any]]:
    """Yield the public methods and properties of a class, with their names."""
    for name, member in inspect.getmembers_static(owner):
        if name.startswith("_") and name not in ("__init__", "__iter__", "__aiter__"):
            continue
        function = member
        if isinstance(member, property):
            function = member.fget
        elif isinstance(member, classmethod | staticmethod):
            function = member.__func__
        if inspect.isfunction(function):
            yield name, function


def needed() -> dict[type, str]:
    """Return every class that signatures lead to, and one place that does."""
    found: dict[type, str] = {}
    todo: list[type] = [*FACES, Message, ReceivedMessage]
    done: set[type] = set()
    while todo:
        owner = todo.pop()
        if owner in done:
            continue
        done.add(owner)
        hints = [(name, typing.get_type_hints(function)) for name, function in functions_of(owner)]
        if dataclasses.is_dataclass(owner):
            hints.append(("its fields", typing.get_type_hints(owner)))
        for name, by_argument in hints:
            place = f"{owner.__name__}.{name}"
            if place == OF_RECORDS or (name == "__init__" and owner in ADMIN_PARTS):
                continue
            for hint in by_argument.values():
                for found_class in classes_in(hint):
                    found.setdefault(found_class, place)
                    if dataclasses.is_dataclass(found_class):
                        todo.append(found_class)
    return found


def test_what_a_signature_needs_is_exported() -> None:
    missing = {
        f"{needed_class.__module__}.{needed_class.__name__} (see {place})"
        for needed_class, place in needed().items()
        if getattr(pymq, needed_class.__name__, None) is not needed_class
        and needed_class not in FACES  # the blocking ones are in pymq.blocking
    }
    assert not missing, "export these from pymq/__init__.py, or make the method private"


def exported_classes() -> Iterator[tuple[str, type]]:
    """Yield the classes that programs get in their hands, exceptions left out, by their names."""
    for prefix, module in (("", pymq), ("blocking.", blocking)):
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, type) and not issubclass(value, Exception | enum.Enum):
                yield prefix + name, value


def public_members(owner: type) -> set[str]:
    """Return the public methods and attributes of a class, without fields and the JSON codec."""
    found: set[str] = set()
    for part in owner.__mro__:
        if not part.__module__.startswith("pymq.") or part is JsonObject:
            continue
        found |= set(vars(part)) | set(part.__annotations__)
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(part)))):
            match node:
                case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                    found.add(name)
    if dataclasses.is_dataclass(owner):
        found -= {field.name for field in dataclasses.fields(owner)}
    return {name for name in found if not name.startswith("_")}


def test_users_meet_what_they_may_call_and_nothing_else() -> None:
    found = {name: public_members(owner) for name, owner in exported_classes()}
    assert {name: members for name, members in found.items() if members} == SURFACE, (
        "begin its name with an underscore, or add it to SURFACE: it will have to stay"
    )


def test_every_exception_is_exported() -> None:
    tree = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.PymqError)
    }
    assert tree <= set(pymq.__all__), "add it to pymq/__init__.py, in both places"


def test_checkers_are_told_what_is_there() -> None:
    """The imports that only checkers see, ``__all__``, and what is loaded are the same."""
    tree = ast.parse(Path(pymq.__file__).read_text(encoding="utf-8"))
    told: dict[str, object] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module not in (None, "typing", "pymq.extras"):
            for alias in node.names:
                home = importlib.import_module(node.module)
                told[alias.name] = getattr(home, alias.name)
    assert sorted(told) == pymq.__all__
    for name, value in told.items():
        assert getattr(pymq, name) is value, name


def test_the_blocking_clients_have_a_public_home() -> None:
    assert pymq.blocking is blocking
    assert blocking.__all__ == [
        *("Admin", "Batcher", "Consumer", "Producer", "PullConsumer", "Reader"),
        *("SimpleConsumer", "Transaction"),
    ]
    assert blocking.Admin is admin.Admin
    assert blocking.Batcher is batcher.Batcher
    assert blocking.Transaction is transaction.Transaction
    assert blocking.Consumer is consumer.Consumer
    assert blocking.Producer is producer.Producer
    assert blocking.SimpleConsumer is simple_consumer.SimpleConsumer
    assert blocking.Reader is reader.Reader
    assert blocking.PullConsumer is pull_consumer.PullConsumer


def test_the_helpers_for_spark() -> None:
    """What checkers are told is there, and what is there, and what users may call of it."""
    tree = ast.parse(Path(spark.__file__).read_text(encoding="utf-8"))
    told = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module not in ("typing", "pymq.extras")
        for alias in node.names
    }
    assert sorted(told) == spark.__all__
    for name, home in told.items():
        assert getattr(spark, name) is getattr(importlib.import_module(str(home)), name)
    members = {name for name in vars(spark.StreamLag) if not name.startswith("_")}
    fields = {field.name for field in dataclasses.fields(spark.StreamLag)}
    assert members - fields == {"total"}
    hints = typing.get_type_hints(spark.StreamLag)
    assert set(classes_in(tuple[tuple(hints.values())])) == {pymq.QueueLag, pymq.MessageQueue}


def test_a_misspelt_name_is_an_attribute_error() -> None:
    for name in ("pymq", "pymq.testing", "pymq.namesrv", "pymq.spark", "pyspark_pymq"):
        with pytest.raises(AttributeError, match="Prodcer"):
            importlib.import_module(name).Prodcer  # noqa: B018
    assert set(pymq.__all__) <= set(dir(pymq))


class Lacking:
    """Finds modules that ask, while they are imported, for what this system does not have."""

    def __init__(self, home: str) -> None:
        self._home = home

    def find_spec(self, name: str, *_: object) -> None:
        if name == self._home:
            raise AttributeError("module 'os' has no attribute 'plan9'")


@pytest.mark.parametrize(
    ("package", "name", "home"),
    [
        ("pymq", "Producer", "pymq.client.sending.producer"),
        ("pymq", "selectors", "pymq.selectors"),
        ("pymq.blocking", "Producer", "pymq.client.threaded.producer"),
        ("pymq.testing", "Cluster", "pymq.testing.cluster"),
        ("pymq.spark", "for_thread", "pyspark_pymq.session"),
    ],
)
def test_an_import_that_fails_says_why(
    package: str, name: str, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(vars(importlib.import_module(package)), name, raising=False)
    monkeypatch.delitem(sys.modules, home, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Lacking(home), *sys.meta_path])
    with pytest.raises(ImportError, match=f"{home}: module 'os' has no attribute 'plan9'"):
        exec(f"from {package} import {name}")
