"""Buffers that are used again."""

import numpy as np

from pymq.net.buffers import BufferPool


def test_a_buffer_is_used_again_once_nobody_holds_it() -> None:
    pool = BufferPool(count_max=2)
    first = pool.take(100)
    part = np.frombuffer(first[10:20], np.uint8)
    memory = first.obj
    del first
    assert pool.take(100).obj is not memory  # part of it is still held
    del part
    assert pool.take(2000).obj is memory


def test_each_that_is_held_is_another() -> None:
    pool = BufferPool(count_max=2)
    views = [pool.take(10) for _ in range(5)]
    for number, view in enumerate(views):
        view[:] = bytes([number]) * 10
    assert [view[0] for view in views] == list(range(5))


def test_a_small_one_makes_room_for_a_large_one() -> None:
    pool = BufferPool(count_max=1)
    small = pool.take(10).obj
    large = pool.take(3 << 20).obj
    assert large is not small
    assert pool.take(10).obj is large


def test_what_is_not_used_is_given_back() -> None:
    pool = BufferPool(count_max=4)
    memory = pool.take(10).obj
    pool.drop_unused()
    assert pool.take(10).obj is memory
    pool.drop_unused()
    pool.drop_unused()
    assert pool.take(10).obj is not memory


def test_a_pool_of_none_keeps_none() -> None:
    pool = BufferPool(count_max=0)
    memory = pool.take(10).obj
    assert pool.take(10).obj is not memory
