"""Binary values between Arrow and numpy."""

import numpy as np
import pyarrow as pa

from pymq.columns.arrow_arrays import as_text, contents, cut_out, cuts


def beneath(values: list[str], valid: list[bool]) -> pa.Array:
    """Return binary values of which those that are not valid are null, and still there."""
    bits = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(
        pa.binary(), len(values), [bits, *pa.array(values, pa.binary()).buffers()[1:]]
    )


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


def test_what_lies_beneath_a_null_is_no_content() -> None:
    array = beneath(["ab", "hidden", "c", "hidden"], [True, False, True, False])
    for part, text, start in ((array, b"abc", [0, 2, 2, 3, 3]), (array[1:3], b"c", [0, 0, 1])):
        found, borders = contents(part)
        assert (found.tobytes(), borders.tolist()) == (text, start)
