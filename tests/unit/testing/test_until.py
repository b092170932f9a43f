"""``wait_until``, in threads and in coroutines."""

import asyncio
import itertools
import time

import pytest

from pymq.testing import wait_until, wait_until_async


def test_what_the_condition_returns_is_returned() -> None:
    numbers = itertools.count()
    assert wait_until(lambda: next(numbers) > 2 and "found") == "found"


def test_what_never_comes_is_an_assertion_with_the_last_value() -> None:
    began = time.monotonic()
    with pytest.raises(AssertionError, match=r"not so after 0.05 s: .* last returned \[\]"):
        wait_until(list, timeout_s=0.05)
    assert time.monotonic() - began >= 0.05


def test_in_a_coroutine_the_loop_goes_on() -> None:
    async def main() -> None:
        happened = asyncio.Event()
        asyncio.get_running_loop().call_later(0.05, happened.set)
        assert await wait_until_async(happened.is_set)

        async def asked() -> str:
            await asyncio.sleep(0)
            return "answer"

        assert await wait_until_async(asked) == "answer"
        with pytest.raises(AssertionError, match="last returned None"):
            await wait_until_async(lambda: None, timeout_s=0.05)

    asyncio.run(main())
