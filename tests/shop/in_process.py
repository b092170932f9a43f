"""All services of the shop in one event loop, on an embedded cluster, each with its real database.

They reach each other through ``Wires``, which calls their applications directly. A request is a
task of its own: a caller that gives up does not stop it, as over a network.
"""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI
from sqlalchemy import select

from pymq import Admin
from pymq.testing import Cluster
from shop import migrate
from shop.audit import Report, audit
from shop.database import Database, open_engine
from shop.definitions import DEFINITIONS
from shop.faults import Faults
from shop.platform import callback
from shop.relay import OUTBOXES, run_relay
from shop.settings import Settings
from shop.topics import ORDER_TOPIC, PAY_TOPIC
from shop.web import create_app

#: By then a shop that is left alone is done, on a machine that has other things to do.
SETTLE_S = 120.0
ATTEMPT_S = 3.0  # of a customer: far less than stale_s
#: The levels at which consumers get messages again: at once, nearly.
RETRY_MS = 100
QUICK = Settings(
    unpaid_s=3600.0,
    # No call is given up, and no order swept, because the machine is slow.
    stale_s=100.0,
    lease_s=1.0,
    retry_s=0.0,
    call_timeout_s=0.7,
    call_deadline_s=90.0,
    relay_s=0.02,
    close_s=0.2,
    sqlite_sync="normal",
    urls={name: f"http://{name}" for name in DEFINITIONS},
)
LATE_S = 1.0  # longer than call_timeout_s
#: Where somebody has died: what he left behind is swept soon.
SWEPT: dict[str, Any] = {"stale_s": 12.0, "call_deadline_s": 11.0}


def quick_cluster() -> Cluster:
    """A cluster with short delays."""
    return Cluster(store_settings={"delay_levels_ms": (RETRY_MS,) * 18}, brokers=2)


def migrated(folder: Path) -> Path:
    """Make the databases of all services in a folder, to be copied."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = replace(QUICK, database=f"sqlite:///{folder}/{{service}}.db")
    for definition in DEFINITIONS.values():
        migrate.upgrade(definition, settings)
    return folder


class Wires(httpx.AsyncBaseTransport):
    """From a host's name to the application that runs there."""

    def __init__(self) -> None:
        self.apps: dict[str, FastAPI] = {}
        self.refuse: Callable[[httpx.Request], bool] = lambda request: False
        self._tasks: dict[asyncio.Task[httpx.Response], str] = {}  # by the host's name

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.refuse(request):
            told = {"field": "moneyPaid", "found": "9.00", "expected": "at most the balance, 0.00"}
            return httpx.Response(409, json={"errors": [told]}, request=request)
        app = self.apps.get(request.url.host)
        if app is None:
            raise httpx.ConnectError(f"{request.url.host} is down", request=request)
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        task = asyncio.create_task(transport.handle_async_request(request))
        self._tasks[task] = request.url.host
        task.add_done_callback(self._tasks.pop)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():  # not who waits for it
                raise httpx.ReadError("the process has ended", request=request) from None
            raise

    async def end(self, host: str) -> None:
        """End the requests that a process has not answered, as its end does."""
        tasks = [task for task, where in self._tasks.items() if where == host]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Shop:
    """All services, and a relay for each outbox.

    Args:
        database: URL of the databases, with tables; ``{service}`` in it as in ``Settings``.
        cluster: what they send to.
        faults: of all of them.
        changes: of ``QUICK``.
    """

    def __init__(
        self, database: str, cluster: Cluster, faults: Faults | None = None, **changes: Any
    ) -> None:
        self.faults = faults or Faults(process=False, late_s=LATE_S)
        self.settings = replace(QUICK, broker=cluster.name_server, database=database, **changes)
        self.cluster = cluster
        self.wires = Wires()
        self.http = httpx.AsyncClient(transport=self.wires)
        self._running: dict[str, AsyncExitStack] = {}

    async def start(self, name: str) -> None:
        """Start a service, or ``relay-orders`` or ``relay-payments``."""
        stack = AsyncExitStack()
        if name.startswith("relay-"):
            await self._start_relay(stack, name.removeprefix("relay-"))
        else:
            app = create_app(
                DEFINITIONS[name],
                self.settings,
                http=httpx.AsyncClient(transport=self.wires),
                faults=self.faults,
            )
            await stack.enter_async_context(app.router.lifespan_context(app))
            self.wires.apps[name] = app
        self._running[name] = stack

    async def _start_relay(self, stack: AsyncExitStack, service: str) -> None:
        database = Database(self.settings.database_of(service), sqlite_sync="normal")
        stack.callback(database.close)
        task = asyncio.create_task(run_relay(self.settings, service, database, self.faults))

        async def end() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        stack.push_async_callback(end)

    async def stop(self, name: str) -> None:
        """Stop it; requests that it has not answered end."""
        self.wires.apps.pop(name, None)
        await self.wires.end(name)
        await self._running.pop(name).aclose()

    async def restart(self, *names: str) -> None:
        """Stop and start again; without names, everything."""
        for name in names or list(self._running):
            await self.stop(name)
            await self.start(name)

    async def sweep_soon(self) -> None:
        """Have what somebody has left behind swept, from now on; nobody is to order meanwhile."""
        self.settings = replace(self.settings, **SWEPT)
        await self.restart("orders")

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Shop"]:
        """Everything runs inside the block."""
        try:
            for name in (*DEFINITIONS, *(f"relay-{service}" for service in OUTBOXES)):
                await self.start(name)
            yield self
        finally:
            for name in list(self._running):
                await self.stop(name)
            await self.http.aclose()

    # --- what customers and others do

    async def post(self, path: str, body: Any = None, **headers: str) -> httpx.Response:
        """Send a request, again and again until it is answered with anything but 5xx.

        Args:
            path: with the service in front: ``orders/order/confirm``.
            body: as JSON.
            headers: ``Idempotency_Key="..."``.
        """
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with asyncio.timeout(SETTLE_S):
            while True:
                with contextlib.suppress(TimeoutError, httpx.TransportError):
                    async with asyncio.timeout(ATTEMPT_S):
                        answer = await self.http.post(f"http://{path}", json=body, headers=named)
                    if not answer.is_server_error:
                        return answer
                await asyncio.sleep(0.05)

    async def get(self, path: str) -> dict[str, Any]:
        """Return what is there."""
        answer = await self.http.get(f"http://{path}")
        assert answer.is_success, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def load(
        self, *, users: int = 1, stock: int = 100_000, money: str = "5000.00", coupons: int = 0
    ) -> None:
        """One good, ``tea`` at 20.00, and users ``u0``, ... with coupons ``c-u0-0``, ... each."""
        tea = {"goodsId": "tea", "goodsName": "Tea", "goodsPrice": "20.00", "goodsDesc": "green"}
        people = [
            {"userId": f"u{number}", "userName": f"U {number}", "userMoney": money}
            for number in range(users)
        ]
        cards = [
            {"couponId": f"c-{user}-{number}", "couponPrice": "5.00", "userId": user}
            for user in (one["userId"] for one in people)
            for number in range(coupons)
        ]
        for path, body in (
            ("goods/goods", {"goods": [{**tea, "goodsNumber": stock}]}),
            ("users/users", {"users": people}),
            ("coupons/coupons", {"coupons": cards}),
        ):
            answer = await self.post(path, body)
            assert answer.status_code == 200, answer.text

    async def confirm(self, key: str, **changes: Any) -> httpx.Response:
        """Confirm an order, however often that takes."""
        return await self.post("orders/order/confirm", order(**changes), Idempotency_Key=key)

    async def pay(self, order_id: str, *, times: int = 2) -> str:
        """Pay an order and have the platform call back; return what the shop has answered."""
        created = await self.post("payments/pay/createPayment", {"orderId": order_id})
        assert created.status_code == 200, created.text
        return await self.tell(created.json(), times=times)

    async def tell(self, payment: dict[str, Any], *, times: int = 2) -> str:
        """Have the platform call back that a payment was paid; return what the shop answers."""
        body = callback(payment, "paid", self.settings.secret)
        answers = await asyncio.gather(
            *(self.post("payments/pay/callbackPayment", body) for _ in range(times))
        )
        assert {answer.status_code for answer in answers} == {200}, [one.text for one in answers]
        results = {answer.json()["result"] for answer in answers}
        assert len(results) == 1, results
        return str(results.pop())

    async def wait_status(self, order_id: str, status: int, pay_status: int = 0) -> None:
        """Wait until an order is where it belongs."""

        async def is_there() -> bool:
            found = await self.get(f"orders/order/{order_id}")
            return (found["orderStatus"], found["payStatus"]) == (status, pay_status)

        async with asyncio.timeout(SETTLE_S):
            while not await is_there():
                await asyncio.sleep(0.05)

    async def settle_outboxes(self) -> None:
        """Wait until everything that was to be sent is sent, or waits with a broker."""
        async with asyncio.timeout(SETTLE_S):
            while any(self.count(service, OUTBOXES[service]) for service in OUTBOXES):
                await asyncio.sleep(0.05)

    def count(self, service: str, table: type[Any]) -> int:
        """Count the rows of a service's table."""
        return len(self.select(service, table))

    def select(self, service: str, *columns: Any) -> list[Any]:
        """Return rows of a service's tables."""
        engine = open_engine(self.settings.database_of(service), sqlite_sync="normal")
        try:
            with engine.execution_options(shop_reads=True).connect() as connection:
                return list(connection.execute(select(*columns)))
        finally:
            engine.dispose()

    async def settle(self, timeout_s: float = SETTLE_S) -> Report:
        """Wait until the audit is green, and return the last report."""
        end = asyncio.get_running_loop().time() + timeout_s
        while True:
            report = await asyncio.to_thread(audit, self.settings)
            if not report.findings or asyncio.get_running_loop().time() > end:
                return report
            await asyncio.sleep(0.2)


def order(**changes: Any) -> dict[str, Any]:
    """An order of two packets of tea: 40.00, and 10.00 for shipping."""
    given: dict[str, Any] = {
        "userId": "u0",
        "goodsId": "tea",
        "goodsNumber": 2,
        "goodsPrice": "20.00",
        "shippingFee": "10.00",
        "orderAmount": "50.00",
        "couponId": None,
        "moneyPaid": "0.00",
        "address": "1 Market Street",
        "consignee": "U",
    }
    return given | changes


@asynccontextmanager
async def open_shop(folder: Path, template: Path, **arguments: Any) -> AsyncIterator[Shop]:
    """A shop on SQLite and a cluster of its own; ``arguments`` are those of ``Shop``."""
    shutil.copytree(template, folder, dirs_exist_ok=True)
    async with open_shop_on(f"sqlite:///{folder}/{{service}}.db", **arguments) as shop:
        yield shop


@asynccontextmanager
async def open_shop_on(database: str, **arguments: Any) -> AsyncIterator[Shop]:
    """A shop on databases that have their tables, and a cluster of its own."""
    async with quick_cluster() as cluster:
        async with Admin(cluster.name_server) as admin:
            for topic in (ORDER_TOPIC, PAY_TOPIC):
                await admin.topics.create(topic, queue_count=2)
        async with Shop(database, cluster, **arguments).running() as shop:
            yield shop
