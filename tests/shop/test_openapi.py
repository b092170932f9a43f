"""Every operation of every service gets what its OpenAPI document allows, and what it does not."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from tests.shop.in_process import Shop, open_shop_on

REQUESTS = 800
#: What customers and the platform call; the rest is for services, which are believed.
FRONTS = ("/order", "/order/confirm", "/order/{order_id}", "/order/{order_id}/cancel")
FRONTS += ("/pay/createPayment", "/pay/callbackPayment", "/pay/{pay_id}")
#: Shares of values that are wrong: a little, to get far; and much.
SHARES = (0.02, 0.2)
#: Ids that are there, so that some requests get as far as the tables.
KNOWN = ("u0", "u1", "tea", "c-u0-0", "c-u1-0", "o1", "o2", "p1")
HOSTILE: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 10**30, 1e308, "", " ", "x" * 300, "\x00", "\ud800", [], {}, [None]),
    *("'; DROP TABLE orders; --", "NaN", "-0.01", "1e400", "../order", "%2e%2e", "\N{PILE OF POO}"),
)
GARBAGE = (b"", b"{", b"null", b"\xff", b"[" * 3_000, b'{"a": NaN}')


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path.

    Attributes:
        service, method, path: where it is.
        parameters: names in the path.
        body: schema of what is sent; ``None``: nothing is.
        answers: the status codes that are documented; ``4XX`` stands for all of them.
    """

    service: str
    method: str
    path: str
    parameters: tuple[str, ...]
    body: Mapping[str, Any] | None
    answers: frozenset[str]


def operations(service: str, document: Mapping[str, Any]) -> Iterator[Operation]:
    """Return what a document says can be called."""
    for path, methods in document["paths"].items():
        for method, told in methods.items():
            content = told.get("requestBody", {}).get("content", {})
            yield Operation(
                service,
                method,
                path,
                tuple(one["name"] for one in told.get("parameters", ()) if one["in"] == "path"),
                content.get("application/json", {}).get("schema"),
                frozenset(told["responses"]),
            )


class Bodies:
    """Makes bodies from schemas.

    Args:
        dice: decides.
        schemas: those that others refer to.
    """

    def __init__(self, dice: random.Random, schemas: Mapping[str, Any]) -> None:
        self._dice = dice
        self._schemas = schemas
        self._hostile = 0.0

    def begin(self, schema: Mapping[str, Any]) -> Any:
        """Return a body."""
        self._hostile = self._dice.choice(SHARES)
        return self.make(schema)

    def make(self, schema: Mapping[str, Any]) -> Any:
        """Return a value, which may be wrong in any of its parts."""
        dice = self._dice
        if dice.random() < self._hostile:
            return dice.choice(HOSTILE)
        if "$ref" in schema:
            return self.make(self._schemas[schema["$ref"].rpartition("/")[2]])
        if "anyOf" in schema:
            return self.make(dice.choice(schema["anyOf"]))
        if "enum" in schema or "const" in schema:
            return dice.choice(schema.get("enum") or [schema["const"]])
        kind = schema.get("type")
        if kind == "object":
            return self._object(schema)
        if kind == "array":
            return [self.make(schema["items"]) for _ in range(dice.randint(0, 3))]
        if kind == "boolean":
            return dice.random() < 0.5
        if kind in ("integer", "number"):
            return dice.choice([schema.get("minimum", 0), 1, 2, 7, 1_000])
        return dice.choice([None, *KNOWN, "20.00", "50.00", "0.00"] if not kind else
                           [*KNOWN, "20.00", "50.00", "10.00", "0"])  # fmt: skip

    def _object(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        found = {}
        for name, part in schema.get("properties", {}).items():
            is_needed = name in schema.get("required", ())
            if self._dice.random() < (0.97 if is_needed else 0.6):
                found[name] = self.make(part)
        if self._dice.random() < self._hostile:
            found[str(self._dice.choice(HOSTILE))] = 1
        return found


async def load(shop: Shop) -> None:
    """Fill the shop; some orders are there, and a payment."""
    await shop.load(users=2, coupons=1)
    for key in ("k1", "k2"):
        await shop.confirm(key)


def check(operation: Operation, sent: bytes | None, answer: httpx.Response) -> None:
    """Check that an answer is one that the document speaks of."""
    told = f"{operation.service}{operation.path}, {sent!r:.300}: {answer.status_code} {answer.text}"
    status = str(answer.status_code)
    is_documented = status in operation.answers or (
        status.startswith("4") and "4XX" in operation.answers
    )
    assert is_documented and answer.status_code < 500, told
    if not answer.is_success:
        errors = answer.json()["errors"]
        assert errors, told
        for one in errors:
            assert set(one) == {"field", "found", "expected"} and one["expected"], told


async def one_request(
    shop: Shop, operation: Operation, bodies: Bodies, dice: random.Random, ids: list[str]
) -> int:
    path = operation.path
    for name in operation.parameters:
        value = dice.choice([*ids, *KNOWN, *(one for one in HOSTILE if isinstance(one, str))])
        text = quote(value.encode("utf-8", "replace"), safe="") or "%20"
        path = path.replace(f"{{{name}}}", text)
    content = None
    if operation.body is not None:
        content = json.dumps(bodies.begin(operation.body)).encode()
        if dice.random() < 0.05:
            content = dice.choice(GARBAGE)
    answer = await shop.http.request(
        operation.method.upper(),
        f"http://{operation.service}{path}",
        content=content,
        headers={"Content-Type": "application/json", "Idempotency-Key": f"k{dice.randrange(9)}"},
    )
    check(operation, content, answer)
    return answer.status_code


@pytest.mark.by_turns("kind")
@pytest.mark.parametrize("only_fronts", [True, False])
def test_whatever_is_sent(url: str, seed: int, only_fronts: bool) -> None:
    """With the fronts alone, the audit is green after it."""
    dice = random.Random(seed)
    seen: Counter[int] = Counter()

    async def main() -> None:
        async with open_shop_on(url) as shop:
            await load(shop)
            ids = [row["orderId"] for row in (await shop.get("orders/order"))["orders"]]
            known: list[tuple[Operation, Bodies]] = []
            for service in shop.settings.urls:
                document = await shop.get(f"{service}/openapi.json")
                schemas = document["components"]["schemas"]
                assert "HTTPValidationError" not in schemas  # FastAPI's own, which nobody gets
                bodies = Bodies(dice, schemas)
                known += [(one, bodies) for one in operations(service, document)]
            assert len(known) > 25
            if only_fronts:
                known = [(one, bodies) for one, bodies in known if one.path in FRONTS]
                assert len(known) == len(FRONTS)
            for _ in range(REQUESTS):
                operation, bodies = dice.choice(known)
                seen[await one_request(shop, operation, bodies, dice, ids)] += 1
            if only_fronts:
                report = await shop.settle()
                assert not report.findings, "\n".join(map(str, report.findings))

    asyncio.run(main())
    assert seen[200] > REQUESTS // 20 and seen[422] > REQUESTS // 20, seen
