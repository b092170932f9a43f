"""Which groups pop which topics, and which pull.

Source: RocketMQ MessageRequestModeManager.
"""

import hashlib
import json
from collections.abc import Callable

from pymq.protocol import fastjson
from pymq.protocol.pop_bodies import GroupRequestMode, RequestModeTable


class RequestModes:
    """(topic, group) -> how its members get messages, as administrators set it.

    Attributes:
        on_change: called after every change; to be set by whoever needs to know.
    """

    def __init__(self) -> None:
        self._modes: dict[str, dict[str, GroupRequestMode]] = {}
        self.on_change: Callable[[], None] = lambda: None

    def find(self, topic: str, group: str) -> GroupRequestMode | None:
        """Return what was set, or None."""
        return self._modes.get(topic, {}).get(group)

    def put(self, mode: GroupRequestMode) -> None:
        """Set how a group gets messages of a topic."""
        self._modes.setdefault(mode.topic, {})[mode.group] = mode
        self.on_change()

    def forget_topic(self, topic: str) -> None:
        """A topic is being deleted. (RocketMQ keeps what was set: for another one of its name.)"""
        if self._modes.pop(topic, None) is not None:
            self.on_change()

    def forget_group(self, group: str) -> None:
        """A group is being deleted: likewise."""
        topics = [topic for topic, modes in self._modes.items() if modes.pop(group, None)]
        for topic in topics:
            if not self._modes[topic]:
                del self._modes[topic]
        if topics:
            self.on_change()

    def digest(self) -> str:
        """Return what names the table; empty: so is the table."""
        if not self._modes:
            return ""
        text = json.dumps(self.body().to_json(), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def body(self) -> RequestModeTable:
        """Return the table as sent to slaves and tools."""
        return RequestModeTable(modes=self._modes)

    def take_over(self, body: RequestModeTable) -> None:
        """Have those of a master."""
        if body.modes != self._modes:
            self._modes = {topic: dict(groups) for topic, groups in body.modes.items()}
            self.on_change()

    def to_text(self) -> str:
        """Return the text of ``messageRequestMode.json``."""
        return fastjson.dump_pretty(self.body().to_json())

    def restore(self, value: object) -> None:
        """Take over the contents of ``messageRequestMode.json``."""
        for topic, groups in RequestModeTable.from_json(value).modes.items():
            self._modes.setdefault(topic, {}).update(groups)
