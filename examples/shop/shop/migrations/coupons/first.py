"""The first tables of the service *coupons*."""

from sqlalchemy import BigInteger, Boolean, Column, Integer

from shop.migrations.columns import ID, consumed_columns, create_table, step_columns
from shop.money import Money

revision = "coupons_1"
down_revision = None


def upgrade() -> None:
    """Create them."""
    create_table(
        "coupon",
        Column("coupon_id", ID, primary_key=True),
        Column("coupon_price", Money, nullable=False),
        Column("user_id", ID, nullable=False),
        Column("order_id", ID),
        Column("is_used", Boolean, nullable=False),
        Column("used_time", BigInteger),
        Column("version", Integer, nullable=False),
    )
    create_table("coupon_step", *step_columns())
    create_table("coupon_consumed", *consumed_columns())
