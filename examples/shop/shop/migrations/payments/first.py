"""The first tables of the service *payments*."""

from sqlalchemy import BigInteger, Boolean, Column, Integer, String

from shop.migrations.columns import ID, consumed_columns, create_index, create_table, outbox_columns
from shop.money import Money

revision = "payments_1"
down_revision = None


def upgrade() -> None:
    """Create them."""
    create_table(
        "payment_gate",
        Column("order_id", ID, primary_key=True),
        Column("state", String(8), nullable=False),
        Column("pay_id", ID),
        Column("version", Integer, nullable=False),
    )
    create_table(
        "payment",
        Column("pay_id", ID, primary_key=True),
        Column("order_id", ID, nullable=False),
        Column("user_id", ID, nullable=False),
        Column("pay_amount", Money, nullable=False),
        Column("is_paid", Boolean, nullable=False),
        Column("pay_time", BigInteger),
        Column("create_time", BigInteger, nullable=False),
        Column("version", Integer, nullable=False),
    )
    create_index("payment", "order_id")
    create_table(
        "payment_decision",
        Column("message_id", ID, primary_key=True),
        Column("pay_id", ID, nullable=False),
        Column("is_committed", Boolean, nullable=False),
        Column("create_time", BigInteger, nullable=False),
    )
    create_table("payment_consumed", *consumed_columns())
    create_table("payment_outbox", *outbox_columns())
