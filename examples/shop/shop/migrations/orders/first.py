"""The first tables of the service *orders*."""

from sqlalchemy import BigInteger, Column, Integer, String

from shop.migrations.columns import ID, consumed_columns, create_index, create_table, outbox_columns
from shop.money import Money

revision = "orders_1"
down_revision = None


def upgrade() -> None:
    """Create them."""
    create_table(
        "orders",
        Column("order_id", ID, primary_key=True),
        Column("user_id", ID, nullable=False),
        Column("order_status", Integer, nullable=False),
        Column("pay_status", Integer, nullable=False),
        Column("shipping_status", Integer, nullable=False),
        Column("address", String(200), nullable=False),
        Column("consignee", String(200), nullable=False),
        Column("goods_id", ID, nullable=False),
        Column("goods_number", Integer, nullable=False),
        Column("goods_price", Money, nullable=False),
        Column("goods_amount", Money, nullable=False),
        Column("shipping_fee", Money, nullable=False),
        Column("order_amount", Money, nullable=False),
        Column("coupon_id", ID),
        Column("coupon_paid", Money, nullable=False),
        Column("money_paid", Money, nullable=False),
        Column("pay_amount", Money, nullable=False),
        Column("add_time", BigInteger, nullable=False),
        Column("confirm_time", BigInteger),
        Column("pay_time", BigInteger),
        Column("cancel_time", BigInteger),
        Column("cancel_reason", String(400)),
        Column("request_key", ID, unique=True),
        Column("request_hash", String(64), nullable=False),
        Column("version", Integer, nullable=False),
    )
    create_index("orders", "order_status")
    create_table("order_consumed", *consumed_columns())
    create_table("order_outbox", *outbox_columns())
