"""Brings the tables of a service up to date, with Alembic.

Each service has migrations of its own, in ``migrations/<service>``, and a table of its own for what
was done, so that several services may share a database. ``python -m shop.migrate`` does it
for all services; a service does it for itself when it starts.
"""

import argparse
import hashlib
import itertools
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from shop.database import MARIADB, may_succeed_later, open_engine
from shop.errors import Unavailable
from shop.parts import Definition
from shop.settings import Settings, from_arguments

_log = logging.getLogger(__name__)

#: For another instance to bring the same tables up to date.
LOCK_S = 60
#: Between two attempts to reach a database that is away, and how many there are for each warning.
PAUSE_S = 0.5
TELL_EACH = 60
MIGRATIONS = Path(__file__).with_name("migrations")


def config_of(definition: Definition) -> Config:
    """Return Alembic's configuration for a service, without a connection."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("path_separator", "os")
    config.set_main_option("version_locations", str(MIGRATIONS / definition.name))
    config.attributes["metadata"] = definition.base.metadata
    config.attributes["version_table"] = f"{definition.name}_version"
    return config


@contextmanager
def alone(connection: Connection, name: str) -> Iterator[None]:
    """Keep other instances of a service out of its migrations; SQLite has one writer anyway.

    Raises:
        Unavailable: another instance takes longer than ``LOCK_S``.
    """
    dialect = connection.dialect.name
    key = hashlib.sha256(f"{connection.engine.url.database} {name}".encode())
    if dialect == "postgresql":
        connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_S}s'"))
        number = int.from_bytes(key.digest()[:8], "big", signed=True)
        # Until the transaction ends: the tables are seen before the next one looks.
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": number})
        yield
    elif dialect in MARIADB:
        # Of the connection, for each statement that makes a table is a transaction of its own; and
        # of the whole server, so that the database is in its name.
        lock = {"lock": f"shop-{key.hexdigest()[:32]}", "wait": LOCK_S // 3}
        # Each attempt is shorter than the driver waits for an answer.
        if not any(connection.scalar(text("SELECT GET_LOCK(:lock, :wait)"), lock) for _ in "123"):
            raise Unavailable(
                f"migrations of {name}: another instance has been at them for {LOCK_S} s; "
                "start this one again when it is done"
            )
        try:
            yield
        finally:
            if not connection.invalidated:  # a connection that is lost has no lock any more
                connection.execute(text("SELECT RELEASE_LOCK(:lock)"), {"lock": lock["lock"]})
    else:
        yield


def upgrade(definition: Definition, settings: Settings, *, patience_s: float = 0.0) -> None:
    """Bring a service's tables up to date. Idempotent, and may be done by several at a time.

    Args:
        definition: the service.
        settings: where its database is.
        patience_s: for this long a database may be away, as one is that just starts; may be
            infinite. It is logged.

    Raises:
        DBAPIError: the database is still away, or refuses.
        Unavailable: another instance takes longer than ``LOCK_S``.
    """
    deadline = time.monotonic() + patience_s
    engine = open_engine(
        settings.database_of(definition.name), sqlite_sync=settings.sqlite_sync
    )
    try:
        for attempt in itertools.count():
            try:
                _upgrade(engine, definition)
                return
            except DBAPIError as error:
                if not may_succeed_later(error) or time.monotonic() >= deadline:
                    raise
                if attempt % TELL_EACH == 0:
                    _log.warning("%s waits for its database: %s", definition.name, error.orig)
            time.sleep(PAUSE_S)
    finally:
        engine.dispose()


def _upgrade(engine: Engine, definition: Definition) -> None:
    config = config_of(definition)
    with engine.begin() as connection, alone(connection, definition.name):
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def main(arguments: Sequence[str] | None = None) -> int:
    """Bring the tables of all services up to date; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m shop.migrate")
    from shop.definitions import DEFINITIONS  # a service that does this for itself needs no other

    settings, _ = from_arguments(parser, arguments)
    for definition in DEFINITIONS.values():
        upgrade(definition, settings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
