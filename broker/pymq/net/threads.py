"""What blocks, called in a thread of its own: names are looked up, small files are written.

Not in the event loop's executor, which takes no work any more when the interpreter exits: clients
of ``pymq.blocking`` that nobody closed are closed just then, and have to end their work.
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


def in_thread(name: str, function: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
    """Call a function in a thread, which does not keep the process alive if it hangs.

    Args:
        name: of the thread.
        function, arguments: what to call; it sees the context variables of the caller.

    Returns:
        Its result, for the running loop. Who cancels this does not wait any more; the thread goes
        on.

    Raises:
        RuntimeError: the system allows no more threads.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[T] = loop.create_future()

    def tell(end: Callable[[], None]) -> None:
        if not ended.done():
            end()

    def work() -> None:
        try:
            end = partial(ended.set_result, function(*arguments))
        except StopIteration as error:  # which no future takes
            end = partial(ended.set_exception, RuntimeError(f"{name}: it raised {error!r}"))
        except BaseException as error:
            end = partial(ended.set_exception, error)
        try:
            loop.call_soon_threadsafe(tell, end)
        except RuntimeError:
            pass  # The loop has ended, and with it whoever waited.

    context = contextvars.copy_context()
    try:
        threading.Thread(target=context.run, args=(work,), name=name, daemon=True).start()
    except RuntimeError:
        if threading.main_thread().is_alive():
            raise  # There are too many.
        context.run(work)  # Python 3.12 starts none while the interpreter exits.
    return ended
