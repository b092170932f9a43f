"""Binary values between Arrow and numpy."""

import numpy as np
import pyarrow as pa

from pymq.columns.arrow_arrays import as_text, cut_out, cuts


def test_cut_out() -> None:
    buffer = np.frombuffer(b"abcdefghij", np.uint8)
    start, end = np.array([1, 4, 4, 8]), np.array([3, 4, 7, 10])
    assert cut_out(buffer, start, end).to_pylist() == [b"bc", b"", b"efg", b"ij"]
    valid = np.array([True, False, True, True])
    assert cut_out(buffer, start, end, valid=valid).to_pylist() == [b"bc", None, b"efg", b"ij"]
    assert cut_out(buffer, start[:0], end[:0]).to_pylist() == []


def test_as_text_keeps_nulls() -> None:
    values = pa.array([b"a", None, b"\xff"], pa.binary())
    assert as_text(values).to_pylist() == ["a", None, "\ufffd"]


def test_cuts_always_move() -> None:
    assert list(cuts(np.array([5, 1, 1, 9, 1]), rows_max=2, bytes_max=3)) == [
        (0, 1),
        (1, 3),
        (3, 4),
        (4, 5),
    ]
    assert list(cuts(np.array([], np.int64), rows_max=2, bytes_max=3)) == []
