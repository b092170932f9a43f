"""The consumer groups of this broker.

Source: RocketMQ SubscriptionGroupManager.
"""

import logging
from collections.abc import Callable

from pymq.broker.config import BrokerConfig
from pymq.clock import Clock
from pymq.errors import refusal
from pymq.protocol import fastjson, names
from pymq.protocol.bodies import DataVersion, GroupConfig
from pymq.protocol.bodies import GroupTable as GroupTableBody
from pymq.protocol.codes import ResponseCode
from pymq.protocol.multi_dispatch import is_light

_log = logging.getLogger(__name__)

#: Bit of what is forbidden to a group (PermName.INDEX_PERM_READ).
_READ_FORBIDDEN = 1 << 2


class GroupTable:
    """Group name -> settings.

    Every light group exists, and is not in the table.

    Args:
        has_light_queues: whether there are such groups.

    Attributes:
        on_change: called after every change; to be set by whoever needs to know.
    """

    def __init__(
        self, config: BrokerConfig, clock: Clock, *, has_light_queues: bool = False
    ) -> None:
        self._has_light_queues = has_light_queues
        self._clock = clock
        self.on_change: Callable[[], None] = lambda: None
        self._config = config
        self._forbidden: dict[str, dict[str, int]] = {}
        self.version = DataVersion()
        self._groups = {
            name: GroupConfig(group=name, consume_broadcast_enable=True)
            for name in names.BUILT_IN_GROUPS
        }

    def __contains__(self, group: str) -> bool:
        return self.known(group) is not None

    def known(self, group: str) -> GroupConfig | None:
        """Return a group's settings; None if there is no such group."""
        return self._groups.get(group) or self._light(group)

    def _light(self, group: str) -> GroupConfig | None:
        """Return the settings of a light group; None for others."""
        is_one = self._has_light_queues and is_light(group)
        return GroupConfig(group=group) if is_one else None

    def find(self, group: str) -> GroupConfig | None:
        """Return a group's settings, creating it if that is allowed; otherwise None."""
        config = self._groups.get(group) or self._light(group)
        if (
            config is None
            and self._config.auto_create_group
            and len(group) <= names.DERIVED_TOPIC_BYTES_MAX  # RocketMQ: as many as for topics
            and names.is_legal(group)
        ):
            config = GroupConfig(group=group)
            self.put(config)
            _log.info("consumer group %s created", group)
        return config

    def is_read_forbidden(self, group: str, topic: str) -> bool:
        """May a group not read a topic, by an administrator's word?"""
        return bool(self._forbidden.get(group, {}).get(topic, 0) & _READ_FORBIDDEN)

    def forbid_reading(self, group: str, topic: str, *, is_forbidden: bool) -> None:
        """Forbid a group to read a topic, or allow it again."""
        bits = self._forbidden.get(group, {}).get(topic, 0) & ~_READ_FORBIDDEN
        if is_forbidden:
            bits |= _READ_FORBIDDEN
        topics = dict(self._forbidden.get(group, {}))
        topics.pop(topic, None)
        if bits:
            topics[topic] = bits
        self._forbidden.pop(group, None)
        if topics:
            self._forbidden[group] = topics
        self._changed()

    def require(self, group: str) -> GroupConfig:
        """Return a group's settings.

        Raises:
            GroupNotExist: there is no such group, and groups are not created automatically.
        """
        config = self.find(group)
        if config is None:
            raise refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{group}] does not exist; create it on this broker",
            )
        return config

    def put(self, config: GroupConfig) -> None:
        """Create a group, or replace its settings; those of a light group cannot be changed."""
        if self._light(config.group) is not None:
            return
        self._groups[config.group] = config
        self._changed()

    def delete(self, group: str) -> bool:
        """Delete a group, and what is forbidden to it; False if there was neither."""
        known = self._groups.pop(group, None), self._forbidden.pop(group, None)
        if known == (None, None):
            return False
        self._changed()
        return True

    def body(self) -> GroupTableBody:
        """Return the table as sent to slaves and tools."""
        return GroupTableBody(version=self.version, groups=self._groups, forbidden=self._forbidden)

    def take_over(self, body: GroupTableBody) -> None:
        """Have the groups of a master, and its version."""
        if body.version != self.version:
            self._groups = dict(body.groups)
            self._forbidden = body.forbidden
            self.version = body.version
            self.on_change()

    def to_text(self) -> str:
        """Return the text of ``subscriptionGroup.json``."""
        return fastjson.dump_pretty(self.body().to_json())

    def restore(self, value: object) -> None:
        """Take over the contents of ``subscriptionGroup.json``."""
        body = GroupTableBody.from_json(value)
        self._groups |= body.groups
        self._forbidden = body.forbidden
        self.version = body.version

    def _changed(self) -> None:
        self.version = self.version.next(self._clock.wall_ms())
        self.on_change()
