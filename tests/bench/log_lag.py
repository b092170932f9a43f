"""How long after its master a slave has what was appended: seen in the files of both stores.

A sample takes the last record that the master's log has, and looks again and again until the
slave's log has it at the same place. It is late by the time that the sampler itself waits for a
CPU, so samples are upper bounds. The stores are those of pymq or RocketMQ.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

_SIZE_MAGIC = struct.Struct(">II")
_BLANK = 0xCBD43194
_READ_BYTES = 1 << 18
_LOOK_S = 0.0001
#: A sample that takes longer is given up, and counts as this long.
_GIVE_UP_S = 5.0


class LagSampler:
    """Samples in a thread between enter and exit.

    Args:
        master, slave: directories of the stores.
        since: a physical offset at which a record begins, not long ago.
        interval_s: between samples.

    Attributes:
        lags_s: one for each sample.
        late_s: how late the sampler itself woke up for each: what the machine does to any process.
    """

    def __init__(self, master: Path, slave: Path, since: int, *, interval_s: float = 0.01) -> None:
        self._master, self._slave = _Log(master), _Log(slave)
        self._at = since
        self._interval_s = interval_s
        self._is_over = False
        self._thread = threading.Thread(target=self._run)
        self.lags_s: list[float] = []
        self.late_s: list[float] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over = True
        self._thread.join()
        self._master.close()
        self._slave.close()

    def _run(self) -> None:
        self._last_record()  # what was written before is not sampled
        while not self._is_over:
            due_s = time.perf_counter() + self._interval_s
            time.sleep(self._interval_s)
            self.late_s.append(time.perf_counter() - due_s)
            found = self._last_record()
            if found is None:
                continue
            seen_s = time.perf_counter()
            at, head = found
            while (waited_s := time.perf_counter() - seen_s) < _GIVE_UP_S:
                if self._slave.read(at, len(head)) == head:
                    break
                time.sleep(_LOOK_S)
            self.lags_s.append(waited_s)

    def _last_record(self) -> tuple[int, bytes] | None:
        """Return (physical offset, head) of the last record; None: none since the last time."""
        found = None
        while True:
            data = self._master.read(self._at, _READ_BYTES)
            at = 0
            while len(data) - at >= _SIZE_MAGIC.size:
                size, magic = _SIZE_MAGIC.unpack_from(data, at)
                if not size or not magic:
                    return found
                if magic != _BLANK:
                    found = self._at + at, data[at : at + _SIZE_MAGIC.size]
                at += size
            if not at:
                return found
            self._at += at


def percentile_ms(times_s: Sequence[float], percent: float) -> float:
    """Return the time that this share of some does not exceed."""
    ordered = sorted(times_s)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] * 1000


class _Log:
    """Reads from the files of a log; they have one size, which those that exist tell."""

    def __init__(self, store: Path) -> None:
        self._directory = store / "commitlog"
        self._file_bytes = next(self._directory.iterdir()).stat().st_size
        self._opened: dict[int, int] = {}

    def read(self, physical_offset: int, size: int) -> bytes:
        """Return bytes of one file; none if it is not there yet."""
        first = physical_offset - physical_offset % self._file_bytes
        fd = self._opened.get(first)
        if fd is None:
            try:
                fd = os.open(self._directory / f"{first:020d}", os.O_RDONLY)
            except FileNotFoundError:
                return b""
            self._opened[first] = fd
        return os.pread(fd, size, physical_offset - first)

    def close(self) -> None:
        """Close the files."""
        for fd in self._opened.values():
            os.close(fd)
