"""The first tables of the service *journal*."""

from sqlalchemy import BigInteger, Column

from shop.migrations.columns import ID, consumed_columns, create_index, create_table
from shop.money import Money

revision = "journal_1"
down_revision = None


def upgrade() -> None:
    """Create them."""
    create_table(
        "journal",
        Column("pay_id", ID, primary_key=True),
        Column("order_id", ID, nullable=False),
        Column("user_id", ID, nullable=False),
        Column("pay_amount", Money, nullable=False),
        Column("pay_time", BigInteger, nullable=False),
        Column("create_time", BigInteger, nullable=False),
    )
    create_index("journal", "order_id")
    create_table("journal_consumed", *consumed_columns())
