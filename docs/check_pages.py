"""Look at every page of the built site in a browser, as wide as a desk and as narrow as a phone.

    python docs/check_pages.py [SITE] [--pictures FOLDER] [PAGE …]

A page fails if the console shows an error, if the page asks for anything from another server, if it can be scrolled
sideways, if a formula was left as it is written, or if a picture does not load. The search has to find something. Needs
Chromium, and says so where there is none.
"""

import argparse
import functools
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

WIDTHS = (1280, 390)  # the page is loaded at the first, then made narrower
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]

LOOK = r"""() => {
  const problems = []
  const page = document.querySelector("article") || document.body
  const width = document.documentElement.clientWidth
  if (document.documentElement.scrollWidth > width) {
    // What sticks out, unless it can be scrolled by itself.
    const scrolls = (e) => e !== document.body && e !== document.documentElement &&
      (/auto|scroll|hidden/.test(getComputedStyle(e).overflowX) || scrolls(e.parentElement))
    const out = [...page.querySelectorAll("*")].filter(
      (e) => e.getBoundingClientRect().right > width + 1 && !scrolls(e.parentElement))
    problems.push("wider than the window: " + (out[0] ? out[0].outerHTML.slice(0, 120) : "?"))
  }
  const walker = document.createTreeWalker(page, NodeFilter.SHOW_TEXT)
  while (walker.nextNode()) {
    const node = walker.currentNode
    if (!node.parentElement.closest("code, pre, script, style, .highlight") && /\$|\\[a-z(\[]/.test(node.data))
      problems.push("unrendered formula: " + node.data.trim().slice(0, 80))
  }
  for (const error of document.querySelectorAll("merror")) problems.push("broken formula: " + error.textContent)
  for (const image of document.images) {
    if (!image.complete || !image.naturalWidth) problems.push("picture does not load: " + image.src)
    if (!image.alt.trim()) problems.push("picture without a text: " + image.src)
  }
  return problems
}"""


LOAD_PICTURES = """() => Promise.all([...document.images].map(
  (image) => { image.loading = "eager"; return image.decode().catch(() => null) }))"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 128  # a page asks for ten files at once; five is the default, and the sixth waits for a second
    daemon_threads = True


@contextmanager
def served(site: Path) -> Iterator[str]:
    """The address at which the site is served to this machine alone."""
    server = Server(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


def check(browser: Browser, address: str, names: list[str], pictures: Path | None) -> list[str]:
    """The problems of the pages, and of the search."""
    page = browser.new_page()
    found: list[str] = []
    problems: list[str] = []
    page.on("console", lambda message: found.append(f"console: {message.text}") if message.type == "error" else None)
    page.on("pageerror", lambda error: found.append(f"script: {error}"))
    own = (address, "data:", "blob:")
    page.on("request", lambda request: None if request.url.startswith(own) else found.append(f"asks {request.url}"))
    page.goto(f"{address}/index.html", timeout=120_000)
    page.locator("input[name=query]").fill("softmax")
    if "softmax" not in page.locator(".md-search-result__list article").first.inner_text(timeout=60_000).lower():
        problems.append("index.html: a search for softmax does not find it")
    # From here on with an index of one entry: that each page reads all of it takes longer than all the rest.
    index = page.request.get(f"{address}/search/search_index.json").json()
    page.route("**/search_index.json", lambda route: route.fulfill(json=index | {"docs": index["docs"][:1]}))
    for name in names:
        page.set_viewport_size({"width": WIDTHS[0], "height": 900})
        page.goto(f"{address}/{name}", timeout=120_000)
        # Below the window pictures are loaded when they are needed: all of them at once here.
        page.evaluate(LOAD_PICTURES)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            found += [f"at {width} pixels {problem}" for problem in page.evaluate(LOOK)]
            if pictures:
                picture = pictures / f"{name.removesuffix('.html').replace('/', '-')}-{width}.png"
                page.screenshot(path=picture, full_page=True)
        problems += [f"{name}: {problem}" for problem in dict.fromkeys(found)]
        found.clear()
    page.close()
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("site", nargs="?", type=Path, default=Path("site"))
    parser.add_argument("pages", nargs="*", help="only these, as course/01-reverse-mode.html")
    parser.add_argument("--pictures", type=Path, help="a folder for screenshots")
    given = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        print("check_pages: no chromium on this machine: nobody looked at the pages (apt-get install chromium)")
        return
    if given.pictures:
        given.pictures.mkdir(parents=True, exist_ok=True)
    names = given.pages or sorted(str(path.relative_to(given.site)) for path in given.site.rglob("*.html"))
    with served(given.site) as address, sync_playwright() as playwright:
        # Playwright gives each start a profile folder of its own.
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        problems = check(browser, address, names, given.pictures)
        browser.close()
    print(*problems, sep="\n")
    print(f"{len(names)} pages at {' and '.join(map(str, WIDTHS))} pixels: {len(problems)} problems")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
