"""What ``pymq`` exports: all that a program has to name, and what type checkers are told of it."""

import ast
import dataclasses
import importlib
import inspect
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

import pymq
from pymq import errors, sync
from pymq.client.admin import BlockingAdmin
from pymq.client.blocking import BlockingClient
from pymq.client.consumer import Consumer
from pymq.client.producer import Producer
from pymq.protocol.message import Message, ReceivedMessage

FACES = (Producer, Consumer, sync.Producer, sync.Consumer, BlockingClient, BlockingAdmin)
#: Between parts of the client, and to the Spark connector: programs have no use for these.
PLUMBING = {
    "Consumer.inbox",
    "ReceivedMessage.from_record",
    "Route.of",
    "Route.to_create",
    "Route.only",
}


def classes_in(hint: object) -> Iterator[type]:
    """Yield the classes of ours that a type is made of."""
    if isinstance(hint, type) and hint.__module__.startswith("pymq."):
        yield hint
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
            if place in PLUMBING:
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
        and needed_class not in FACES  # the blocking ones are in pymq.sync
    }
    assert not missing, "export these from pymq/__init__.py, or add the method to PLUMBING"


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
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module != "typing":
            for alias in node.names:
                home = importlib.import_module(node.module)
                told[alias.name] = getattr(home, alias.name)
    assert sorted(told) == pymq.__all__
    for name, value in told.items():
        assert getattr(pymq, name) is value, name


def test_the_blocking_clients_have_a_public_home() -> None:
    assert pymq.sync is sync
    for name in sync.__all__:
        assert getattr(sync, name) is getattr(importlib.import_module("pymq.client.threaded"), name)


def test_a_misspelt_name_is_an_attribute_error() -> None:
    for name in ("pymq", "pymq.testing", "pymq.namesrv", "pyspark_pymq"):
        with pytest.raises(AttributeError, match="Prodcer"):
            importlib.import_module(name).Prodcer  # noqa: B018
    assert set(pymq.__all__) <= set(dir(pymq))
