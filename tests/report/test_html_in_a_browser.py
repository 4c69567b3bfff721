"""The HTML report in Chromium: it opens from a file without a network, works, fits, and can be read
by everyone.
"""

import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelgauge.report.html import as_html, html
from kernelgauge.report.stored import history_page
from kernelgauge.results import encode_results
from kernelgauge.results.history import read_nights
from tests.builders import year

from .pages import HOSTILE, everything, green, on_cpu, results, several

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
PATIENCE_S = 60
TRACES = Path(__file__).parents[1] / "data" / "h200"
AXE = os.environ.get("AXE_CORE")

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium"
)


class Browser:
    """A page of a headless Chromium, driven over DevTools' pipe: messages end with a zero byte, no
    port is opened.

    Descriptors 3 and 4 are what `--remote-debugging-pipe` reads and writes. No sandbox: there is
    none for root, as in a container, and the page is ours.
    """

    def __init__(self, profile: Path) -> None:
        read_by_it, self._write = os.pipe()
        self._read, written_by_it = os.pipe()
        options = (
            "--headless=new --no-sandbox --remote-debugging-pipe --disable-gpu --disable-dev-shm-usage --hide-scrollbars "
            "--no-first-run --disable-background-networking"
        )
        redirected = f'exec "$@" 3<&{read_by_it} 4>&{written_by_it}'
        command = [
            "bash",
            "-c",
            redirected,
            "bash",
            str(CHROMIUM),
            *options.split(),
            f"--user-data-dir={profile}",
        ]
        descriptors = (read_by_it, written_by_it)
        self._process = subprocess.Popen(command, pass_fds=descriptors, stderr=subprocess.DEVNULL)
        for descriptor in descriptors:
            os.close(descriptor)
        self._buffer = b""
        self._last = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.send(
            "Network.emulateNetworkConditions",
            offline=True,
            latency=0,
            downloadThroughput=0,
            uploadThroughput=0,
        )

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=20)
        os.close(self._read)
        os.close(self._write)

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:  # a pipe takes 64 kB at once
            data = data[os.write(self._write, data) :]
        while True:
            answer = self._message()
            if answer.get("id") == self._last:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self.events.append(answer)

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], PATIENCE_S)
            assert ready, f"Chromium has said nothing for {PATIENCE_S} s"
            chunk = os.read(self._read, 1 << 20)
            assert chunk, "Chromium is gone"
            self._buffer += chunk
        message, self._buffer = self._buffer.split(b"\0", 1)
        return dict(json.loads(message))

    def open(self, path: Path, *, width: int = 1440, scheme: str = "light") -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.send(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        self.events.clear()
        self.send("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._message())

    def run(self, script: str) -> Any:
        answer = self.send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    opened = Browser(tmp_path_factory.mktemp("chromium"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    nights = folder / "nights"
    nights.mkdir()
    for number, one in enumerate(year(nights=10)):
        (nights / f"{number}.json").write_bytes(encode_results(one))
    trends = history_page(*read_nights(str(nights)), with_details=True)
    texts = {
        "report": html(several()),
        "green": html(green()),
        "cpu": html(on_cpu()),
        "trend": as_html(trends, title="Performance over time", facts={}),
        "hostile": html(
            [results(*(workload for text in HOSTILE for workload in everything(text).workloads))]
        ),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text)
    eager, compiled = (TRACES / f"mlp-{each}.json.gz" for each in ("eager", "compiled"))
    stored = ("--baselines", "stored.json")
    for arguments in (
        ("--update", "--force", str(eager), *stored),
        (str(compiled), *stored, "--html", "check.html"),
    ):
        command = [sys.executable, "-m", "kernelgauge", "check-trace", *arguments]
        subprocess.run(command, cwd=folder, check=False, capture_output=True)
    return {name: folder / f"{name}.html" for name in (*texts, "check")}


def complaints(browser: Browser) -> list[Any]:
    """Errors, violations of the policy, and every request but that for the page itself."""
    browser.run("new Promise(resolve => setTimeout(resolve, 50))")
    told = (
        "Runtime.exceptionThrown",
        "Log.entryAdded",
        "Runtime.consoleAPICalled",
        "Page.javascriptDialogOpening",
    )
    requests = [
        event for event in browser.events if event.get("method") == "Network.requestWillBeSent"
    ]
    return [event for event in browser.events if event.get("method") in told] + requests[1:]


UNFOLD = "document.querySelectorAll('details').forEach(one => { one.open = true })"
COUNT = "document.getElementById('shown').textContent"
SHOWN = "Array.from(document.querySelectorAll('#table tbody tr:not([hidden]) th')).map(cell => cell.textContent)"
OVERFLOWING = """
Array.from(document.querySelectorAll('body *')).filter(element => {
  const box = element.getBoundingClientRect();
  const inScroller = element.closest('.scroll, pre, svg') !== null && !element.matches('.scroll, pre');
  return !inScroller && !element.matches('.skip, option') && box.width > 0 && box.right > innerWidth + 1;
}).map(element => element.outerHTML.slice(0, 120))
"""

# marks of a legend that the card below it covers
BELOW = """
Array.from(document.querySelectorAll('.legend svg *')).filter(mark =>
  mark.getBoundingClientRect().bottom > mark.closest('.legend').getBoundingClientRect().bottom
).map(mark => mark.outerHTML)
"""


@pytest.mark.parametrize(
    ("page", "scheme"), [("report", "light"), ("report", "dark"), ("hostile", "light")]
)
def test_page_opens_without_complaints(
    browser: Browser, pages: dict[str, Path], page: str, scheme: str
) -> None:
    browser.open(pages[page], scheme=scheme)
    assert browser.run("document.querySelector('h1').textContent") == "REGRESSED"
    assert browser.run("document.querySelectorAll('script').length") == 1
    rows = 2 if page == "report" else 2 * len(HOSTILE)
    assert browser.run(COUNT) == f"{rows} of {rows} shown"
    assert complaints(browser) == []


@pytest.mark.parametrize("width", [360, 1440])
@pytest.mark.parametrize("page", ["report", "green", "cpu", "hostile", "trend", "check"])
def test_page_fits_the_screen(
    browser: Browser, pages: dict[str, Path], page: str, width: int
) -> None:
    browser.open(pages[page], width=width)
    browser.run(UNFOLD)
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run(OVERFLOWING) == []
    assert browser.run(BELOW) == []


def test_controls_filter_count_open_and_select(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["report"])
    browser.run("{const i = document.getElementById('filter'); i.focus(); i.value = ''}")
    browser.send("Input.insertText", text="COMPILED mlp")
    assert browser.run(SHOWN) == ["mlp-compiled-bf16-8"]
    hidden = "Array.from(document.querySelectorAll('.workload[hidden]')).map(one => one.id.split('-')[2])"
    assert browser.run(hidden) == ["eager"]
    assert browser.run(COUNT) == "1 of 2 shown"
    browser.run("document.querySelector('#table a[href$=mlp-compiled-bf16-8]').click()")
    browser.run("new Promise(resolve => setTimeout(resolve, 100))")
    assert browser.run("document.querySelector('.workload[id$=mlp-compiled-bf16-8]').open")
    browser.run("document.getElementById('copy').click()")
    assert (
        browser.run("getSelection().toString()")
        == "pytest perf -k mlp-compiled-bf16-8 --perf-update"
    )
    browser.run("document.getElementById('filter').focus()")
    browser.send("Input.insertText", text=" pass")
    assert browser.run(SHOWN) == []


@pytest.mark.skipif(AXE is None, reason="AXE_CORE does not name axe.min.js: npm install axe-core")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1440])
@pytest.mark.parametrize("page", ["report", "green", "cpu", "trend", "check"])
def test_page_passes_axe(
    browser: Browser, pages: dict[str, Path], page: str, scheme: str, width: int
) -> None:
    browser.open(pages[page], scheme=scheme, width=width)
    browser.run(UNFOLD)
    browser.run(Path(str(AXE)).read_text())
    violations = "axe.run(document).then(found => found.violations.map(v => [v.id, v.nodes.length, v.nodes[0].html]))"
    assert browser.run(violations) == []
    checked = browser.run("axe.run(document).then(found => found.passes.map(rule => rule.id))")
    assert {
        "color-contrast",
        "html-has-lang",
        {"trend": "svg-img-alt", "check": "heading-order"}.get(page, "label"),
    } <= set(checked)
