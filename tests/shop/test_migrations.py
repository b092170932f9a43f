"""The migrations make the tables that the code expects, and may be run by several at once."""

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from tests.shop.in_process import QUICK

from shop import migrate
from shop.database import open_engine
from shop.definitions import DEFINITIONS

#: For a database that is there again at once, on a machine that is slow.
PATIENCE_S = 300.0


@pytest.mark.parametrize("name", DEFINITIONS)
def test_nothing_is_left_to_migrate(name: str, empty: str) -> None:
    definition = DEFINITIONS[name]
    migrate.upgrade(definition, replace(QUICK, database=empty))
    engine = open_engine(empty)
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": f"{name}_version", "compare_type": True}
        )
        assert compare_metadata(context, definition.base.metadata) == []
    engine.dispose()


def test_all_services_in_one_database(empty: str) -> None:
    settings = replace(QUICK, database=empty)
    for _ in range(2):
        for definition in DEFINITIONS.values():
            migrate.upgrade(definition, settings)
    engine = open_engine(settings.database)
    tables = set(inspect(engine).get_table_names())
    engine.dispose()
    for name, definition in DEFINITIONS.items():
        assert {*definition.base.metadata.tables, f"{name}_version"} <= tables


def end_connection(connection: Connection, url: str) -> None:
    """Have the server end a connection."""
    raw: Any = connection.connection.dbapi_connection
    if connection.dialect.name == "postgresql":
        statement = f"SELECT pg_terminate_backend({raw.info.backend_pid})"
    else:
        statement = f"KILL {raw.thread_id()}"
    other = create_engine(url)
    with other.connect() as killer:
        killer.execute(text(statement))
    other.dispose()


def test_a_connection_is_lost_in_the_middle(empty: str, kind: str) -> None:
    """As when a server dies: what was done is found done, and the rest is done."""
    if kind == "sqlite":
        pytest.skip("there is no connection that could be lost")
    made: list[str] = []

    def lose(connection: Connection, cursor: Any, statement: str, *others: Any) -> None:
        if not statement.lstrip().startswith("CREATE TABLE"):
            return
        made.append(statement)
        if len(made) in (2, 4):
            end_connection(connection, empty)

    definition = DEFINITIONS["orders"]
    event.listen(Engine, "before_cursor_execute", lose)
    try:
        migrate.upgrade(definition, replace(QUICK, database=empty), patience_s=PATIENCE_S)
    finally:
        event.remove(Engine, "before_cursor_execute", lose)
    assert len(made) > 4
    engine = open_engine(empty)
    assert set(definition.base.metadata.tables) <= set(inspect(engine).get_table_names())
    engine.dispose()


def test_several_instances_begin_at_once(empty: str) -> None:
    command = [sys.executable, "-m", "shop.migrate", "--database", empty]
    # They wait for each other, and for no disk.
    quick = os.environ | {"SHOP_SQLITE_SYNC": QUICK.sqlite_sync}
    several = [subprocess.Popen(command, env=quick) for _ in range(3)]
    assert [process.wait(PATIENCE_S) for process in several] == [0, 0, 0]
