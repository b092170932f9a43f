"""Two transactions on the same rows: the second one in front of every statement of the first.

On servers that take several writers. Where the second has to wait for a lock of the first, the
first goes on.
"""

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import count
from typing import Any, TypeVar

import httpx
import pytest
from sqlalchemy import event, select
from sqlalchemy.orm import Session
from tests.shop.in_process import order
from tests.shop.servers import SERVERS

from shop import steps
from shop.calls import Peer
from shop.coupons import service as coupons
from shop.coupons.tables import Coupon
from shop.coupons.tables import Step as CouponStep
from shop.database import Database
from shop.errors import Refused
from shop.faults import Faults
from shop.goods.tables import Step
from shop.orders.cancel import Cancellation
from shop.orders.confirm import Confirmation
from shop.orders.models import OrderRequest
from shop.orders.rules import Shipping
from shop.orders.tables import Order, OrderStatus, Outbox
from shop.payments import rows
from shop.payments.by_outbox import OutboxWay
from shop.payments.rows import Bill, Paying
from shop.payments.tables import CLOSED, PAID, Gate
from shop.payments.tables import Outbox as PaidOutbox
from shop.topics import ORDER_CANCEL, ORDER_CONFIRMED, ORDER_TIMEOUT

T = TypeVar("T")
Doing = Callable[[Database, str], Awaitable[Any]]

#: Who has not come through by then waits for a lock.
WAIT_S = 0.3
STATEMENTS_MAX = 60


@dataclass(slots=True)
class Pair:
    """Two processes at one database.

    Attributes:
        first, second: what they do is done.
    """

    first: Database
    second: Database

    def outcomes(self, first: Doing, second: Doing) -> Iterator[tuple[str, Any, Any]]:
        """Do both, the second in front of the n-th statement of the first, for each n.

        Args:
            first, second: are given a database, and an id that is another one for each n.

        Yields:
            The id; what each returned, or its ``Refused``.
        """
        for number in count(1):
            assert number < STATEMENTS_MAX
            key = f"id-{number}"
            was_reached, one, other = self._interleave(
                number, first(self.first, key), second(self.second, key)
            )
            yield key, one, other
            if not was_reached:
                assert number > 1, "no statement of the first was seen"
                return

    def _interleave(
        self, number: int, first: Awaitable[Any], second: Awaitable[Any]
    ) -> tuple[bool, Any, Any]:
        seen = count(1)
        others: list[concurrent.futures.Future[Any]] = []
        engine = self.first.engine
        with concurrent.futures.ThreadPoolExecutor(1) as thread:

            def intrude(*_: object) -> None:
                if next(seen) == number:
                    others.append(thread.submit(_outcome, second))
                    concurrent.futures.wait(others, WAIT_S)

            for name in ("before_cursor_execute", "commit"):
                event.listen(engine, name, intrude)
            try:
                one = _outcome(first)
            finally:
                for name in ("before_cursor_execute", "commit"):
                    event.remove(engine, name, intrude)
            was_reached = bool(others)
            return was_reached, one, others[0].result() if was_reached else _outcome(second)


def _outcome(doing: Awaitable[Any]) -> Any:
    async def main() -> Any:
        try:
            return await doing
        except Refused as error:
            return error

    return asyncio.run(main())


@pytest.fixture(params=SERVERS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pair(url: str) -> Iterator[Pair]:
    found = Pair(Database(url), Database(url))
    yield found
    found.first.close()
    found.second.close()


def read(pair: Pair, work: Callable[[Session], T]) -> T:
    with Session(pair.first.engine) as session:
        return work(session)


async def create_payment(database: Database, order_id: str) -> Any:
    bill = Bill(order_id, "u0", Decimal("50.00"), "tea", 1)
    return await database.transaction(lambda session: rows.create(session, bill))


async def close_payment(database: Database, order_id: str) -> Any:
    return await database.transaction(lambda session: rows.close(session, order_id))


async def pay(database: Database, order_id: str) -> Any:
    pay_id = (await create_payment(database, order_id)).pay_id
    return await OutboxWay(database, Faults()).pay(pay_id)


def swapped(outcomes: Iterator[tuple[str, Any, Any]]) -> Iterator[tuple[str, Any, Any]]:
    return ((key, other, one) for key, one, other in outcomes)


@pytest.mark.parametrize("pays_first", [True, False])
def test_an_order_is_paid_or_closed(pair: Pair, pays_first: bool) -> None:
    """Never both, whoever comes in between."""
    if pays_first:
        outcomes = pair.outcomes(pay, close_payment)
    else:
        outcomes = swapped(pair.outcomes(close_payment, pay))
    found = []
    for key, paying, state in outcomes:
        kept = read(pair, lambda session, key=key: session.get_one(Gate, key).state)
        messages = read(
            pair,
            lambda session, key=key: session.scalars(
                select(PaidOutbox.msg_key).where(PaidOutbox.msg_body.contains(key + '"'))
            ).all(),
        )
        assert state == kept, (key, paying)
        if paying is Paying.NOW:
            assert (state, len(messages)) == (PAID, 1), key
        else:
            assert paying is Paying.CLOSED or isinstance(paying, Refused), key
            assert (state, len(messages)) == (CLOSED, 0), key
        found.append(state)
    assert {CLOSED, PAID} == set(found), found


async def take(database: Database, order_id: str) -> Any:
    return await database.transaction(lambda session: steps.take(session, Step, order_id))


async def undo(database: Database, order_id: str) -> Any:
    return await database.transaction(lambda session: steps.undo(session, Step, order_id))


@pytest.mark.parametrize("takes_first", [True, False])
def test_what_is_taken_is_given_back(pair: Pair, takes_first: bool) -> None:
    if takes_first:
        outcomes = pair.outcomes(take, undo)
    else:
        outcomes = swapped(pair.outcomes(undo, take))
    for key, taken, undone in outcomes:
        assert (taken is True) is undone, (key, taken, undone)
        assert read(pair, lambda session, key=key: session.get_one(Step, key).state == steps.UNDONE)


def test_a_coupon_is_used_once(pair: Pair) -> None:
    def using(suffix: str) -> Doing:
        async def use(database: Database, key: str) -> Any:
            def work(session: Session) -> None:
                coupons.use(session, key, coupons.Using(order_id=f"{key}-{suffix}", user_id="u0"))

            await database.transaction(work)
            return True

        return use

    async def load(database: Database) -> None:
        several = [
            coupons.NewCoupon(coupon_id=f"id-{n}", coupon_price=Decimal("5.00"), user_id="u0")
            for n in range(STATEMENTS_MAX)
        ]
        await database.transaction(lambda session: coupons.load(session, several))

    asyncio.run(load(pair.first))
    for key, one, other in pair.outcomes(using("a"), using("b")):
        assert [one, other].count(True) == 1, (key, one, other)
        winner = f"{key}-a" if one is True else f"{key}-b"
        assert read(pair, lambda session, key=key: session.get_one(Coupon, key).order_id) == winner
        # The step of the other one was taken back with everything else.
        assert read(
            pair,
            lambda session, key=key: session.scalars(
                select(CouponStep.order_id).where(CouponStep.order_id.startswith(f"{key}-"))
            ).all(),
        ) == [winner]


def answer(request: httpx.Request) -> httpx.Response:
    """What the other services say to an order: it is right, and done."""
    facts = {"goodsPrice": "20.00", "goodsNumber": 100, "userMoney": "100.00"}
    return httpx.Response(200, json=facts if request.method == "GET" else {})


async def confirm(database: Database, key: str) -> Any:
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        peers = {
            name: Peer(http, name, [f"http://{name}"], 10.0, 20.0)
            for name in ("goods", "coupons", "users")
        }
        shipping = Shipping(Decimal("10.00"), Decimal("100.00"))
        confirmation = Confirmation(database, peers, shipping, 60.0, Faults())
        return await confirmation.confirm(OrderRequest.model_validate(order()), key)


async def sweep(database: Database, _: str) -> Any:
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        peer = Peer(http, "payments", ["http://payments"], 10.0, 20.0)
        # Whatever is there is stale.
        return await Cancellation(database, peer, stale_s=-60.0).sweep()


def test_an_order_is_confirmed_or_swept(pair: Pair) -> None:
    swept = 0
    for key, confirmed, count_swept in pair.outcomes(confirm, sweep):
        kept = read(
            pair,
            lambda session, key=key: session.scalars(
                select(Order).filter_by(request_key=key)
            ).one(),
        )
        tags = sorted(
            read(
                pair,
                lambda session, kept=kept: session.scalars(
                    select(Outbox.msg_tag).where(Outbox.msg_key == kept.order_id)
                ).all(),
            )
        )
        if count_swept:
            assert isinstance(confirmed, Refused), key
            assert (kept.order_status, tags) == (OrderStatus.UNCONFIRMED, [ORDER_CANCEL]), key
            assert kept.cancel_time is not None, key
        else:
            assert confirmed.order_id == kept.order_id
            assert kept.order_status == OrderStatus.CONFIRMED and kept.cancel_time is None, key
            assert tags == [ORDER_CONFIRMED, ORDER_TIMEOUT], key
        swept += count_swept
    assert swept
