"""Ctrl-C at each moment of a call at which Python lets handlers of signals run."""

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

#: They are called when objects are freed, and what is raised there is only printed.
_DEAF = ("_weakrefset.py", "weakref.py", "warnings.py")


def _is_deaf(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.endswith(_DEAF):
            return True
        frame = frame.f_back
    return False


class Moments:
    """Interrupts a call in this thread: each time a moment later, until it is not interrupted.

    Handlers of signals run when a function in Python begins and when one in C has returned, so what
    they raise comes there.
    """

    def __init__(self) -> None:
        self.count = 0
        self._is_over = False

    def __iter__(self) -> Iterator[int]:
        while not self._is_over:
            yield self.count
            self.count += 1

    def call(self, work: Callable[[], object]) -> bool:
        """Call something; was it interrupted?"""
        left = [self.count + 1]

        def look(frame: FrameType, event: str, function: Any) -> None:
            if event not in ("call", "c_return") or function is sys.setprofile or _is_deaf(frame):
                return
            left[0] -= 1
            if not left[0]:
                sys.setprofile(None)
                raise KeyboardInterrupt

        sys.setprofile(look)
        try:
            work()
        except KeyboardInterrupt:
            return True
        finally:
            sys.setprofile(None)
            self._is_over = left[0] > 0
        return False
