"""The first tables of the service *journal*."""

from alembic import op
from sqlalchemy import BigInteger, Column

from shop.migrations.columns import ID, consumed_columns
from shop.money import Money

revision = "journal_1"
down_revision = None


def upgrade() -> None:
    """Create them."""
    op.create_table(
        "journal",
        Column("pay_id", ID, primary_key=True),
        Column("order_id", ID, nullable=False),
        Column("user_id", ID, nullable=False),
        Column("pay_amount", Money, nullable=False),
        Column("pay_time", BigInteger, nullable=False),
        Column("create_time", BigInteger, nullable=False),
    )
    op.create_index("ix_journal_order_id", "journal", ["order_id"])
    op.create_table("journal_consumed", *consumed_columns())
