"""Which tables of a broker are kept in which files, and whom a change is told before it counts."""

import asyncio
import functools
from collections.abc import Callable

from pymq.broker.flusher import Flusher
from pymq.broker.ha.followers import Followers
from pymq.broker.ha.offset_followers import OffsetFollowers
from pymq.broker.parts import Site, Tables
from pymq.broker.registration import Registration
from pymq.broker.state_saving import StateSaving

#: How long administrative requests wait until the name servers, and slaves, are informed.
ANNOUNCE_WAIT_S = 1.0
_FILTER_SAVE_INTERVAL_S = 10.0


def make_saving(
    site: Site,
    tables: Tables,
    registration: Registration,
    followers: Followers,
    offset_followers: OffsetFollowers,
    flusher: Flusher,
) -> StateSaving:
    """Have the tables saved, and changes of topics, groups and request modes told."""

    async def announced() -> None:
        await asyncio.gather(
            registration.wait_announced(ANNOUNCE_WAIT_S),
            followers.wait_followed(ANNOUNCE_WAIT_S),
            offset_followers.wait_followed(ANNOUNCE_WAIT_S),
        )

    saving = StateSaving(
        site.store_config.root_path / "config",
        site.writers,
        announced=announced,
        flushed=flusher.wait_all_flushed,
        unsaved=site.unsaved,
    )
    topics, groups, modes = tables.topics, tables.groups, tables.modes
    topics.on_change = functools.partial(
        _call_all, saving.add("topics.json", topics), registration.announce, followers.changed
    )
    topics.ids.on_change = saving.add("topicIds.json", topics.ids)
    groups.on_change = functools.partial(
        _call_all, saving.add("subscriptionGroup.json", groups), followers.changed
    )
    modes.on_change = functools.partial(
        _call_all, saving.add("messageRequestMode.json", modes), followers.changed
    )
    saving.add_periodic(
        *("consumerFilter.json", tables.filters),
        interval_s=_FILTER_SAVE_INTERVAL_S,
        is_shared=True,  # clients leave groups between two runs
    )
    offsets_s = site.config.offset_flush_interval_ms / 1000
    saving.add_periodic("consumerOffset.json", tables.offsets, interval_s=offsets_s)
    return saving


def _call_all(*functions: Callable[[], None]) -> None:
    for function in functions:
        function()
