"""Payments know what was bought and when that was confirmed, for figures."""

from sqlalchemy import BigInteger, Column

from shop.migrations.columns import ID, add_column

revision = "payments_2"
down_revision = "payments_1"


def upgrade() -> None:
    """Add the columns; payments that are there do not have it."""
    add_column("payment", Column("goods_id", ID))
    add_column("payment", Column("confirm_time", BigInteger))
