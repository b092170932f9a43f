"""The migrations make the tables that the code expects, and may be run by several at once."""

import subprocess
import sys
from dataclasses import replace

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect
from tests.shop.in_process import QUICK

from shop import migrate
from shop.database import open_engine
from shop.definitions import DEFINITIONS


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


def test_several_instances_begin_at_once(empty: str) -> None:
    command = [sys.executable, "-m", "shop.migrate", "--database", empty]
    several = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait(60) for process in several] == [0, 0, 0]
