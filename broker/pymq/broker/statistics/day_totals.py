"""Messages stored and read per day, for tools that show yesterday and today.

Source: RocketMQ BrokerStats.
"""

from datetime import date, datetime


class DayTotals:
    """Remembers the totals at the last two midnights, local time.

    Totals count from the opening of the store: at a midnight before that they are 0.

    Attributes:
        put_yesterday, put_today: messages stored before yesterday and before today began.
        get_yesterday, get_today: messages read, likewise.
    """

    def __init__(self, now_ms: int) -> None:
        self._day = _day_of(now_ms)
        self.put_yesterday = self.put_today = 0
        self.get_yesterday = self.get_today = 0

    def step(self, now_ms: int, *, put_count: int, get_count: int) -> int:
        """Record the current totals if a new day has begun; return the number of new days."""
        day = _day_of(now_ms)
        days = (day - self._day).days
        if days < -1:  # the clock was far ahead, and is right again: this day is not over
            self._day = day
        if days <= 0:  # also after the clock was set back
            return 0
        self._day = day
        # Nothing ran at the midnights between, if there were any: count all of it as yesterday.
        self.put_yesterday, self.put_today = self.put_today, put_count
        self.get_yesterday, self.get_today = self.get_today, get_count
        return days


def _day_of(now_ms: int) -> date:
    return datetime.fromtimestamp(now_ms / 1000).date()
