"""What a process of servers asks of the system before it begins."""

import logging
import resource

import pytest

from pymq.cli import running

SOFT = 256
NOFILE = resource.RLIMIT_NOFILE


class Limits:
    """The limits of open files of a system.

    Attributes:
        soft: what counts now.
    """

    def __init__(self, hard: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.soft, self._hard, self._most = SOFT, hard, most
        monkeypatch.setattr(resource, "getrlimit", lambda which: (self.soft, self._hard))
        monkeypatch.setattr(resource, "setrlimit", self._set)

    def _set(self, which: int, limits: tuple[int, int]) -> None:
        wanted, hard = limits
        assert which == NOFILE and hard == self._hard
        if not SOFT < wanted <= self._most:
            raise ValueError("current limit exceeds maximum limit")
        self.soft = wanted


@pytest.mark.parametrize(
    ("hard", "most", "granted"),
    [
        (4096, 4096, 4096),
        (resource.RLIM_INFINITY, 10_240, 10_240),
        (resource.RLIM_INFINITY, 245_760, 65_536),
        (2**63 - 1, 10_240, 10_240),
    ],
    ids=["Linux", "macOS", "macOS with more", "macOS as Python reports it"],
)
def test_as_many_files_as_the_system_grants(
    hard: int, most: int, granted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits(hard, most, monkeypatch)
    running.raise_file_limit()
    assert limits.soft == granted


def test_a_limit_that_stays_low_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limits = Limits(resource.RLIM_INFINITY, SOFT, monkeypatch)
    with caplog.at_level(logging.WARNING):
        running.raise_file_limit()
    assert limits.soft == SOFT
    assert "open files stays at 256: current limit exceeds" in caplog.text
