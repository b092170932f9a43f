"""Figures as a chart: an SVG, made here, without a library and without scripts.

Above: the turnover of each minute, in bars of goods; the line is the conversion, the share of the
orders confirmed in the minute that are paid. Below: cancelled orders of each minute.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from html import escape

from shop.money import ZERO, text
from shop.topics import Figure

#: What is drawn: the newest minutes, the goods with most turnover, the beginning of their ids.
MINUTES = 30
GOODS = 6
NAME_LENGTH = 18
MINUTE_MS = 60_000

WIDTH, HEIGHT = 960, 300
LEFT, RIGHT, TOP, TURNOVER, CANCELLED = 62, 46, 34, 170, 44
BASE = TOP + TURNOVER  # of the bars of turnover
ROOF = BASE + 12  # of those of cancelled orders, which hang down
COLOURS = ("#3566a5", "#d98c2b", "#5a9e5d", "#8d63a8", "#4aa5a8", "#b8a12f")
OTHERS_COLOUR, CANCELLED_COLOUR, LINE_COLOUR = "#999", "#a33", "#222"
OTHERS = "others"


@dataclass(slots=True)
class Minute:
    """The sums of a minute."""

    start_ms: int
    turnover: dict[str, Decimal] = field(default_factory=lambda: defaultdict(lambda: ZERO))
    cancelled: int = 0
    confirmed: int = 0
    converted: int = 0

    @property
    def total(self) -> Decimal:
        """Of all goods."""
        return sum(self.turnover.values(), ZERO)

    @property
    def conversion(self) -> float | None:
        """0 to 1; ``None``: no order was confirmed."""
        return self.converted / self.confirmed if self.confirmed else None

    @property
    def clock(self) -> str:
        """When it began, in UTC; empty for a time that nobody can mean."""
        try:
            return f"{datetime.fromtimestamp(self.start_ms / 1000, UTC):%H:%M}"
        except (ValueError, OverflowError, OSError):
            return ""


def minutes_of(figures: Iterable[Figure], count: int = MINUTES) -> list[Minute]:
    """Add figures up, for each minute from the first to the newest one, also where nothing was.

    Args:
        figures: of any minutes.
        count: at most this many, the newest.
    """
    found: dict[int, Minute] = {}
    for figure in figures:
        minute = found.setdefault(figure.minute, Minute(figure.minute))
        if figure.turnover:
            minute.turnover[figure.goods_id] += figure.turnover
        minute.cancelled += figure.cancelled
        minute.confirmed += figure.confirmed
        minute.converted += figure.converted
    if not found:
        return []
    last = max(found)
    first = max(min(found), last - (count - 1) * MINUTE_MS)
    return [found.get(start) or Minute(start) for start in range(first, last + 1, MINUTE_MS)]


def colours_of(minutes: Sequence[Minute]) -> dict[str, str]:
    """Return goods, those with most turnover first, and their colours."""
    totals: dict[str, Decimal] = defaultdict(lambda: ZERO)
    for minute in minutes:
        for goods, turnover in minute.turnover.items():
            totals[goods] += turnover
    ordered = sorted(totals, key=lambda goods: (-totals[goods], goods))
    return dict(zip(ordered[:GOODS], COLOURS, strict=False))


def ceiling(value: Decimal) -> Decimal:
    """Return the end of an axis: 1, 2 or 5 times a power of ten, not below the value."""
    if value <= 0:
        return Decimal(1)
    unit = Decimal(1).scaleb(value.adjusted())
    return next(step * unit for step in map(Decimal, (1, 2, 5, 10)) if value <= step * unit)


def svg(figures: Iterable[Figure]) -> str:
    """Return the chart of the newest minutes; without figures, nothing."""
    minutes = minutes_of(figures)
    if not minutes:
        return ""
    colours = colours_of(minutes)
    top = ceiling(max(minute.total for minute in minutes))
    most = max(1, *(minute.cancelled for minute in minutes))
    step = (WIDTH - LEFT - RIGHT) / len(minutes)
    parts = [
        f'<svg id="chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'role="img" font-family="system-ui, sans-serif" font-size="11" fill="#333">',
        "<title>Turnover, conversion and cancelled orders of each minute</title>",
        *_axes(top, most),
        *_legend(colours, has_others=any(minute.turnover.keys() - colours for minute in minutes)),
    ]
    for number, minute in enumerate(minutes):
        parts += _bars(minute, LEFT + number * step, step, top, most, colours)
        if number % -(-len(minutes) // 10) == 0:
            middle = LEFT + (number + 0.5) * step
            parts.append(_text(middle, HEIGHT - 4, minute.clock, "middle"))
    parts += [*_line(minutes, step), "</svg>"]
    return "\n".join(parts)


def _axes(top: Decimal, most: int) -> Iterable[str]:
    for part in (0, 0.5, 1):
        y = BASE - part * TURNOVER
        yield f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
        amount = top * Decimal(part)
        yield _text(LEFT - 5, y + 4, f"{amount.normalize():f}" if amount else "0", "end")
        yield _text(WIDTH - RIGHT + 5, y + 4, f"{part:.0%}")
    yield f'<path d="M{LEFT} {ROOF}H{WIDTH - RIGHT}" stroke="#ddd"/>'
    yield _text(LEFT - 5, ROOF + CANCELLED, str(most), "end")


def _legend(colours: dict[str, str], *, has_others: bool) -> Iterable[str]:
    shown = [(_short(goods), colour) for goods, colour in colours.items()]
    shown += [(OTHERS, OTHERS_COLOUR)] if has_others else []
    x: float = LEFT
    for name, colour in [*shown, ("cancelled", CANCELLED_COLOUR), ("conversion", LINE_COLOUR)]:
        yield f'<rect x="{x:.0f}" y="8" width="10" height="10" fill="{colour}"/>'
        yield _text(x + 14, 17, name)
        x += 26 + 6.2 * len(name)


def _bars(
    minute: Minute, x: float, step: float, top: Decimal, most: int, colours: dict[str, str]
) -> Iterable[str]:
    width = max(step * 0.8, 1.0)
    x += (step - width) / 2
    stack = [
        (goods, minute.turnover[goods], colour)
        for goods, colour in colours.items()
        if goods in minute.turnover
    ]
    others = sum((sum_ for goods, sum_ in minute.turnover.items() if goods not in colours), ZERO)
    if others:
        stack.append((OTHERS, others, OTHERS_COLOUR))
    y = float(BASE)
    for goods, turnover, colour in stack:
        height = float(turnover / top) * TURNOVER
        y -= height
        title = f"{minute.clock} {_short(goods)}: {text(turnover)}"
        yield _bar(x, y, width, height, colour, title)
    if minute.cancelled:
        height = minute.cancelled / most * CANCELLED
        title = f"{minute.clock}: {minute.cancelled} cancelled"
        yield _bar(x, ROOF, width, height, CANCELLED_COLOUR, title)


def _line(minutes: Sequence[Minute], step: float) -> Iterable[str]:
    points = [
        (LEFT + (number + 0.5) * step, BASE - minute.conversion * TURNOVER, minute)
        for number, minute in enumerate(minutes)
        if minute.conversion is not None
    ]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
    yield f'<polyline points="{path}" fill="none" stroke="{LINE_COLOUR}" stroke-width="1.5"/>'
    for x, y, minute in points:
        title = f"{minute.clock}: {minute.converted} of {minute.confirmed} confirmed orders paid"
        yield (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{LINE_COLOUR}">'
            f"<title>{escape(title)}</title></circle>"
        )


def _bar(x: float, y: float, width: float, height: float, colour: str, title: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'fill="{colour}"><title>{escape(title)}</title></rect>'
    )


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _short(name: str) -> str:
    """Return the beginning of a name, without what does not belong into a line of XML."""
    name = "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in name)
    return name if len(name) <= NAME_LENGTH else f"{name[:NAME_LENGTH - 1]}…"
