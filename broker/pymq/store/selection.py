"""Which messages of a queue a read returns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pymq.store.queues.queue_extension import BitMapTest
from pymq.store.verdicts import Verdicts

#: Gets the encoded properties of messages; says of each whether it is selected, or of the first of
#: them, at least one: the others would take too long now.
Matches: TypeAlias = Callable[[Sequence[bytes]], Sequence[bool]]


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Tests that a message has to pass, all of them.

    Attributes:
        tag_codes: int64, sorted: the codes of the tags that are wanted; None: any.
        matches: decides for each of some messages by its encoded properties; None: all pass. It
            must not raise.
        bit_maps: by the bit maps in the queue's extension, where there are some; None: all pass.
        verdicts: what ``matches`` decided earlier, without ``tag_codes``; None if it does not
            always decide the same.
        weight: how many comparisons ``matches`` may need for a message.

    Source: RocketMQ MessageFilter.
    """

    tag_codes: npt.NDArray[np.int64] | None = None
    matches: Matches | None = None
    bit_maps: BitMapTest | None = None
    verdicts: Verdicts | None = None
    weight: int = 1

    @property
    def is_everything(self) -> bool:
        """Is there no test?"""
        return self.tag_codes is None and self.matches is None and self.bit_maps is None


#: No test.
EVERYTHING = Selection()
