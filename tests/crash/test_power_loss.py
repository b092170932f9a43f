"""The power goes at a random operation, and the disk keeps any part of what was not flushed.

SYNC_FLUSH: everything that a finished flush covered is there. ASYNC_FLUSH: a suffix may be lost,
never a hole. Between two losses of power processes die and come back on the same disk: what one
left in the page cache, the next must not take for durable.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from tests.crash.random_scripts import random_script
from tests.crash.session import Session, recover

from pymq.store import FlushMode
from pymq.testing.faulty_files import Crashed, Fault, FaultyFiles, Keep
from pymq.testing.lost_power import Disk

pytestmark = pytest.mark.crash

STEPS = 24
#: Limits of the operation at which the power goes: those of a start matter as much as others.
OPERATIONS = (20, 80, 250, 250)
DEATHS_MAX = 2


def random_fault(chance: random.Random) -> Fault:
    at = chance.randint(1, chance.choice(OPERATIONS))
    return Fault(at=at, keep=chance.choice(list(Keep)))


def lose_power(home: Path, seed: int) -> list[str]:
    """Work until the power goes, once or twice; return what is wrong then.

    Args:
        home: an empty directory.
        seed: of everything.
    """
    chance = random.Random(seed)
    session = Session(
        chance.choice(list(FlushMode)),
        segment_bytes=chance.choice((1024, 2000, 9000)),
        queue_file_bytes=chance.choice((20, 100, 400)),
        queue_extension=chance.random() < 0.4,
        queue_extension_file_bytes=chance.choice((24, 100, 400)),
    )
    complaints: list[str] = []
    place, lost_power = home / "0", False
    place.mkdir()
    for number in range(1, chance.choice((1, 1, 2)) + 1):
        disk = Disk(place)
        for _ in range(chance.randint(0, DEATHS_MAX) + 1):
            files = FaultyFiles(random_fault(chance), disk=disk)
            try:
                session.start(place / "store", files)
                if lost_power:
                    session.forget_lost()
                    lost_power = False
                complaints += session.check()
                random_script(chance.randrange(1 << 31), STEPS)(session)
            except Crashed:
                pass
            session.store = None
            files.abandon()
        place, lost_power = home / str(number), True
        disk.lose_power(chance, place)
    complaints += recover(session, place / "store", FaultyFiles(), lost_power=True)
    return complaints


def test_what_was_flushed_is_there(memory_path: Path, seed: int, crash_rounds: int) -> None:
    for number in range(max(120, 10 * crash_rounds)):
        home = memory_path / "home"
        home.mkdir()
        one = seed + number
        try:
            complaints = lose_power(home, one)
        except BaseException as error:
            error.add_note(f"lose_power(home, {one})")
            raise
        assert not complaints, "\n".join([f"lose_power(home, {one})", *complaints])
        shutil.rmtree(home)
