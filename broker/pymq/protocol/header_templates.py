"""Headers that come again and again, but for a few values.

What stays the same is a template: its fields are parsed once, in the usual way, and then it is
enough to compare the rest and cut the values out, at a third of the cost. Whatever does not look
exactly like that is left to ``command.decode_header``.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

#: Templates that are kept, of all connections.
TEMPLATE_COUNT_MAX = 1024

#: What the headers of one template have in common, in whatever form.
Shape: TypeAlias = tuple[bytes, ...]
_Header = TypeVar("_Header")


@dataclass(frozen=True, slots=True)
class Template(Generic[_Header]):
    """What many headers have in common.

    Attributes:
        pattern: matches such a header; its groups are the values.
        header: the fields; those that vary are of some request.
    """

    pattern: re.Pattern[bytes]
    header: _Header


class TemplateLearner(Generic[_Header]):
    """Finds the template of one kind of requests of one connection.

    Args:
        shape_of: returns the shape of a header; None if it is not one of this kind.
        template_of: returns the template of a shape, if there may be one.

    Attributes:
        template: the latest; None: not known yet.
    """

    __slots__ = ("_last_shape", "_shape_of", "_template_of", "template")

    def __init__(
        self,
        shape_of: Callable[[bytes], Shape | None],
        template_of: Callable[[Shape], Template[_Header] | None],
    ) -> None:
        self._shape_of = shape_of
        self._template_of = template_of
        self._last_shape: Shape | None = None
        self.template: Template[_Header] | None = None

    def learn(self, header: bytes) -> bool:
        """Take over the template of a header; True if there is another one now.

        Only what comes twice in a row, among those of its kind, is worth it.
        """
        shape = self._shape_of(header)
        if shape is None:
            return False
        if shape != self._last_shape:
            self._last_shape = shape
            return False
        template = self._template_of(shape)
        if template is None or template is self.template:
            return False
        self.template = template
        return True
