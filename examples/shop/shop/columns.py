"""Columns that tables of several services have in common.

Each service has tables of its own, with its name in front (``goods_step``), so that services may
also share a database. Times are milliseconds since 1970, as in messages: the same in every
database.
"""

import secrets
import time
from typing import Any

from sqlalchemy import BigInteger, Integer, String, Text
from sqlalchemy.orm import Mapped, declared_attr, mapped_column

ID_LENGTH_MAX = 64
#: A row number: 64 bits, except for SQLite, which numbers INTEGER columns only.
ROW_ID = BigInteger().with_variant(Integer(), "sqlite")


def now_ms() -> int:
    """The time, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def new_id() -> str:
    """An id nobody else has, and that sorts by the time it was made."""
    return f"{now_ms():012x}{secrets.token_hex(8)}"


class Versioned:
    """Rows that two may write: who comes second finds another version, and is tried again.

    Whoever decides by a row holds it until it is written: a session forgets rows that nobody holds,
    and what it reads again has the version of somebody else's decision.
    """

    version: Mapped[int] = mapped_column(Integer)

    @declared_attr.directive
    @classmethod
    def __mapper_args__(cls) -> dict[str, Any]:
        return {"version_id_col": cls.version}


class StepColumns(Versioned):
    """What a service has done for an order: see ``steps``."""

    order_id: Mapped[str] = mapped_column(String(ID_LENGTH_MAX), primary_key=True)
    state: Mapped[str] = mapped_column(String(8))
    changed_ms: Mapped[int] = mapped_column(BigInteger)


class ConsumedColumns(Versioned):
    """A message that a consumer group has seen: see ``consuming``."""

    group_name: Mapped[str] = mapped_column(String(ID_LENGTH_MAX), primary_key=True)
    msg_tag: Mapped[str] = mapped_column(String(ID_LENGTH_MAX), primary_key=True)
    msg_key: Mapped[str] = mapped_column(String(ID_LENGTH_MAX), primary_key=True)
    msg_id: Mapped[str] = mapped_column(String(ID_LENGTH_MAX))
    state: Mapped[str] = mapped_column(String(12))
    failures: Mapped[int] = mapped_column(Integer)
    owner: Mapped[str] = mapped_column(String(ID_LENGTH_MAX))
    lease_ms: Mapped[int] = mapped_column(BigInteger)  # the time until which it is the owner's
    error: Mapped[str] = mapped_column(Text)


class OutboxColumns:
    """A message that is to be sent: see ``outbox``."""

    id: Mapped[int] = mapped_column(ROW_ID, primary_key=True, autoincrement=True)
    group_name: Mapped[str] = mapped_column(String(ID_LENGTH_MAX))
    msg_topic: Mapped[str] = mapped_column(String(127))
    msg_tag: Mapped[str] = mapped_column(String(ID_LENGTH_MAX))
    msg_key: Mapped[str] = mapped_column(String(ID_LENGTH_MAX))
    msg_body: Mapped[str] = mapped_column(Text)
    msg_status: Mapped[int] = mapped_column(Integer)
    deliver_ms: Mapped[int] = mapped_column(BigInteger)  # 0: at once
    claimed_ms: Mapped[int] = mapped_column(BigInteger)
    create_time: Mapped[int] = mapped_column(BigInteger)
