"""The page in a real Chromium, with the shop in real processes: what a visitor does and sees."""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="no Playwright (pip install playwright)")

from playwright.sync_api import Browser, Locator, expect
from tests.shop import browser as windows
from tests.shop.browser import PHONE, WIDE, RunningTown, Visitor, order_id_of
from tests.shop.patience import patient_story

from pymq import Admin, Message, Producer
from shop.audit import audit
from shop.settings import Settings
from shop.topics import FIGURES_TOPIC, Figure

Visit = Callable[..., Visitor]
SETTINGS = replace(
    Settings(), call_timeout_s=6.0, call_deadline_s=12.0, stale_s=15.0, sqlite_sync="normal"
)
SETTLE_S = 120.0
#: By how many pixels a page has to be scrolled sideways.
TOO_WIDE = "() => document.documentElement.scrollWidth - window.innerWidth"


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    if windows.chromium() is None:
        pytest.skip("no Chromium (Debian: apt-get install chromium)")
    with windows.browser() as running:
        yield running


@pytest.fixture(scope="module")
def town(chrome: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningTown]:
    with patient_story():
        running = RunningTown(tmp_path_factory.mktemp("town"), SETTINGS)
        try:
            running.start()
            yield running
        finally:
            running.close()


@pytest.fixture
def visit(chrome: Browser, town: RunningTown) -> Iterator[Visit]:
    """Have somebody look at the page; at the end no console has complained."""
    visitors: list[Visitor] = []

    def begin(size: tuple[int, int] = WIDE) -> Visitor:
        visitors.append(Visitor(chrome, town.url, size))
        return visitors[-1]

    yield begin
    for one in visitors:
        one.close()


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + windows.TIMEOUT_S
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def test_order_pay_and_cancel(visit: Visit) -> None:
    ann, ben = visit(), visit()
    ann.shows("stock", r"Green tea\s*20.00\s*500")
    ann.order("ann", "tea", 2, "spring-ann-0", "10")
    told = ann.told("35.00 are to be paid")
    first = order_id_of(told)
    ben.shows("orders", rf"{first[-8:]}.*ann.*2 × tea.*confirmed, unpaid")
    ben.shows("stock", r"Green tea\s*20.00\s*498")
    ben.shows("users", r"Ann\s*490.00")
    assert ben.page.locator("#told").inner_text() == ""  # which is Ann's alone

    ben.order("ben", "tea", 1, "spring-eve-0")
    ben.told("refused.*couponId.*spring-eve-0.*a coupon of this user")
    expect(ben.page.get_by_label("coupon")).to_have_value("spring-eve-0")  # to be mended
    ben.order("ben", "tea", 2, money="25.01")
    ben.told("refused.*moneyPaid.*at most the balance, 25.00")
    expect(ben.page.get_by_label("user")).to_have_value("ben")
    assert ann.page.locator("#told").inner_text() in (told, "")  # nothing, after a minute

    ann.row(first).get_by_role("button", name="Pay").click()
    ann.told("payment .* of 35.00 is under way")
    expect(ann.row(first)).to_have_class("paid")
    ann.shows("messages", rf"payTopic\s*paid.*{first}")
    ann.shows("users", r"Ann\s*490.00\s*35")
    expect(ann.row(first).get_by_role("button")).to_have_count(0)

    ann.order("ann", "cup", 3)
    second = order_id_of(ann.told("confirmed"))
    ann.shows("stock", r"Cup\s*12.50\s*77")
    ann.row(second).get_by_role("button", name="Cancel").click()
    ann.told(f"order {second} is cancelled")
    ann.shows("messages", rf"order_cancel.*{second}")
    ann.shows("stock", r"Cup\s*12.50\s*80")
    expect(ann.row(second)).to_have_class("cancelled")
    ann.picture("page")


def test_what_a_step_took_is_given_back(visit: Visit, town: RunningTown, tmp_path: Path) -> None:
    """A coupon is used by somebody else between the check of an order and its step."""
    with town.orders_held("confirm.stock", tmp_path / "go on"):
        slow, quick = visit(), visit()
        before = town.stock("tea")
        slow.fill("eve", "tea", 4, "spring-eve-1")
        quick.fill("eve", "tea", 1, "spring-eve-1")
        slow.page.get_by_role("button", name="Order", exact=True).click(no_wait_after=True)
        wait_until(lambda: town.stock("tea") == before - 4, "the slow one takes his stock")
        quick.page.get_by_role("button", name="Order", exact=True).click()
        quick.told("is confirmed")
    slow.told("refused.*couponId.*spring-eve-1")
    quick.shows("messages", r'order_cancel.*spring-eve-1.*"goodsNumber":4')
    quick.shows("orders", r"eve.*4 × tea.*cancelled, unpaid: couponId")
    quick.shows("stock", rf"Green tea\s*20.00\s*{before - 1}")
    slow.shows("orders", r"eve.*4 × tea.*cancelled, unpaid: couponId")
    slow.picture("compensation")


def test_what_is_typed_and_pressed_stays(visit: Visit) -> None:
    ann, ben = visit(), visit()
    ann.order("ann", "tea")
    order_id = order_id_of(ann.told("confirmed"))
    ann.fill("eve", "cup", 7, "half a cou")
    coupon = ann.page.get_by_label("coupon")
    coupon.press("End")
    ben.order("ben", "tea")
    ben.told("confirmed")
    ann.wait_refreshed(2)
    coupon.press_sequentially("pon")
    for label, value in (("user", "eve"), ("goods", "cup"), ("number", "7")):
        expect(ann.page.get_by_label(label)).to_have_value(value)
    expect(coupon).to_have_value("half a coupon")
    expect(coupon).to_be_focused()

    # The focus of a button stays while rows come above it; so does a button that is held down.
    button = ann.row(order_id).get_by_role("button", name="Cancel")
    button.focus()
    ben.order("ben", "tea")
    ben.told("confirmed")
    ann.wait_refreshed(2)
    ann.shows("orders", "ben.*confirmed")
    expect(button).to_be_focused()
    box = button.bounding_box()
    assert box is not None
    ann.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    ann.page.mouse.down()
    ben.order("ben", "cup")
    ben.told("confirmed")
    ann.wait_refreshed(2)
    ann.page.mouse.up()
    ann.told(f"order {order_id} is cancelled")


def test_a_form_that_is_sent_twice_is_one_order(visit: Visit, town: RunningTown) -> None:
    ann = visit()
    before = {one["orderId"] for one in town.get("orders", "/order")["orders"]}
    ann.fill("ann", "tea", 5)
    ann.page.get_by_role("button", name="Order", exact=True).dblclick()
    ann.told("confirmed")
    ann.wait_refreshed()
    after = {one["orderId"] for one in town.get("orders", "/order")["orders"]}
    assert len(after - before) == 1
    ann.order("ann", "tea", 5)  # a form of the next page: another order
    wait_until(
        lambda: len(town.get("orders", "/order")["orders"]) == len(after) + 1, "the second order"
    )


def test_somebody_is_away(visit: Visit, town: RunningTown) -> None:
    ann = visit()
    ann.away("^$")
    town.kill("broker-a")
    ann.away("The broker broker-a is away now")
    ann.order("ann", "tea")
    order_id = order_id_of(ann.told("confirmed"))
    town.kill("goods")
    ann.away("The service goods does not answer now: its part is")
    ann.shows("stock", "Green tea")  # as it was
    ann.order("ann", "tea")
    ann.told("not now: try again.*goods")
    ann.picture("away")
    town.start_again("goods")
    town.start_again("broker-a")
    ann.away("^$")
    ann.row(order_id).get_by_role("button", name="Pay").click()
    expect(ann.row(order_id)).to_have_class("paid")
    ann.shows("messages", rf"paid.*{order_id}")


def test_the_page_is_away(visit: Visit, town: RunningTown) -> None:
    ann = visit()
    ann.page.get_by_label("coupon").fill("kept")
    town.kill("page")
    ann.away("This page does not answer now")
    town.start_again("page")
    ann.away("^$")
    expect(ann.page.get_by_label("coupon")).to_have_value("kept")
    ann.shows("orders", "ann")
    found = [one for one in ann.complaints if "ERR_CONNECTION" not in one]  # Chromium's own
    ann.complaints[:] = found


def test_a_phone_and_the_keyboard(visit: Visit) -> None:
    ann = visit(PHONE)
    assert ann.page.evaluate(TOO_WIDE) <= 0

    def press_tab_until(label: str) -> None:
        for _ in range(200):
            ann.page.keyboard.press("Tab")
            focused = ann.page.evaluate(
                "() => document.activeElement.labels?.[0]?.innerText"
                " ?? document.activeElement.ariaLabel ?? document.activeElement.innerText"
            )
            if re.match(label, focused or ""):
                return
        raise AssertionError(f"Tab never comes to {label}")

    press_tab_until("user")
    # One letter is enough; of several, those that come late would begin another name.
    ann.page.keyboard.type("e")
    press_tab_until("goods")
    ann.page.keyboard.type("c")
    press_tab_until("number")
    ann.page.keyboard.type("2")
    ann.page.keyboard.press("Enter")
    order_id = order_id_of(ann.told("35.00 are to be paid"))
    ann.shows("orders", r"eve\s*2 × cup")
    press_tab_until(f"Pay order {order_id[-8:]}")
    ann.page.keyboard.press("Enter")
    expect(ann.row(order_id)).to_have_class("paid")
    assert ann.page.evaluate(TOO_WIDE) <= 0
    ann.page.evaluate("scrollTo(0, 0)")
    ann.picture("phone")


def test_the_chart(visit: Visit, town: RunningTown) -> None:
    ann, ben = visit(), visit(PHONE)
    chart = ann.page.locator("#chart")
    expect(ann.page.locator("#figures")).to_contain_text("There are no figures yet")
    town.do(write_figures(town.town.settings.broker))
    expect(chart).to_be_visible()
    expect(ann.page.locator("#figures")).not_to_contain_text("There are no figures yet")

    def title_of(text: str) -> Locator:
        pattern = re.compile(rf"^\d\d:\d\d {text}$")
        return chart.locator("rect title").filter(has_text=pattern)

    for last in ("tea: 59.00", "cup: 103.00", "pot: 108.00"):  # from then on nothing moves
        expect(title_of(last)).to_have_count(1)
    title = title_of("tea: 120.00")
    expect(title).to_have_count(1)
    bar = title.locator("xpath=..").bounding_box()
    whole = chart.bounding_box()
    assert bar is not None and whole is not None
    assert bar["width"] > 5 and bar["height"] > 20
    assert whole["y"] < bar["y"] and bar["y"] + bar["height"] < whole["y"] + whole["height"]
    expect(chart).to_contain_text("cancelled")
    expect(ben.page.locator("#chart")).to_be_visible()
    assert ben.page.evaluate(TOO_WIDE) <= 0
    ann.page.locator("#figures").scroll_into_view_if_needed()
    ann.picture("figures", "#figures")


async def write_figures(broker: str) -> None:
    """Write what the job would write of twenty minutes."""
    now_ms = time.time_ns() // 60_000_000_000 * 60_000
    async with Admin(broker) as admin:
        await admin.topics.create(FIGURES_TOPIC, queue_count=2)
    async with Producer(broker) as producer:
        for number in range(20):
            for goods, price, sold in (
                ("tea", 20, (6, 5, 3, 4, 2)), ("cup", 12, (3, 7, 4)), ("pot", 89, (1, 0, 0, 1))
            ):  # fmt: skip
                paid = sold[number % len(sold)]
                figure = Figure(
                    minute=now_ms - (19 - number) * 60_000, goods_id=goods, paid=paid,
                    turnover=Decimal(price * paid + number), confirmed=paid + number % 2,
                    converted=paid, cancelled=(number + price) % 4, as_of=1,
                )  # fmt: skip
                body = figure.json_text().encode()
                await producer.send(Message(FIGURES_TOPIC, body, keys=goods), sharding_key=goods)


def test_after_all_this_the_audit_is_green(visit: Visit, town: RunningTown) -> None:
    visit()
    end = time.monotonic() + SETTLE_S
    while (report := audit(town.town.settings)).findings and time.monotonic() < end:
        time.sleep(0.3)
    assert not report.findings, "\n".join(map(str, report.findings))
    assert report.orders["paid"] >= 3 and report.orders["cancelled"] >= 3


def test_pictures_of_the_readme_are_there_and_small() -> None:
    folder = windows.SHOWN_IN_README.parent
    words = "".join((folder / name).read_text() for name in ("README.md", "README.zh.md"))
    shown = set(re.findall(r"\(docs/([\w-]+\.png)\)", words))
    assert shown
    for name in shown:
        picture: Path = windows.SHOWN_IN_README / name
        assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size < 150_000
