"""The first tables of the service *users*."""

from alembic import op
from sqlalchemy import BigInteger, Column, Integer, String

from shop.migrations.columns import ID, ROW_ID, consumed_columns, step_columns
from shop.money import Money

revision = "users_1"
down_revision = None


def upgrade() -> None:
    """Create them."""
    op.create_table(
        "users",
        Column("user_id", ID, primary_key=True),
        Column("user_name", String(200), nullable=False),
        Column("user_score", Integer, nullable=False),
        Column("user_money", Money, nullable=False),
    )
    op.create_table(
        "user_money_log",
        Column("id", ROW_ID, primary_key=True, autoincrement=True),
        Column("user_id", ID, nullable=False),
        Column("order_id", ID),
        Column("money_log_type", Integer, nullable=False),
        Column("use_money", Money, nullable=False),
        Column("create_time", BigInteger, nullable=False),
    )
    op.create_index("ix_user_money_log_order_id", "user_money_log", ["order_id"])
    op.create_table(
        "user_score_log",
        Column("order_id", ID, primary_key=True),
        Column("user_id", ID, nullable=False),
        Column("user_score", Integer, nullable=False),
        Column("create_time", BigInteger, nullable=False),
    )
    op.create_table("user_step", *step_columns())
    op.create_table("user_consumed", *consumed_columns())
