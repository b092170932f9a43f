"""Message ids for a column of rows."""

from pymq.columns.unique_key_arrays import UniqueKeyArrays


def test_ids_are_counted_up_and_never_go_back() -> None:
    made = UniqueKeyArrays(address=bytes((127, 0, 0, 1)), pid=0x49B5, salt=b"\x30\x94\x6e\x09")

    def take(count: int, month_ms: int) -> list[int]:
        texts = made.take(count, month_ms=month_ms).to_pylist()
        assert all(t[:9] == b"UNIQ_KEY\x01" and t[-1:] == b"\x02" and len(t) == 42 for t in texts)
        assert {t[9:29] for t in texts} == {b"7F00000149B530946E09"}
        return [int(t[29:41], 16) for t in texts]

    numbers = take(70_000, 5) + take(10, 5) + take(10, 4) + take(3, 1000)
    assert numbers[0] == 5 << 16 and numbers[-3] == 1000 << 16
    assert len(set(numbers)) == len(numbers) and numbers == sorted(numbers)
