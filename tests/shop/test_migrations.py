"""The migrations make the tables that the code expects, and may be run by several at once."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect
from tests.shop.in_process import QUICK

from shop import migrate
from shop.database import open_engine
from shop.definitions import DEFINITIONS


@pytest.mark.parametrize("name", DEFINITIONS)
def test_nothing_is_left_to_migrate(name: str, template: Path) -> None:
    definition = DEFINITIONS[name]
    engine = open_engine(f"sqlite:///{template}/{name}.db")
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": f"{name}_version", "compare_type": True}
        )
        assert compare_metadata(context, definition.base.metadata) == []
    engine.dispose()


def test_all_services_in_one_database(tmp_path: Path) -> None:
    settings = replace(QUICK, database=f"sqlite:///{tmp_path}/all.db")
    for _ in range(2):
        for definition in DEFINITIONS.values():
            migrate.upgrade(definition, settings)
    engine = open_engine(settings.database)
    tables = set(inspect(engine).get_table_names())
    engine.dispose()
    for name, definition in DEFINITIONS.items():
        assert {*definition.base.metadata.tables, f"{name}_version"} <= tables


def test_several_instances_begin_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "shop.migrate", "--database"]
    command.append(f"sqlite:///{tmp_path}/{{service}}.db")
    several = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait(60) for process in several] == [0, 0, 0]
