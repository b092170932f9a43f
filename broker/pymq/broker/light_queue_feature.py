"""Light queues (LMQ): queues that list messages of other topics; see ``protocol.multi_dispatch``.

The store gives messages their places there. Here is what brokers have to do with it: senders are
told of names that cannot be listed before anything is stored, and the offsets of consumers get a
second file.

RocketMQ takes every name. Those that are not of light queues are lost silently, and one of them in
front of a light queue's stops 5.3.3 from making any later message visible.

Source: RocketMQ RIP-28, HookUtils.checkBeforePutMessage, DefaultMessageStore.checkLmqMessage.
"""

import functools
import logging

from pymq.broker.parts import Core, Feature, Site, Tables
from pymq.broker.state.light_offsets import NAME, LightOffsets
from pymq.errors import refusal
from pymq.protocol.codes import ResponseCode
from pymq.protocol.multi_dispatch import DISPATCH, is_final, split_names
from pymq.store.multi_dispatch import MultiDispatch

_log = logging.getLogger(__name__)


def make_light_queues(site: Site, tables: Tables, core: Core) -> Feature:
    """Messages that light queues list."""
    config = site.store_config
    if config.light_queues or (config.root_path / "config" / NAME).exists():
        core.saving.add_periodic(
            NAME,
            LightOffsets(tables.offsets, is_enabled=config.light_queues),
            interval_s=site.config.offset_flush_interval_ms / 1000,
        )
    light = site.store.light_queues
    if light is not None:
        check = functools.partial(check_listing, light, config.light_queue_count_max)
        core.hooks.add_check(DISPATCH, check)
    elif config.light_queues or config.multi_dispatch:
        missing = "enableMultiDispatch" if config.light_queues else "enableLmq"
        _log.warning("light queues list no messages: they also need %s=true", missing)
    return Feature()


def check_listing(light: MultiDispatch, count_max: int, topic: str, value: str) -> None:
    """Check the names of light queues that a message was sent with.

    Args:
        light: lists messages.
        count_max: how many light queues there may be.
        topic: of the message.
        value: of the property.

    Raises:
        BrokerError: it cannot be listed in all of them.
    """
    if not value.strip() or not is_final(topic):
        return
    queues = split_names(value)
    objection = light.objection(topic, queues) if queues else "no name"
    if objection is not None:
        raise refusal(ResponseCode.MESSAGE_ILLEGAL, f"property {DISPATCH}: {objection}")
    new = {name for name in queues if name not in light}
    if new and light.count + len(new) > count_max:
        raise refusal(
            ResponseCode.SYSTEM_ERROR,
            "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]broker config enableLmq and enableMultiDispatch, lmq "
            f"consumeQueue num exceed maxLmqConsumeQueueNum config num: there are {light.count}, "
            f"at most {count_max} are allowed, and {len(new)} would be new",
        )
