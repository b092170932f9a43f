"""What happens in a child made by ``fork``."""

import json
import os
import select
import signal
from collections.abc import Callable
from typing import Any

DEADLINE_S = 120.0


def in_child(work: Callable[[], object]) -> Any:
    """Return what ``work`` returns in a child made by fork, or the text of its exception."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            try:
                result = work()
            except BaseException as error:
                result = f"{type(error).__name__}: {error}"
            os.write(writing, json.dumps(result).encode())
        finally:
            os._exit(0)
    os.close(writing)
    try:
        poll = select.poll()  # unlike ``select`` for files of any number
        poll.register(reading, select.POLLIN)
        if not poll.poll(DEADLINE_S * 1000):
            os.kill(pid, signal.SIGKILL)
        with open(reading, "rb") as pipe:
            answer = pipe.read()
    finally:
        os.waitpid(pid, 0)
    assert answer, "the child hangs"
    return json.loads(answer)
