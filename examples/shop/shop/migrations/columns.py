"""What revisions are made of, and columns of tables that several services have."""

from typing import Any

from alembic import op
from sqlalchemy import BigInteger, Column, Integer, String, Text, inspect
from sqlalchemy.schema import SchemaItem

ROW_ID = BigInteger().with_variant(Integer(), "sqlite")
ID = String(64)
#: MariaDB: ids that differ in case only are two ids, and every character can be stored.
OPTIONS = {
    f"{dialect}_{name}": value
    for dialect in ("mysql", "mariadb")
    for name, value in (("engine", "InnoDB"), ("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
}


def create_table(name: str, *columns: SchemaItem) -> None:
    """Create a table, unless a migration that was killed has left it.

    In MariaDB each table is a transaction of its own, so a revision may be half done.
    """
    options: dict[str, Any] = OPTIONS
    op.create_table(name, *columns, if_not_exists=True, **options)


def add_column(table: str, column: Column[Any]) -> None:
    """Add a column that may be null, unless it is there."""
    there = {one["name"] for one in inspect(op.get_bind()).get_columns(table)}
    if column.name not in there:
        op.add_column(table, column)


def create_index(table: str, column: str) -> None:
    """Create the index of a column, unless it is there."""
    op.create_index(f"ix_{table}_{column}", table, [column], if_not_exists=True)


def step_columns() -> list[SchemaItem]:
    """Return those of ``..._step``."""
    return [
        Column("order_id", ID, primary_key=True),
        Column("state", String(8), nullable=False),
        Column("changed_ms", BigInteger, nullable=False),
        Column("version", Integer, nullable=False),
    ]


def consumed_columns() -> list[SchemaItem]:
    """Return those of ``..._consumed``."""
    return [
        Column("group_name", ID, primary_key=True),
        Column("msg_tag", ID, primary_key=True),
        Column("msg_key", ID, primary_key=True),
        Column("msg_id", ID, nullable=False),
        Column("state", String(12), nullable=False),
        Column("failures", Integer, nullable=False),
        Column("owner", ID, nullable=False),
        Column("lease_ms", BigInteger, nullable=False),
        Column("error", Text, nullable=False),
        Column("version", Integer, nullable=False),
    ]


def outbox_columns() -> list[SchemaItem]:
    """Return those of ``..._outbox``."""
    return [
        Column("id", ROW_ID, primary_key=True, autoincrement=True),
        Column("group_name", ID, nullable=False),
        Column("msg_topic", String(127), nullable=False),
        Column("msg_tag", ID, nullable=False),
        Column("msg_key", ID, nullable=False),
        Column("msg_body", Text, nullable=False),
        Column("msg_status", Integer, nullable=False),
        Column("deliver_ms", BigInteger, nullable=False),
        Column("claimed_ms", BigInteger, nullable=False),
        Column("create_time", BigInteger, nullable=False),
    ]
