"""Transactions as functions.

``await database.transaction(work)`` calls ``work(session)`` in a thread and commits. The function
has no other effect than on its session, so that it can be called again: that is what happens when
somebody else changed the same rows (optimistic locking), inserted the same key first, or when the
database chose this transaction as the victim of a deadlock.

SQLite has one writer for each file, so there is one thread, and transactions begin with the lock
for writing (``BEGIN IMMEDIATE``): one that finds out later that it must write might have to be
given up.

PostgreSQL and MariaDB take several writers. Transactions are READ COMMITTED there: what two may
change has a version, a key or a lock. Nobody waits for a lock longer than ``LOCK_S``, so that a
deadlock between two services ends, too. Their victims, and those whose connection broke, are
called again; whether a commit whose answer is lost took place is seen by the next call.
"""

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.orm.exc import StaleDataError

from shop.errors import Unavailable
from shop.faults import Killed, for_ever

T = TypeVar("T")

ATTEMPTS = 6
PAUSE_S = 0.02
#: Connections, and so transactions at a time, to a database that takes several writers.
THREADS = 8
#: SQLAlchemy's names of MariaDB, by the URL that was given.
MARIADB = ("mysql", "mariadb")
BUSY_S = 10.0  # for another process to finish writing to the same SQLite file
#: For a server to accept a connection, and for another transaction to release a lock.
CONNECT_S = 5
LOCK_S = 5
#: For a server to answer; MariaDB's driver alone can tell one that is silent for ever.
ANSWER_S = 30


class Database:
    """The database of one service. For one event loop.

    Args:
        url: for SQLAlchemy.
        sqlite_sync: ``full`` or ``normal``.
    """

    def __init__(self, url: str, *, sqlite_sync: str = "full") -> None:
        self.engine = open_engine(url, sqlite_sync=sqlite_sync)
        threads = 1 if self.engine.dialect.name == "sqlite" else THREADS
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="database")
        self._reading = self.engine.execution_options(shop_reads=True)

    async def transaction(self, work: Callable[[Session], T]) -> T:
        """Do something, whole or not at all.

        Args:
            work: may be called several times, each with a session of its own.

        Raises:
            Unavailable: the database does not answer, or is too busy.
            Exception: what ``work`` raised; nothing was changed.
        """
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await self._in_thread(self.engine, work)
            except (DBAPIError, StaleDataError) as error:
                if not may_succeed_later(error):
                    raise
                if attempt == ATTEMPTS:
                    if isinstance(error, IntegrityError):
                        raise
                    raise Unavailable(f"database: {error}") from error
            await asyncio.sleep(PAUSE_S * 2**attempt * random.random())
        raise AssertionError("the last attempt returns or raises")

    async def read(self, work: Callable[[Session], T]) -> T:
        """Look something up. Raises what ``transaction`` does."""
        try:
            return await self._in_thread(self._reading, work)
        except DBAPIError as error:
            if not may_succeed_later(error):
                raise
            raise Unavailable(f"database: {error}") from error

    async def _in_thread(self, engine: Engine, work: Callable[[Session], T]) -> T:
        def run() -> T:
            with Session(engine, expire_on_commit=False) as session, session.begin():
                return work(session)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, run)
        except Killed:
            await for_ever()
            raise

    def close(self) -> None:
        """Wait for the transactions that are under way, and close the connections. Idempotent."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        self.engine.dispose()


def may_succeed_later(error: Exception) -> bool:
    """Was it somebody else's doing, or the server's, and not the statement's?"""
    # Deadlocks, lock timeouts and servers that start or end are operational errors of all drivers.
    kinds = (IntegrityError, StaleDataError, OperationalError, InterfaceError)
    return isinstance(error, kinds) or getattr(error, "connection_invalidated", False)


def _server_arguments(dialect: str) -> dict[str, Any]:
    """Return what the driver of a server is to do when it connects."""
    if dialect == "postgresql":
        return {
            "connect_timeout": CONNECT_S,
            "options": f"-c lock_timeout={LOCK_S}s -c idle_in_transaction_session_timeout="
            f"{ANSWER_S}s",
        }
    if dialect in MARIADB:
        return {
            "connect_timeout": CONNECT_S,
            "read_timeout": ANSWER_S,
            "write_timeout": ANSWER_S,
            "charset": "utf8mb4",
            # Too long a text or too large a number is an error, not cut off.
            "init_command": f"SET SESSION innodb_lock_wait_timeout = {LOCK_S}, "
            "sql_mode = 'TRADITIONAL'",
        }
    return {}


def open_engine(url: str, *, sqlite_sync: str = "full") -> Engine:
    """Return an engine whose transactions are what this module says.

    Args:
        url: for SQLAlchemy; the folder of an SQLite file is created.
        sqlite_sync: ``full`` or ``normal``.
    """
    if not url.startswith("sqlite"):
        return create_engine(
            url,
            pool_size=THREADS,
            max_overflow=0,
            pool_pre_ping=True,
            isolation_level="READ COMMITTED",
            connect_args=_server_arguments(make_url(url).get_backend_name()),
        )
    engine = create_engine(url, connect_args={"timeout": BUSY_S})
    if engine.url.database and engine.url.database != ":memory:":
        Path(engine.url.database).parent.mkdir(parents=True, exist_ok=True)

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _: object) -> None:
        connection.isolation_level = None  # SQLAlchemy begins transactions, not the driver
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={sqlite_sync}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        reads = connection.get_execution_options().get("shop_reads", False)
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    return engine
