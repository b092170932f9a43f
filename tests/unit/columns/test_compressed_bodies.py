"""How rows with compressed bodies are cut, and what that costs."""

import zlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.unit.connector.fake import record

from pymq.columns.compressed_bodies import Rows, unpacked
from pymq.protocol.record_batch import read_columns


class Counted:
    """An array that counts how often a part of it is taken."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.count = 0

    def __getitem__(self, rows: Rows) -> Any:
        self.count += 1
        return self.array[rows]


@pytest.mark.parametrize("rows", [slice(0, 100), np.arange(100)], ids=["all", "chosen"])
def test_rows_are_chosen_once(rows: Rows) -> None:
    """Choosing rows by their numbers copies them: for each body that would be quadratic."""
    body = zlib.compress(b"x" * 1000)
    stored = b"".join(record(body, sys_flag=1, queue_offset=n) for n in range(100))
    columns = read_columns(stored)
    flags = Counted(columns.sys_flag)
    counted: Any = SimpleNamespace(
        buffer=columns.buffer,
        sys_flag=flags,
        body_start=columns.body_start,
        body_end=columns.body_end,
    )
    parts = list(unpacked(counted, rows, bytes_max=10_000))
    assert [len(part.plain) for part in parts] == [10] * 10
    assert flags.count == 1
