"""Messages put and read by day, for the tools that show yesterday and today.

Source: RocketMQ BrokerStats.
"""

from datetime import date, datetime


class DayTotals:
    """Remembers the totals as they were at the last two midnights, local time.

    Totals are since the store was opened: a midnight before that counts as 0.

    Attributes:
        put_yesterday, put_today: messages stored up to yesterday's and to today's first moment.
        get_yesterday, get_today: messages read, likewise.
    """

    def __init__(self, now_ms: int) -> None:
        self._day = _day_of(now_ms)
        self.put_yesterday = self.put_today = 0
        self.get_yesterday = self.get_today = 0

    def step(self, now_ms: int, *, put_count: int, get_count: int) -> int:
        """Note the present totals when a new day has begun; return how many days did."""
        day = _day_of(now_ms)
        days = (day - self._day).days
        if days <= 0:  # also after the clock was set back
            return 0
        self._day = day
        # Nothing ran at the midnights between, if there were any: all of that was yesterday.
        self.put_yesterday, self.put_today = self.put_today, put_count
        self.get_yesterday, self.get_today = self.get_today, get_count
        return days


def _day_of(now_ms: int) -> date:
    return datetime.fromtimestamp(now_ms / 1000).date()
