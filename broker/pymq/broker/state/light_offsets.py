"""``lmqConsumerOffset.json``: where consumer groups are, with light queues.

A broker with light queues keeps all its offsets there, in RocketMQ's words: ``offsetTable`` as in
``consumerOffset.json``, and ``lmqOffsetTable`` with the one offset of a light group in a light
queue. Then RocketMQ neither reads nor writes ``consumerOffset.json``: groups fall back to what that
says when light queues are switched on or off. Here both files are written as long as this one is
there, so that either may be read next.

Source: RocketMQ LmqConsumerOffsetManager.
"""

import json

from pymq.broker.state.offsets import OffsetTable
from pymq.errors import RemoteProtocolError

NAME = "lmqConsumerOffset.json"
_TABLE = "lmqOffsetTable"


class LightOffsets:
    """The second file of an offset table.

    Args:
        offsets: the table.
        is_enabled: whether there are light queues; otherwise this file is not believed, but for
            their offsets.
    """

    def __init__(self, offsets: OffsetTable, *, is_enabled: bool) -> None:
        self._offsets = offsets
        self._is_enabled = is_enabled
        offsets.has_light_file = True

    @property
    def is_changed(self) -> bool:
        """See ``BusyTable``."""
        return self._offsets.is_light_changed

    @is_changed.setter
    def is_changed(self, is_changed: bool) -> None:
        self._offsets.is_light_changed = is_changed

    def to_text(self) -> str:
        """Return the text of the file."""
        lines = [
            f"\n\t\t{json.dumps(key, ensure_ascii=False)}:{offset}"
            for key, offset in self._offsets.light_offsets().items()
        ]
        table = f'\t"{_TABLE}":{{{",".join(lines)}\n\t}}'
        return self._offsets.to_text().removesuffix("\n}") + f",\n{table}\n}}"

    def restore(self, value: object) -> None:
        """Take over the contents of the file."""
        table = value.get(_TABLE, {}) if isinstance(value, dict) else None
        if not isinstance(table, dict) or not all(isinstance(one, int) for one in table.values()):
            raise RemoteProtocolError(f"{_TABLE}: expected offsets by topic@group")
        if self._is_enabled:
            self._offsets.restore(value)
        self._offsets.restore_light(table)
