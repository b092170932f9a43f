"""Taking and undoing, repeated and in any order: against a model, on a real database."""

import asyncio
import random
from collections.abc import Iterator

import pytest

from shop import steps
from shop.database import Database
from shop.errors import Refused
from shop.goods.tables import Step


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    made = Database(url.replace("{service}", "goods"), sqlite_sync="normal")
    yield made
    made.close()


def test_every_order_of_calls(database: Database, seed: int) -> None:
    dice = random.Random(seed)

    async def main() -> None:
        for number in range(40):
            order_id, held, is_undone = f"order-{number}", 0, False
            for _ in range(dice.randint(1, 6)):
                if dice.random() < 0.5:
                    try:
                        held += await database.transaction(
                            lambda session, key=order_id: steps.take(session, Step, key)
                        )
                        assert not is_undone
                    except Refused as error:
                        assert is_undone and error.status == 409
                else:
                    held -= await database.transaction(
                        lambda session, key=order_id: steps.undo(session, Step, key)
                    )
                    is_undone = True
                assert held in (0, 1) and not (is_undone and held)

    asyncio.run(main())


def test_many_at_once(database: Database) -> None:
    """Two processes that write to one database: here each has connections of its own."""
    other = Database(
        database.engine.url.render_as_string(hide_password=False), sqlite_sync="normal"
    )

    async def main() -> None:
        results = await asyncio.gather(
            *(
                one.transaction(lambda session: steps.take(session, Step, "order"))
                for one in (database, other) * 5
            )
        )
        assert sorted(results) == [False] * 9 + [True]
        results = await asyncio.gather(
            *(
                one.transaction(lambda session: steps.undo(session, Step, "order"))
                for one in (database, other) * 5
            )
        )
        assert sorted(results) == [False] * 9 + [True]

    asyncio.run(main())
    database.close()
    other.close()
