"""Reports in a real browser: they draw, answer to pointer and keyboard, follow the scheme, print, and fetch nothing."""

import re
import shutil

import pytest

import joulecast as jc
from joulecast.reports.charts.chart import Chart, View, axis
from joulecast.reports.page import Page, Section
from joulecast.reports.pages.front import front_page
from joulecast.reports.pages.predict import predict_page

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
NAMES = ("chromium", "chromium-browser", "google-chrome")
#: A machine with much else to do starts a browser slowly.
PATIENCE_MS = 180_000
BACKGROUND = "document.querySelector('#front .main-svg').style.background"


@pytest.fixture(scope="module")
def chromium():
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)}")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"], timeout=PATIENCE_MS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory, request):
    folder = tmp_path_factory.mktemp("reports")
    plan = request.getfixturevalue("examples") / "llama-3.1-8b-4xh200.toml"
    iteration, front = jc.predict(plan), jc.front(plan)
    predict_page(iteration, front).write(folder / "predict.html")
    front_page(front, "a plan", iteration=iteration).write(folder / "front.html")
    Page("names", "", "Long names", sections=[Section("Bars", charts=(named_bars(),))]).write(folder / "names.html")
    return folder


def named_bars():
    """Bars with names longer than a telephone is wide, and a title longer than what they leave."""
    names = [f"streaming.strided_silu_backward_of_rank_{i}.bytes_per_sm_cycle" for i in range(3)]
    data = [{"type": "bar", "orientation": "h", "y": names, "x": [1.0, 2.0, 3.0]}]
    layout = {"xaxis": axis("place between lower bound (0) and upper bound (1)"), "yaxis": {"ticklen": 6}}
    return Chart("bars", "Bars", (View("", data, layout, height=200),))


@pytest.fixture(scope="module")
def pages(chromium, files):
    """Opens a report, once for all tests; with what it logs and fetches."""
    known, said = {}, []

    def go(name, scheme):
        if (name, scheme) in known:
            return known[name, scheme]
        context = chromium.new_context(viewport={"width": 1200, "height": 900}, color_scheme=scheme)
        context.set_default_timeout(PATIENCE_MS)
        known[name, scheme] = page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda r: None if r.url.startswith(("file:", "data:", "blob:")) else said.append(r.url))
        page.goto(f"file://{files / name}")
        page.wait_for_selector("html[data-ready=yes]", state="attached")
        return page

    yield go, said
    for page in known.values():
        page.context.close()


@pytest.fixture
def opened(pages):
    """A report in the browser; whatever it logs or fetches fails the test."""
    go, said = pages
    yield lambda name="predict.html", scheme="light": go(name, scheme)
    assert said == []


def test_charts_are_drawn(opened):
    page = opened()
    assert page.locator(".chart .main-svg").count() >= 3
    assert page.locator("#front .scatterlayer .point").count() > 200
    assert page.locator("#timeline .barlayer .point").count() > 34
    assert page.locator("#ledger .barlayer .point").count() >= 18
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


WORDS_OUTSIDE = """[...document.querySelectorAll('.chart')].flatMap((chart) => {
  const box = chart.getBoundingClientRect();
  return [...chart.querySelectorAll('.main-svg text')].filter((text) => {
    const place = text.getBoundingClientRect();
    return place.width && (place.left < box.left - 1 || place.right > box.right + 1 || place.bottom > box.bottom + 1);
  }).map((text) => text.textContent);
})"""


@pytest.mark.parametrize("name", ["predict.html", "front.html", "names.html"])
def test_no_word_of_a_chart_is_cut_off(opened, name):
    page = opened(name, "no-preference")
    for width in (1200, 400):
        page.set_viewport_size({"width": width, "height": 900})
        page.reload()
        page.wait_for_selector("html[data-ready=yes]", state="attached")
        assert page.locator(".chart .xtick text").count() > 3
        assert page.evaluate(WORDS_OUTSIDE) == []
    if name == "names.html":
        ends = page.locator(".ytick text").all_text_contents()
        assert all(end[0] == "…" and end.endswith(f"{i}.bytes_per_sm_cycle") for i, end in enumerate(ends)), ends


def test_pointing_at_a_plan_shows_its_knobs(opened):
    page = opened()
    page.evaluate("Plotly.Fx.hover(document.getElementById('front'), [{curveNumber: 2, pointNumber: 40}])")
    label = page.locator("#front .hoverlayer").text_content()
    assert "MHz" in label and "forward of stage 0" in label
    assert "% less on the same cards" in label
    point = page.locator("#front .scatterlayer .trace").nth(2).locator(".point").nth(60)
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_timeout(120)
    page.mouse.down()
    page.mouse.up()
    detail = page.locator("[data-detail=front]")
    detail.wait_for(state="visible")
    assert "backward of stage 1" in detail.inner_text()
    assert "MHz" in detail.inner_text()


def test_a_series_can_be_hidden(opened):
    page = opened()
    button = page.locator("[data-controls=timeline] button", has_text="forward")
    before = page.locator("#timeline .barlayer .point").count()
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert page.locator("#timeline .barlayer .point").count() < before
    button.click()
    assert page.locator("#timeline .barlayer .point").count() == before


def test_another_view_is_another_split(opened):
    page = opened()
    page.locator("[data-controls=ledger] button", has_text="by instruction").click()
    assert page.locator("[data-controls=ledger] .legend").inner_text().split("\n")[0] == "forward"
    page = opened("front.html")
    spans = []
    for name in ("fastest", "least energy"):
        page.locator("[data-controls=timeline] button", has_text=name).click()
        spans.append(page.evaluate("document.getElementById('timeline')._fullLayout.xaxis.range[1]"))
    assert spans[1] > 1.2 * spans[0]


def test_the_keyboard_reaches_everything(opened):
    page = opened()
    page.locator("#front").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert "MHz" in page.locator("#live").inner_text()
    page.keyboard.press("Enter")
    assert page.locator("[data-detail=front]").is_visible()
    assert re.search(r"forward of stage 0: \d+[^;]*MHz[^;]*; ", page.locator("#live").inner_text())
    page.keyboard.press("Escape")
    assert not page.locator("[data-detail=front]").is_visible()
    whole = page.evaluate("document.getElementById('front')._fullLayout.xaxis.range")
    page.keyboard.press("+")
    near = page.evaluate("document.getElementById('front')._fullLayout.xaxis.range")
    assert near[1] - near[0] == pytest.approx((whole[1] - whole[0]) / 2)
    page.keyboard.press("0")
    assert page.evaluate("document.getElementById('front')._fullLayout.xaxis.range") == pytest.approx(whole)
    button = page.locator("[data-controls=ledger] button", has_text="by instruction")
    button.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.dataset.name") == "view by instruction"


def test_both_schemes_are_legible(opened):
    colours = {}
    for scheme in ("light", "dark"):
        page = opened(scheme=scheme)
        colours[scheme] = page.evaluate(
            "[getComputedStyle(document.documentElement).backgroundColor,"
            " document.querySelector('#front .main-svg').style.background,"
            " document.querySelector('#front .xtick text').style.fill]"
        )
    assert colours["light"][0] == colours["light"][1] == "rgb(255, 255, 255)"
    assert colours["dark"][0] == colours["dark"][1] == "rgb(21, 24, 28)"
    for _, paper, ink in colours.values():
        assert contrast(paper, ink) > 7


def contrast(a, b):
    """Ratio of the luminances of two colours, as WCAG 2 defines it."""

    def luminance(colour):
        parts = [int(p) / 255 for p in colour[4:-1].split(",")]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_print_leaves_out_headings_of_what_is_folded(opened):
    page = opened()
    shown = "[...document.querySelectorAll('section.folded')].map(s => getComputedStyle(s).display)"
    assert set(page.evaluate(shown)) == {"block"}
    page.emulate_media(media="print")
    assert set(page.evaluate(shown)) == {"none"}
    page.emulate_media(media="screen")


def test_print_is_light(opened):
    page = opened(scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.wait_for_function(f"{BACKGROUND} === 'rgb(255, 255, 255)'")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.wait_for_function(f"{BACKGROUND} === 'rgb(21, 24, 28)'")
    assert len(page.pdf()) > 50_000


def test_the_numbers_can_be_searched(opened):
    page = opened()
    page.locator("summary", has_text="Every number").click()
    page.locator("input[type=search]").fill("voltage data")
    shown = page.locator("[data-count]").inner_text()
    count, _, whole = shown.partition(" of ")
    assert 0 <= int(count) < int(whole)


def test_the_first_chart_is_usable_before_the_others_are_drawn(opened):
    page = opened()
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    marks = dict(page.evaluate("performance.getEntriesByType('mark').map(m => [m.name, m.startTime])"))
    print(f"text after {paint:.0f} ms; " + ", ".join(f"{name} after {ms:.0f} ms" for name, ms in marks.items()))
    assert list(marks) == ["drawing", "drawn front", "drawn timeline", "drawn ledger", "drawn"]
    assert sorted(marks.values()) == list(marks.values())
