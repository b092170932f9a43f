"""What a service is made of, and what it is given."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import StringConstraints
from sqlalchemy.orm import DeclarativeBase

from shop.calls import Peer
from shop.columns import ID_LENGTH_MAX
from shop.consuming import Reaction
from shop.database import Database
from shop.faults import Faults
from shop.settings import Settings

_ID_PATTERN = rf"^[A-Za-z0-9_-]{{1,{ID_LENGTH_MAX}}}$"
#: An id in a body, and one in a path.
Id = Annotated[str, StringConstraints(pattern=_ID_PATTERN)]
PathId = Annotated[str, Path(pattern=_ID_PATTERN)]
#: A line of text without control characters.
Line = Annotated[
    str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")
]

#: Something that goes on until it is cancelled.
Duty = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Context:
    """What a service is given.

    Attributes:
        settings: of the process.
        database: its own.
        peers: the other services, by name.
        faults: what is to go wrong.
    """

    settings: Settings
    database: Database
    peers: Mapping[str, Peer]
    faults: Faults


@dataclass(frozen=True, slots=True)
class Parts:
    """What a service consists of.

    Attributes:
        router: what it answers over HTTP.
        reactions: what it consumes.
        duties: what else it does.
    """

    router: APIRouter
    reactions: Sequence[Reaction[Any]] = ()
    duties: Sequence[Duty] = ()


@dataclass(frozen=True, slots=True)
class Definition:
    """A service.

    Attributes:
        name: as in ``settings.PORTS``.
        base: of its tables.
        consumed: the table of what it has consumed.
        build: makes its parts.
        outbox: the table of what is to be sent, if it sends anything.
    """

    name: str
    base: type[DeclarativeBase]
    consumed: type[Any]
    build: Callable[[Context], Parts]
    outbox: type[Any] | None = None
