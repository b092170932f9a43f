"""The chart of the page: well-formed SVG, the right heights, and nobody's markup in it."""

import xml.etree.ElementTree as ElementTree
from decimal import Decimal

import pytest

from shop.page import chart
from shop.page.figures import Figures
from shop.topics import Figure

MINUTE_MS = 60_000
START = 29_000_000 * MINUTE_MS
SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</text></svg><script>alert('&1')</script>\x00\n"


def figure(minute: int = 0, goods: str = "tea", turnover: str = "0.00", **counts: int) -> Figure:
    return Figure(
        minute=START + minute * MINUTE_MS, goods_id=goods, turnover=Decimal(turnover), **counts
    )


def drawn(*figures: Figure) -> ElementTree.Element:
    return ElementTree.fromstring(chart.svg(figures))


def bars(svg: ElementTree.Element) -> dict[str, float]:
    """Return the heights of the bars, by what they say."""
    return {
        title.text or "": float(bar.get("height", "nan"))
        for bar in svg.iter(f"{SVG}rect")
        if (title := bar.find(f"{SVG}title")) is not None
    }


def texts(svg: ElementTree.Element) -> list[str]:
    return [one.text or "" for one in svg.iter(f"{SVG}text")]


def test_no_figures() -> None:
    assert chart.svg([]) == ""


def test_one_figure_in_which_nothing_was() -> None:
    svg = drawn(figure())
    assert bars(svg) == {}
    assert list(svg.iter(f"{SVG}circle")) == []


def test_one_minute() -> None:
    svg = drawn(figure(turnover="50.00", confirmed=4, converted=1, cancelled=3, paid=1))
    assert bars(svg) == {
        "21:20 tea: 50.00": chart.TURNOVER,
        "21:20: 3 cancelled": chart.CANCELLED,
    }
    (point,) = svg.iter(f"{SVG}circle")
    assert float(point.get("cy", "nan")) == pytest.approx(chart.BASE - chart.TURNOVER / 4, abs=0.1)
    assert "1 of 4 confirmed orders paid" in (point[0].text or "")
    assert "50" in texts(svg)


def test_minutes_without_figures_are_there_and_old_ones_are_not() -> None:
    minutes = chart.minutes_of([figure(0, cancelled=1), figure(3, cancelled=2)])
    assert [minute.cancelled for minute in minutes] == [1, 0, 0, 2]
    assert len(chart.minutes_of([figure(0), figure(10**6)])) == chart.MINUTES


def test_many_goods() -> None:
    """Those with most turnover have a colour, the others one in common; nothing is lost."""
    goods = [figure(goods=f"goods-{number}", turnover=f"{number}.00") for number in range(1, 21)]
    svg = drawn(*goods)
    heights = bars(svg)
    assert len(heights) == chart.GOODS + 1
    assert f"21:20 others: {sum(range(1, 15))}.00" in heights
    assert sum(heights.values()) == pytest.approx(chart.TURNOVER * 210 / 500, abs=0.5)
    assert texts(svg).count("goods-20") == 1 and "goods-14" not in texts(svg)


def test_hostile_goods_are_text() -> None:
    svg = drawn(figure(goods=HOSTILE, turnover="1.00"))
    assert {one.tag.removeprefix(SVG) for one in svg.iter()} <= {
        *("svg", "title", "path", "text", "rect", "polyline", "circle"),
    }
    assert "</text></svg><scr…" in texts(svg)


@pytest.mark.parametrize(
    ("value", "end"),
    [("0", 1), ("0.07", "0.1"), ("1", 1), ("1.01", 2), ("49.99", 50), ("50.01", 100), ("700", 1e3)],
)
def test_the_end_of_an_axis(value: str, end: object) -> None:
    assert chart.ceiling(Decimal(value)) == Decimal(str(end))


def test_a_time_that_nobody_can_mean() -> None:
    late = Figure(minute=MINUTE_MS * 10**15, goods_id="tea", turnover=Decimal(1))
    assert ElementTree.fromstring(chart.svg([late])) is not None


def test_the_latest_figure_counts_in_whatever_order_they_come() -> None:
    figures = Figures(minutes_max=2)
    bodies = [
        figure(minute, as_of=as_of, paid=as_of).json_text().encode()
        for minute, as_of in ((0, 1), (1, 7), (1, 5), (1, 7), (2, 9))
    ]
    for body in bodies:
        figures.keep(body)
    assert [(one.minute, one.paid) for one in figures.all()] == [
        (START + MINUTE_MS, 7),
        (START + 2 * MINUTE_MS, 9),
    ]
    for bad in (b"", b"\xff", b"[]", b'{"minute": 1, "goodsId": "tea"}'):
        with pytest.raises(ValueError):
            figures.keep(bad)
