"""Entries of consume queues: QUERY_CONSUME_QUEUE (321).

Source: RocketMQ AdminBrokerProcessor.queryConsumeQueue.
"""

import base64
from collections.abc import Mapping

from pymq.broker.cold_reads import ColdReads
from pymq.broker.state.clients import ClientTable
from pymq.broker.state.filters import FilterTable, GroupFilter
from pymq.errors import refusal
from pymq.net.dispatcher import Handler, Request
from pymq.protocol import fastjson
from pymq.protocol.admin_bodies import QueueEntries, QueueEntry, QueueUnit
from pymq.protocol.bodies import Subscription
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.query import QueueEntriesRequest
from pymq.store import MessageStore
from pymq.store.entry_read import Entry, Unit

#: Most entries in one answer.
ENTRIES_MAX = 10_000


class QueueEntryHandlers:
    """Shows what consume queues hold."""

    def __init__(
        self,
        store: MessageStore,
        cold_reads: ColdReads,
        clients: ClientTable,
        filters: FilterTable,
    ) -> None:
        self._store = store
        self._cold_reads = cold_reads
        self._clients = clients
        self._filters = filters

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {RequestCode.QUERY_CONSUME_QUEUE: self.entries}

    async def entries(self, request: Request) -> Command:
        """QUERY_CONSUME_QUEUE (321)."""
        header = QueueEntriesRequest.from_fields(request.fields)
        topic, queue_id, first = header.topic, header.queue_id, header.first
        bounds = self._store.queue_bounds(topic, queue_id)
        if not bounds[1]:
            raise refusal(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
        subscription, group_filter = None, None
        body = QueueEntries(min_offset=bounds[0], max_offset=bounds[1])
        if header.consumer_group is not None:
            subscription, group_filter = self._wanted(header.consumer_group, topic)
            body.subscription = subscription
            body.filter = f"{header.consumer_group}@{topic} is not online!"
            if subscription is not None:
                entry = None if group_filter is None else group_filter.entry.to_json()
                body.filter = fastjson.dump_pretty(entry)
        count = min(max(header.count, 0), ENTRIES_MAX)
        await self._cold_reads.wait_entries(topic, queue_id, first, count)
        found = self._store.entries.listed(topic, queue_id, first, count)
        if found is None:
            # SUCCESS without a body, as in RocketMQ.
            return request.response(
                ResponseCode.SUCCESS, f"Index {first} of {queue_id}@{topic} is not exist!"
            )
        body.entries = [_shown(entry, subscription, group_filter) for entry in found]
        return request.response(ResponseCode.SUCCESS, body=body.encode())

    def _wanted(self, group: str, topic: str) -> tuple[Subscription | None, GroupFilter | None]:
        online = self._clients.consumer_group(group)
        subscription = None if online is None else online.subscriptions.get(topic)
        return subscription, self._filters.find(topic, group)


def _shown(
    entry: Entry, subscription: Subscription | None, group_filter: GroupFilter | None
) -> QueueEntry:
    shown = QueueEntry(
        physical_offset=entry.physical_offset, size=entry.size, tag_code=entry.tag_code
    )
    unit = entry.unit
    if unit is not None:
        shown.unit = _unit_text(unit)
        if unit.bit_map:
            shown.bit_map = bits_text(unit.bit_map)
        shown.is_wanted = _is_wanted(unit, subscription, group_filter)
    elif entry.has_address:
        shown.remark = f"Cq extend not exist!addr: {entry.tag_code}"
    return shown


def _unit_text(unit: Unit) -> str:
    body = QueueUnit(
        bit_map_size=len(unit.bit_map),
        store_timestamp=unit.store_timestamp,
        size=unit.size,
        tag_code=unit.tag_code,
    )
    if unit.bit_map:
        body.bit_map = base64.b64encode(unit.bit_map).decode()
    return body.encode().decode()


def _is_wanted(
    unit: Unit, subscription: Subscription | None, group_filter: GroupFilter | None
) -> bool:
    if subscription is None:
        return False
    if group_filter is not None:
        test = group_filter.bit_maps
        return unit.store_timestamp <= test.since_ms or test.may_match(unit.bit_map or None)
    return not subscription.tag_codes or unit.tag_code in subscription.tag_codes


def bits_text(bit_map: bytes) -> str:
    """Return the bits of a bit map as RocketMQ shows them: the last first, eight bytes a line."""
    pieces = []
    for place in reversed(range(len(bit_map))):
        pieces.append(f"{bit_map[place]:08b}")
        if place % 8 == 0:
            pieces.append("\n")
    return "".join(pieces)
