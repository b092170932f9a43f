"""Havoc: processes are killed and started again, while customers order."""

import asyncio
import random
from collections import Counter

from shop.story.town import Town

PAUSE_S = (0.5, 2.5)
DOWN_S = (0.0, 1.5)


class Havoc:
    """Kills one process after the other.

    Args:
        town: whose.
        dice: decides which, and when.
    """

    def __init__(self, town: Town, dice: random.Random) -> None:
        self.kills: Counter[str] = Counter()
        self._town = town
        self._dice = dice
        self._over = asyncio.Event()

    def end(self) -> None:
        """Kill nothing more."""
        self._over.set()

    async def wreak(self, kills: int) -> None:
        """Kill that many processes, unless ``end`` comes first; all run again when this returns."""
        for _ in range(kills):
            if await self._is_over(self._dice.uniform(*PAUSE_S)):
                return
            victim = self._dice.choice(list(self._town.members.values()))
            self.kills[victim.name] += 1
            await victim.kill()
            await asyncio.sleep(self._dice.uniform(*DOWN_S))
            await victim.start()
            await victim.wait_ready()

    async def _is_over(self, within_s: float) -> bool:
        try:
            async with asyncio.timeout(within_s):
                await self._over.wait()
        except TimeoutError:
            return False
        return True
