"""The report in a real browser: headless Chromium opens the file from disk with the network off.

Needs Debian's `chromium` and `chromium-driver` and the Python package selenium; the accessibility test also needs the
npm package axe-core, in `node_modules` beside this file or under the folder named in EQUIPOISE_AXE.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from equipoise.audit.data import AuditData
from equipoise.report import theme, write_figures, write_report
from equipoise.report.findings import find
from equipoise.report.pictures import Panel, pictures
from tests.audits import Effect, make_audit

pytestmark = pytest.mark.browser

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
WIDE, NARROW = (1280, 800), (390, 844)


@pytest.fixture(scope="module")
def audit() -> AuditData:
    effect = {"ditto": Effect(0.05, 0.6), "fedtilt": Effect(-0.01, 0.8), "rffl": Effect(-0.02, harm=0.2)}
    return make_audit(("fedavg", "ditto", "fedtilt", "rffl"), ("none", "sign_flip"), 2, 20, effect)


@pytest.fixture(scope="module")
def panels(audit: AuditData) -> list[Panel]:
    return [panel for picture in pictures(find(audit)) for panel in picture.panels]


@pytest.fixture(scope="module")
def report(audit: AuditData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(audit, tmp_path_factory.mktemp("report") / "report.html")


class Browser:
    """One window, without a network, and what it was asked to fetch and complained about."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.cdp("Network.enable")
        offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        self.cdp("Network.emulateNetworkConditions", **offline)

    def cdp(self, command: str, **parameters: Any) -> Any:
        return self.driver.execute_cdp_cmd(command, parameters)

    def js(self, code: str, *arguments: Any) -> Any:
        return self.driver.execute_script(code, *arguments)

    def open(self, path: Path, size: tuple[int, int] = WIDE, scheme: str = "light") -> Browser:
        width, height = size
        self.driver.get_log("browser"), self.driver.get_log("performance")
        self.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        shape = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.cdp("Emulation.setDeviceMetricsOverride", **shape)
        self.driver.get(path.as_uri())
        assert self.js("return document.documentElement.dataset.ready") == "yes"
        self.js("localStorage.clear()")
        return self

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] != "INFO"]

    def requests(self) -> list[str]:
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]

    def click(self, selector: str) -> None:
        self.js("document.querySelector(arguments[0]).click()", selector)

    def type(self, selector: str, text: str) -> None:
        self.js(
            "const box = document.querySelector(arguments[0]); box.value = arguments[1];"
            "box.dispatchEvent(new Event('input')); box.dispatchEvent(new Event('change'))",
            selector,
            text,
        )

    def column(self, table: str, index: int) -> list[str]:
        code = "return [...document.querySelectorAll(`#${arguments[0]} tbody tr`)].map(r => r.cells[arguments[1]]"
        return list(self.js(f"{code}.firstChild.textContent)", table, index))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("chromium or chromedriver is not installed (Debian: apt install chromium chromium-driver)")
    try:
        webdriver = importlib.import_module("selenium.webdriver")
    except ImportError:
        pytest.skip("selenium is not installed (pip install selenium)")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_script_timeout(120)
    yield Browser(driver)
    driver.quit()


# ------------------------------------------------------------------------------------------ opening


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_the_page_opens_without_a_complaint_or_a_request(browser: Browser, report: Path, size: tuple[int, int]) -> None:
    browser.open(report, size)
    browser.click("input[name=attack][value='1']")
    assert browser.complaints() == []
    assert {url.split(":")[0] for url in browser.requests()} <= {"file", "data", "blob"}


def _series(browser: Browser) -> dict[str, int]:
    """The charts that can be seen, and how many series are really drawn in each."""
    code = """
    const seen = [...document.querySelectorAll('.chart')].filter(d => d.offsetParent !== null);
    const drawn = '.scatterlayer .trace, .boxlayer .trace, .heatmaplayer .hm';
    return Object.fromEntries(seen.map(d => [d.id, d.querySelectorAll(drawn).length]));"""
    return dict(browser.js(code))


@pytest.mark.parametrize("attack", [0, 1])
def test_every_chart_is_drawn_with_all_its_series(
    browser: Browser, report: Path, audit: AuditData, panels: list[Panel], attack: int
) -> None:
    browser.open(report)
    browser.click(f"input[name=attack][value='{attack}']")
    name = audit.attacks[attack].name
    expected = {p.name: len(p.figure["data"]) for p in panels if p.attack in (None, name)}
    assert _series(browser) == expected
    assert expected[f"served-{attack}"] == len(audit.methods)


def test_charts_have_names_and_no_raw_colour_names(browser: Browser, report: Path) -> None:
    browser.open(report)
    names = browser.js(
        "return [...document.querySelectorAll('#served-0 .annotation-text')].map(t => t.textContent).sort()"
    )
    assert names == ["ditto", "fedavg", "fedtilt", "rffl"]
    assert not browser.js("return [...document.querySelectorAll('.chart')].some(d => d.innerHTML.includes('@c'))")


def test_a_chosen_method_is_brought_out(browser: Browser, report: Path) -> None:
    browser.open(report)
    browser.type("#highlight", "1")
    seen = browser.js("return document.getElementById('served-0').data.map(t => t.opacity)")
    assert seen == [0.12, 1, 0.12, 0.12]
    browser.type("#highlight", "")
    assert browser.js("return document.getElementById('served-0').data.some(t => t.opacity < 1)") is False


# ------------------------------------------------------------------------------------------ tables


def test_a_table_sorts_both_ways_and_by_keyboard(browser: Browser, report: Path) -> None:
    keys = importlib.import_module("selenium.webdriver.common.keys").Keys
    browser.open(report)
    head = "#t-headline thead th:nth-child(2)"
    before = browser.column("t-headline", 1)
    browser.click(f"{head} button")
    values = [float(v) for v in browser.column("t-headline", 1)]
    assert values == sorted(map(float, before), reverse=True)
    assert browser.js("return document.querySelector(arguments[0]).ariaSort", head) == "descending"
    browser.js("document.querySelector(arguments[0]).focus()", f"{head} button")
    browser.driver.switch_to.active_element.send_keys(keys.ENTER)
    assert [float(v) for v in browser.column("t-headline", 1)] == sorted(map(float, before))
    assert browser.js("return document.querySelector(arguments[0]).ariaSort", head) == "ascending"
    browser.click("#t-headline thead th:nth-child(1) button")
    assert browser.column("t-headline", 0) == ["ditto", "fedavg", "fedtilt", "rffl"]


def test_clients_are_found_sorted_and_shown_by_fifties(browser: Browser, report: Path, audit: AuditData) -> None:
    browser.open(report)
    total = len(audit.clients)
    assert len(browser.column("t-clients", 0)) == 50
    assert browser.js("return document.getElementById('shown').textContent") == f"50 of {total} rows"
    browser.click("#more")
    assert len(browser.column("t-clients", 0)) == 100

    browser.type("#search", "DITTO attacker")
    assert set(browser.column("t-clients", 0)) == {"ditto"} and set(browser.column("t-clients", 4)) == {"attacker"}
    assert set(browser.column("t-clients", 1)) == {"sign_flip"}
    browser.type("#search", "rffl no attack 7")
    assert browser.column("t-clients", 3) == ["7", "7"]
    expected = audit.clients.filter(method="rffl", attack="none", client=7)["accuracy"]
    assert browser.column("t-clients", 6) == [f"{100 * v:.1f}" for v in expected]
    browser.type("#search", "nobody")
    assert browser.js("return document.getElementById('shown').textContent") == "No row matches"

    browser.type("#search", "")
    browser.click("#t-clients th[data-column=accuracy] button")
    first = browser.column("t-clients", 6)
    assert first == [f"{100 * v:.1f}" for v in sorted(audit.clients["accuracy"], reverse=True)[:50]]


# ------------------------------------------------------------------------------------------ looks


def _rgb(colour: str) -> str:
    return f"rgb({', '.join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))})"


def test_dark_follows_the_system_and_the_button(browser: Browser, report: Path) -> None:
    background = "return getComputedStyle(document.body).backgroundColor"
    chart = "return getComputedStyle(document.querySelector('#served-0 .xtick text')).fill"
    browser.open(report, scheme="dark")
    assert browser.js(background) == _rgb(theme.DARK["paper"])
    assert browser.js(chart) == _rgb(theme.DARK["ink"])
    browser.click("#theme")
    assert browser.js(background) == _rgb(theme.LIGHT["paper"])
    assert browser.js(chart) == _rgb(theme.LIGHT["ink"])
    browser.open(report, scheme="light")
    assert browser.js(background) == _rgb(theme.LIGHT["paper"])


@pytest.mark.parametrize("attack", [0, 1])
def test_a_telephone_needs_no_sideways_scrolling(browser: Browser, report: Path, attack: int) -> None:
    browser.open(report, NARROW)
    browser.click(f"input[name=attack][value='{attack}']")
    browser.js("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.js("return document.documentElement.scrollWidth") <= NARROW[0]
    wide = """
    const outside = e => !e.closest('.scroll, pre, svg, .skip, .hidden') && e.getBoundingClientRect().right > 391;
    return [...document.querySelectorAll('body *')].filter(outside).map(e => e.tagName + '.' + e.className)"""
    assert browser.js(wide) == []


def test_paper_shows_the_chosen_situation_in_light_colours(browser: Browser, report: Path) -> None:
    browser.open(report, scheme="dark")
    browser.js(
        "window.seen = []; const ink = () => document.getElementById('served-0').layout.font.color;"
        "const closed = () => document.querySelectorAll('details:not([open])').length;"
        "for (const e of ['beforeprint', 'afterprint']) addEventListener(e, () => seen.push([e, ink(), closed()]))"
    )
    printed = base64.b64decode(browser.cdp("Page.printToPDF")["data"])
    assert printed.startswith(b"%PDF")
    before, after = browser.js("return window.seen")
    assert before == ["beforeprint", theme.LIGHT["ink"], 0]
    assert after[:2] == ["afterprint", theme.DARK["ink"]] and after[2] > 0


def _axe() -> str:
    folders = [os.environ.get("EQUIPOISE_AXE", ""), str(Path(__file__).parent)]
    for folder in filter(None, folders):
        script = Path(folder) / "node_modules" / "axe-core" / "axe.min.js"
        if script.is_file():
            return script.read_text(encoding="utf-8")
    pytest.skip("axe-core is not there: npm install --prefix FOLDER axe-core, and set EQUIPOISE_AXE=FOLDER")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_axe_finds_nothing_serious(browser: Browser, report: Path, size: tuple[int, int], scheme: str) -> None:
    script = _axe()
    browser.open(report, size, scheme)
    browser.js("document.querySelectorAll('details').forEach(d => d.open = true)")
    browser.js(script)
    found = browser.driver.execute_async_script(
        "const done = arguments[arguments.length - 1];"
        "axe.run(document, {resultTypes: ['violations']}).then(r => done(r.violations.map("
        "v => [v.impact, v.id, v.nodes.slice(0, 5).map(n => n.target.join(' ') + ': ' + n.failureSummary)])))"
    )
    assert [v for v in found if v[0] in ("serious", "critical")] == []


# ------------------------------------------------------------------------------------------ hostile text, files


def test_hostile_names_stay_text(browser: Browser, tmp_path: Path) -> None:
    names = (
        "<script>window.hit=1</script>",
        '"><img src=x onerror=window.hit=1>',
        "<a href='javascript:window.hit=1'>x",
    )
    data = make_audit(names, ("none", "</script><svg onload=window.hit=1>"), 1, 5)
    browser.open(write_report(data, tmp_path / "report.html"))
    browser.click("input[name=attack][value='1']")
    assert browser.js("return window.hit") is None and browser.complaints() == []
    assert not browser.js("return document.querySelectorAll('main img, main a[href^=javascript]').length")
    label = browser.js("return document.querySelector('#served-1 .annotation-text').textContent")
    assert label.startswith("<script>")


@pytest.mark.parametrize("format", ["svg", "pdf"])
def test_figures_become_files(tmp_path: Path, format: str) -> None:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed (Debian: apt install chromium)")
    data = make_audit(("fedavg", "ditto"), ("none",), 1, 5)
    paths = write_figures(data, tmp_path, format)  # type: ignore[arg-type]
    assert {p.stem for p in paths} >= {"served-0", "gaps-0", "heat-accuracy_mean", "partition", "front-accuracy_std-0"}
    start = b"<svg" if format == "svg" else b"%PDF"
    assert all(path.read_bytes().startswith(start) for path in paths)
    if format == "svg":
        assert "ditto" in (tmp_path / "served-0.svg").read_text()
