"""The text of the file of offsets, of which only what has changed is made again."""

from collections.abc import Collection
from typing import Any

from pymq.broker.state.offset_places import Table, joined
from pymq.protocol import fastjson


class OffsetTexts:
    """What the file says of each (topic, group), as long as that is true.

    Every few seconds some of ten thousand groups have moved: only they are written again.
    """

    def __init__(self) -> None:
        self._texts: dict[tuple[str, str], str] = {}

    def forget(self, key: tuple[str, str]) -> None:
        """Have a (topic, group) written again."""
        self._texts.pop(key, None)

    def whole(
        self, content: dict[str, Any], offsets: Table, keys: Collection[tuple[str, str]]
    ) -> str:
        """Return the text of a file: its content, and in its first, empty map some offsets."""
        rest = fastjson.dump_pretty(content)
        if not keys:
            return rest
        texts = self._texts
        for key in keys:
            if key not in texts:
                text = fastjson.dump_pretty(joined({key: offsets[key]}))
                texts[key] = text[2:-2].replace("\n", "\n\t")  # without its own braces
        whole = ",\n\t".join([texts[key] for key in keys])
        return rest.replace("{}", f"{{\n\t{whole}\n\t}}", 1)
