"""The first tables of the service *goods*."""

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

revision = "goods_1"
down_revision = None


def upgrade() -> None:
    """Create them."""
    create_table(
        "goods",
        Column("goods_id", ID, primary_key=True),
        Column("goods_name", String(200), nullable=False),
        Column("goods_number", Integer, nullable=False),
        Column("goods_price", Money, nullable=False),
        Column("goods_desc", String(200), nullable=False),
        Column("add_time", BigInteger, nullable=False),
    )
    create_table(
        "goods_number_log",
        Column("id", ROW_ID, primary_key=True, autoincrement=True),
        Column("goods_id", ID, nullable=False),
        Column("order_id", ID),
        Column("goods_number", Integer, nullable=False),
        Column("log_time", BigInteger, nullable=False),
    )
    create_index("goods_number_log", "order_id")
    create_table("goods_step", *step_columns())
    create_table("goods_consumed", *consumed_columns())
