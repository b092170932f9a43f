"""Client message ids of this process."""

import datetime

from pymq.client.sockets.message_ids import MessageIds
from pymq.protocol.unique_keys import month_around


def local_ms(*date: int) -> int:
    return int(datetime.datetime(*date).timestamp() * 1000)  # type: ignore[arg-type]


def test_an_id_has_the_time_since_then() -> None:
    ids = MessageIds()
    for now_ms in (local_ms(2023, 11, 14, 22), local_ms(2023, 11, 30), local_ms(2023, 12, 3)):
        assert int(ids.next(now_ms)[20:28], 16) == now_ms - month_around(now_ms)[0]
