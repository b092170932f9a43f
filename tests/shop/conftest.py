"""Databases for tests: SQLite files with all tables, made once, and servers of others."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.shop.in_process import QUICK, migrated
from tests.shop.servers import SERVERS, MariaDb, Postgres, Server

from shop import migrate
from shop.definitions import DEFINITIONS

DATABASES = ("sqlite", *SERVERS)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the empty databases of all services."""
    return migrated(tmp_path_factory.mktemp("template"))


def _running(kind: type[Server]) -> Iterator[Server]:
    if (why := kind.missing()) is not None:
        pytest.skip(why)
    server = kind()
    yield server
    server.close()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """A PostgreSQL of this process."""
    yield from _running(Postgres)


@pytest.fixture(scope="session")
def mariadb() -> Iterator[Server]:
    """A MariaDB of this process."""
    yield from _running(MariaDb)


@pytest.fixture(scope="session", params=DATABASES)
def kind(request: pytest.FixtureRequest) -> str:
    """Which database; tests that use it run on each."""
    return str(request.param)


@pytest.fixture
def empty(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database without tables, for all services."""
    if kind == "sqlite":
        return f"sqlite:///{tmp_path}/empty.db"
    server: Server = request.getfixturevalue(kind)
    return server.create()


@pytest.fixture
def url(kind: str, request: pytest.FixtureRequest, tmp_path: Path, template: Path) -> str:
    """The URL of databases with all tables."""
    if kind == "sqlite":
        shutil.copytree(template, tmp_path, dirs_exist_ok=True)
        return f"sqlite:///{tmp_path}/{{service}}.db"
    server: Server = request.getfixturevalue(kind)
    return with_tables(server)


def with_tables(server: Server) -> str:
    """Create a database with all tables; return its URL."""
    made = server.create()
    for definition in DEFINITIONS.values():
        migrate.upgrade(definition, replace(QUICK, database=made))
    return made
