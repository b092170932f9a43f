"""What a process of the shop is told when it starts: by arguments, else by ``SHOP_...``."""

import argparse
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal

from pymq import Network

#: Service -> the port it has by default.
PORTS = {
    "goods": 8001,
    "coupons": 8002,
    "users": 8003,
    "orders": 8004,
    "payments": 8005,
    "journal": 8006,
}
PAY_WAYS = ("outbox", "transaction")
#: Processes may start before the brokers, and then wait for them.
PATIENT = Network(start_deadline_s=math.inf)


def default_urls() -> dict[str, str]:
    """Return where the services are when each has its default port on this machine."""
    return {name: f"http://127.0.0.1:{port}" for name, port in PORTS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a process of the shop behaves; fixed for its lifetime.

    Attributes:
        broker: name servers, ``host:port``, several separated by ``;``.
        database: URL for SQLAlchemy; ``{service}`` in it is the name of the service, so that one
            value gives each of them a database of its own.
        urls: where each service is; several instances are separated by commas.
        secret: with which the payment platform signs its calls.
        pay_by: how a paid payment becomes a message: ``outbox`` or ``transaction``.
        shipping_fee, free_from: fee of an order, and the amount of goods from which there is none.
        unpaid_s: after this long an order that is not paid is cancelled.
        stale_s: an order that is unconfirmed for so long is cancelled: who confirmed it has died.
        lease_s: a message that is "processing" for so long is taken over.
        retry_s: how much later a message that failed comes again.
        call_timeout_s, call_deadline_s: for one attempt of a call between services, and for all.
        relay_s: how often an empty outbox is looked at.
        close_s: how long handlers may take when the process ends.
        sqlite_sync: SQLite's ``synchronous``: ``full`` survives a power loss, ``normal`` the end of
            the process.
        faults: a plan for ``Faults``.
        late_rate: share of answers that are held back; for tests.
    """

    broker: str = "127.0.0.1:9876"
    database: str = "sqlite:///shop-data/{service}.db"
    urls: Mapping[str, str] = field(default_factory=default_urls)
    secret: str = "a secret of shop and platform"
    pay_by: str = "outbox"
    shipping_fee: Decimal = Decimal("10.00")
    free_from: Decimal = Decimal("100.00")
    unpaid_s: float = 1800.0
    stale_s: float = 30.0
    lease_s: float = 30.0
    retry_s: float = 1.0
    call_timeout_s: float = 2.0
    call_deadline_s: float = 10.0
    relay_s: float = 0.05
    close_s: float = 5.0
    sqlite_sync: str = "full"
    faults: str = ""
    late_rate: float = 0.0

    def __post_init__(self) -> None:
        if self.pay_by not in PAY_WAYS:
            raise ValueError(f"pay_by={self.pay_by!r}: expected one of {', '.join(PAY_WAYS)}")
        if self.stale_s <= self.call_deadline_s:
            raise ValueError(
                f"stale_s={self.stale_s:g}: expected more than call_deadline_s="
                f"{self.call_deadline_s:g}, or orders are cancelled while they are confirmed"
            )
        if self.sqlite_sync not in ("full", "normal"):
            raise ValueError(f"sqlite_sync={self.sqlite_sync!r}: expected full or normal")

    def database_of(self, service: str) -> str:
        """Return the URL of a service's database."""
        return self.database.replace("{service}", service)


def from_environment(environment: Mapping[str, str] = os.environ) -> Settings:
    """Return what the environment says: ``SHOP_UNPAID_S=60``, ``SHOP_GOODS_URL=http://...``.

    Raises:
        ValueError: a value is wrong; the text names its variable.
    """
    settings = Settings()
    changes: dict[str, object] = {}
    for one in fields(Settings):
        name = f"SHOP_{one.name.upper()}"
        if one.name == "urls" or name not in environment:
            continue
        kind = type(getattr(settings, one.name))
        try:
            changes[one.name] = kind(environment[name])
        except (ValueError, ArithmeticError) as error:
            raise ValueError(f"{name}={environment[name]!r}: expected a {kind.__name__}") from error
    changes["urls"] = {
        name: environment.get(f"SHOP_{name.upper()}_URL", url)
        for name, url in default_urls().items()
    }
    return replace(settings, **changes)  # type: ignore[arg-type]  # each has its field's type


def to_environment(settings: Settings) -> dict[str, str]:
    """Return the variables from which ``from_environment`` makes the same settings."""
    found = {
        f"SHOP_{one.name.upper()}": str(getattr(settings, one.name))
        for one in fields(Settings)
        if one.name != "urls"
    }
    return found | {f"SHOP_{name.upper()}_URL": url for name, url in settings.urls.items()}


def from_arguments(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None
) -> tuple[Settings, argparse.Namespace]:
    """Add the arguments of every process to a parser, and return what they and it say."""
    parser.add_argument("--broker", help="name servers, host:port (SHOP_BROKER)")
    parser.add_argument(
        "--database", help="URL for SQLAlchemy, with {service} for the service (SHOP_DATABASE)"
    )
    given = parser.parse_args(arguments)
    try:
        settings = from_environment()
    except ValueError as error:
        parser.error(str(error))
    if given.broker:
        settings = replace(settings, broker=given.broker)
    if given.database:
        settings = replace(settings, database=given.database)
    return settings, given
