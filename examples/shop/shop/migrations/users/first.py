"""The first tables of the service *users*."""

from sqlalchemy import BigInteger, Column, Integer, String

from shop.migrations.columns import (
    ID,
    ROW_ID,
    consumed_columns,
    create_index,
    create_table,
    step_columns,
)
from shop.money import Money

revision = "users_1"
down_revision = None


def upgrade() -> None:
    """Create them."""
    create_table(
        "users",
        Column("user_id", ID, primary_key=True),
        Column("user_name", String(200), nullable=False),
        Column("user_score", BigInteger, nullable=False),
        Column("user_money", Money, nullable=False),
    )
    create_table(
        "user_money_log",
        Column("id", ROW_ID, primary_key=True, autoincrement=True),
        Column("user_id", ID, nullable=False),
        Column("order_id", ID),
        Column("money_log_type", Integer, nullable=False),
        Column("use_money", Money, nullable=False),
        Column("create_time", BigInteger, nullable=False),
    )
    create_index("user_money_log", "order_id")
    create_table(
        "user_score_log",
        Column("order_id", ID, primary_key=True),
        Column("user_id", ID, nullable=False),
        Column("user_score", BigInteger, nullable=False),
        Column("create_time", BigInteger, nullable=False),
    )
    create_table("user_step", *step_columns())
    create_table("user_consumed", *consumed_columns())
