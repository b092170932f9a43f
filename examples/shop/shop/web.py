"""The web application of a service: its routes, errors as JSON, and what goes on beside them.

Every error is ``{"errors": [{"field", "found", "expected"}]}``: 422 for a value that is wrong, 409
for one that comes too late, 404 for what is not there, 401 for a wrong signature, 503 for what may
be repeated.
"""

import asyncio
import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy import select
from sqlalchemy.exc import DataError
from sqlalchemy.orm import Session
from starlette.exceptions import HTTPException

from pymq import Consumer, PymqError
from shop.calls import Peer, open_http
from shop.consuming import DEAD, IdempotentConsumer
from shop.database import Database
from shop.errors import Refused, Unavailable, shown
from shop.faults import Faults, LateAnswers
from shop.parts import Context, Definition, Duty
from shop.settings import PATIENT, Settings

_log = logging.getLogger(__name__)

PAUSE_S = 1.0
#: Messages that a group handles at a time; they share the database with the service's callers.
CONCURRENCY = 4


class Problem(BaseModel):
    """One thing that is wrong with a request."""

    field: str
    found: str
    expected: str


class Problems(BaseModel):
    """Body of every answer that is not 2xx."""

    errors: list[Problem]


#: For OpenAPI: FastAPI itself would document bodies that nobody gets.
ANSWERS: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "model": Problems,
        "description": "refused: 422 a value is wrong, 409 it comes too late, 404 there is no such "
        "thing, 401 the signature is wrong; nothing was changed",
    },
    503: {
        "model": Problems,
        "description": "somebody else is away: the same request again, a little later",
    },
}


def create_app(
    definition: Definition,
    settings: Settings,
    *,
    http: httpx.AsyncClient | None = None,
    faults: Faults | None = None,
) -> FastAPI:
    """Return the application of a service; its tables must be there.

    Args:
        definition: the service.
        settings: of the process.
        http: reaches the other services; closed at the end. By default over the network.
        faults: what is to go wrong; by default what the settings say.
    """
    faults = faults or Faults(settings.faults, late_rate=settings.late_rate)
    http = http or open_http()
    database = Database(settings.database_of(definition.name), sqlite_sync=settings.sqlite_sync)
    peers = {
        name: Peer(http, name, url.split(","), settings.call_timeout_s, settings.call_deadline_s)
        for name, url in settings.urls.items()
    }
    parts = definition.build(Context(settings, database, peers, faults))
    consumers = [
        IdempotentConsumer(
            *(database, definition.consumed, reaction),
            lease_s=settings.lease_s,
            retry_s=settings.retry_s,
            faults=faults,
        )
        for reaction in parts.reactions
    ]
    duties: list[Duty] = [*parts.duties, *(partial(consume, settings, one) for one in consumers)]

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(always(duty)) for duty in duties]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await http.aclose()
            await asyncio.to_thread(database.close)

    title = f"pymq shop: {definition.name}"
    app = FastAPI(title=title, responses=ANSWERS, lifespan=lifespan)
    app.add_middleware(LateAnswers, faults=faults)
    app.include_router(parts.router)
    _add_common(app, database, definition.consumed)
    _add_errors(app)
    return app


async def always(duty: Duty) -> None:
    """Begin again with a duty that fails, until this is cancelled."""
    while True:
        try:
            await duty()
        except (Unavailable, PymqError) as error:
            _log.warning("%s: %s", duty, error)
        except Exception:  # the service goes on, and so does this
            _log.exception("%s", duty)
        await asyncio.sleep(PAUSE_S)


async def consume(settings: Settings, consumer: IdempotentConsumer) -> None:
    """Be a member of a consumer's group."""
    reaction = consumer.reaction
    member = Consumer(
        settings.broker,
        reaction.group,
        from_where="earliest",
        max_reconsume_times=math.inf,  # our own table says when it is enough
        close_timeout_s=settings.close_s,
        network=PATIENT,
    )
    async with member.subscribe(reaction.topic, reaction.tag):
        await member.run(consumer.handle, concurrency=CONCURRENCY)


def _add_common(app: FastAPI, database: Database, consumed: type[Any]) -> None:
    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ready"}

    @app.get("/alarms")
    async def alarms() -> dict[str, list[dict[str, Any]]]:
        """Messages that became dead letters, and why."""

        def find(session: Session) -> list[dict[str, Any]]:
            return [
                {
                    "group": row.group_name,
                    "tag": row.msg_tag,
                    "key": row.msg_key,
                    "messageId": row.msg_id,
                    "error": row.error,
                }
                for row in session.scalars(select(consumed).where(consumed.state == DEAD))
            ]

        return {"alarms": await database.read(find)}


def _answer(status: int, *errors: tuple[str, object, str]) -> JSONResponse:
    listed = [
        {"field": shown(field), "found": shown(found), "expected": expected}
        for field, found, expected in errors
    ]
    return JSONResponse({"errors": listed}, status)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> JSONResponse:
        return _answer(error.status, (error.field, error.found, error.expected))

    @app.exception_handler(Unavailable)
    async def unavailable(_: Request, error: Unavailable) -> JSONResponse:
        return _answer(503, ("", str(error), "the same request again, a little later"))

    @app.exception_handler(DataError)
    async def not_storable(_: Request, error: DataError) -> JSONResponse:
        # What a model lets through and a database does not: nothing was changed.
        return _answer(422, ("body", str(error.orig), "values that the database can store"))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return _answer(
            422,
            *(
                (".".join(map(str, one["loc"][1:])) or "body", one.get("input"), shown(one["msg"]))
                for one in error.errors()
            ),
        )

    @app.exception_handler(HTTPException)
    async def refused_by_framework(request: Request, error: HTTPException) -> JSONResponse:
        return _answer(
            error.status_code, (f"{request.method} {request.url.path}", "", str(error.detail))
        )
