"""The page in a real browser, without any other server: search, image, slider, filters, address, accessibility."""

from __future__ import annotations

import json
import re
import shutil

import pytest

pytest.importorskip("fastapi")
playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

from serving import BITS, ITEMS, NAMES, item_id, png, served  # noqa: E402

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium fonts-dejavu-core"),
]


@pytest.fixture(scope="module")
def address(pictured):
    with served(pictured) as made:
        yield made


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        made = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield made
        made.close()


@pytest.fixture
def visit(browser, address):
    """Open the page at an address; errors in its console and requests that leave its origin fail the test."""
    seen, contexts = [], []

    def open_page(path="/", base=address, **options):
        context = browser.new_context(**{"viewport": {"width": 1100, "height": 800}, **options})
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda said: said.type in ("error", "warning") and seen.append(said.text))
        page.on("pageerror", lambda error: seen.append(str(error)))
        page.on("request", lambda asked: asked.url.startswith((base, "blob:", "data:")) or seen.append(asked.url))
        page.goto(base + path)
        page.wait_for_selector("html[data-ready]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert seen == []


def shown(page):
    return page.eval_on_selector_all("#results .card", "cards => cards.map((card) => card.dataset.id)")


def settled(page):
    page.wait_for_selector("#results[aria-busy=false]")


def asked(page, action):
    """The body and the answer of the search that an action starts."""
    with page.expect_response(lambda answer: answer.url.endswith("/v1/search")) as found:
        action()
    settled(page)
    return json.loads(found.value.request.post_data), found.value.json()


def move_slider(page, bits):
    page.eval_on_selector(
        "#bits", "(slider, bits) => { slider.value = bits; slider.dispatchEvent(new Event('input')) }", bits
    )


def search(page, text):
    def enter():
        page.fill("#text", text)
        page.press("#text", "Enter")

    return asked(page, enter)


def test_a_text_search_shows_hits_with_image_text_labels_and_distance(visit):
    page = visit()
    assert len(shown(page)) == 24  # some items, before any search
    body, answer = search(page, "text 7")
    assert body["text"] == "text 7" and body["bits"] == BITS
    assert shown(page) == [str(hit["id"]) for hit in answer["hits"]]
    first = page.locator(".card").first
    assert first.locator(".text").text_content() == answer["hits"][0]["fields"]["text"]
    assert first.locator(".labels li").all_text_contents() == answer["hits"][0]["fields"]["labels"]
    distance = answer["hits"][0]["distance"]
    assert first.locator(".distance").text_content().startswith(str(distance) if distance else "no bit")
    image = first.locator("img")
    image.evaluate("image => image.decode()")
    assert image.evaluate("image => image.naturalWidth") > 0
    assert image.get_attribute("loading") == "lazy"
    assert f"24 of {ITEMS}" in page.text_content("#status")


def test_the_slider_ranks_again_while_it_moves_and_says_what_is_read(visit):
    page = visit()
    search(page, "text 3")
    before = shown(page)
    body, answer = asked(page, lambda: move_slider(page, 8))
    assert body["bits"] == 8 and shown(page) == [str(hit["id"]) for hit in answer["hits"]] != before
    assert page.text_content("#bits-value") == "8 bits"
    assert f"{2 * ITEMS} bytes read" in page.text_content("#cost")
    assert page.locator("#strip .used").count() == 8 and page.locator("#strip i").count() == BITS
    assert "bits=8" in page.url
    page.focus("#bits")
    body, _ = asked(page, lambda: page.keyboard.press("ArrowRight"))
    assert body["bits"] == 9


def test_two_lengths_side_by_side_mark_what_moved(visit):
    page = visit("/?q=text+3&bits=8")
    page.select_option("#compare", str(BITS))
    page.wait_for_selector(".results.two")
    settled(page)
    left, right = (
        page.eval_on_selector_all(f".column:nth-child({n}) .card", "cards => cards.map((card) => card.dataset.id)")
        for n in (1, 2)
    )
    assert len(left) == len(right) == 24 and left != right
    for place, name in enumerate(left):
        card = page.locator(".column").first.locator(".card").nth(place)
        marks = card.locator(".move").all_text_contents()
        if name not in right:
            assert marks == ["only here"]
        elif right.index(name) == place:
            assert marks == []
        else:
            moved = right.index(name) - place
            assert marks == [f"{'▲' if moved > 0 else '▼'} {abs(moved)}"]


def test_filters_have_counts_and_are_applied(visit):
    page = visit("/?q=text+1")
    chip = page.locator(".chip", has_text=NAMES[2]).first
    count = int(chip.locator(".count").text_content())
    body, answer = asked(page, chip.click)
    assert body["where"] == {"labels": {"$in": [NAMES[2]]}}
    assert len(answer["hits"]) == min(count, 24)
    assert all(NAMES[2] in hit["fields"]["labels"] for hit in answer["hits"])
    assert page.locator(f"[data-chip='labels={NAMES[2]}']").get_attribute("aria-pressed") == "true"
    body, _ = asked(page, page.get_by_role("button", name="Clear filters").click)
    assert "where" not in body


@pytest.mark.parametrize("how", ["choose", "drop", "paste"])
def test_an_image_is_a_query(visit, tmp_path, how):
    page = visit()
    content = png(30, 30, "green")
    (tmp_path / "a b#ü.png").write_bytes(content)
    transfer = """(bytes) => { const it = new DataTransfer();
        it.items.add(new File([new Uint8Array(bytes)], "a b#ü.png", {type: "image/png"})); return it; }"""

    def give():
        if how == "choose":
            page.set_input_files("#file", tmp_path / "a b#ü.png")
            return
        handle = page.evaluate_handle(transfer, list(content))
        if how == "drop":
            page.dispatch_event("body", "dragenter", {"dataTransfer": handle})
            assert page.is_visible("#drop")
            page.dispatch_event("body", "drop", {"dataTransfer": handle})
        else:
            page.evaluate("(it) => dispatchEvent(new ClipboardEvent('paste', {clipboardData: it}))", handle)

    body, answer = asked(page, give)
    assert body["code"] == answer["code"] and len(answer["hits"]) == 24
    assert page.is_hidden("#drop") and "your image" in page.text_content("#query-chip")
    assert f"code={answer['code']}" in page.url  # the whole query is in the address
    body, _ = asked(page, lambda: page.check("#relaxed"))
    assert len(body["vector"]) == BITS and body["relaxed"]
    again = visit(page.url[page.url.index("/?") :].replace("&relaxed=1", ""))
    assert shown(again) == [str(hit["id"]) for hit in answer["hits"]]


def test_more_like_this_searches_by_the_item(visit):
    page = visit()
    name = shown(page)[3]
    body, answer = asked(page, page.get_by_role("button", name=re.compile("^More like this")).nth(3).click)
    assert (body["id"], body["source"]) == (name, "image")
    assert name in shown(page) and answer["hits"][0]["distance"] == 0
    page.get_by_role("button", name="Remove the query").click()
    settled(page)
    assert "id=" not in page.url


def test_relaxed_and_texts(visit):
    page = visit("/?q=text+5")
    body, answer = asked(page, lambda: page.check("#relaxed"))
    assert body["relaxed"] is True and answer["hits"][0]["distance"] is None
    assert page.locator(".distance").first.text_content().startswith("score")
    body, answer = asked(page, lambda: page.get_by_text("Texts", exact=True).click())
    assert body["modality"] == "text" == answer["modality"]


def test_the_address_holds_the_view(visit):
    page = visit(f"/?q=text+2&bits=11&count=12&is.labels={NAMES[1].replace(' ', '+')}&modality=text")
    before = shown(page)
    assert len(before) <= 12 and page.input_value("#text") == "text 2"
    assert page.text_content("#bits-value") == "11 bits"
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert shown(page) == before
    search(page, "text 40")
    assert "q=text+40" in page.url
    asked(page, page.go_back)
    assert page.input_value("#text") == "text 2" and shown(page) == before


def test_results_are_saved_as_json_and_csv(visit):
    page = visit("/?q=text+1&count=12")
    for button, start in (("JSON", '{\n "bits"'), ("CSV", "bits,rank,id,distance,score,")):
        with page.expect_download() as saved:
            page.get_by_role("button", name=button, exact=True).click()
        text = saved.value.path().read_text(encoding="utf-8")
        assert text.startswith(start)
        assert all(name in text for name in shown(page))


def test_errors_are_said(browser, address):
    page = browser.new_context().new_page()  # the browser itself reports refused requests in the console
    page.goto(address + "/?q=" + "x" * 10_001)
    page.wait_for_selector("html[data-ready]")
    assert "characters" in page.text_content("#message") and page.is_visible("#message")
    search(page, "text 1")
    assert page.is_hidden("#message")
    page.set_input_files("#file", {"name": "x.png", "mimeType": "image/png", "buffer": b"not an image"})
    page.wait_for_selector("#message:not([hidden])")
    page.context.close()


def test_no_hit_is_said(visit):
    page = visit("/?q=text+1&is.labels=nothing")
    assert "Nothing passes" in page.text_content("#results") and page.is_hidden("#save")


def test_how_it_works_explains_the_run(visit, pictured):
    page = visit()
    page.get_by_role("link", name="How it works").click()
    page.wait_for_selector("#run-view h2")
    assert "view=run" in page.url and page.is_hidden("#search-view")
    rows = page.locator("section:has(#scales) tbody tr").all_text_contents()
    assert len(rows) == 2 and sum(int(re.search(r"(\d+)$", row)[1]) for row in rows) >= BITS
    page.select_option("#label", NAMES[4])
    page.wait_for_selector(f'text="{NAMES[4]}" is on')
    assert NAMES[4] not in page.locator("section:has(#related) tbody th").all_text_contents()


def test_the_keyboard_is_enough(visit):
    page = visit()
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "text"
    page.keyboard.type("text 9")
    _, answer = asked(page, lambda: page.keyboard.press("Enter"))
    reached = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.className"))
    assert {"file", "bits", "compare", "relaxed", "count", "chip", "more", "save-json"} <= reached
    assert len(answer["hits"]) == 24


@pytest.mark.parametrize(
    ("path", "scheme"),
    [("/", "light"), ("/?q=text+1&bits=8&compare=32", "dark"), ("/?view=run", "light"), ("/?view=run", "dark")],
)
def test_nothing_is_found_by_axe(visit, path, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page = visit(path, color_scheme=scheme, reduced_motion="reduce")
    found = axe.Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_a_phone_shows_everything_without_scrolling_sideways(visit):
    for path in ("/?q=text+1&bits=8&compare=32", "/?view=run"):
        page = visit(path, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_token_is_asked_for_once(browser, pictured):
    with served(pictured, token="secret") as base:
        context = browser.new_context()
        page = context.new_page()
        page.goto(base)
        page.fill("#token", "secret")
        page.press("#token", "Enter")
        page.wait_for_selector("html[data-ready]")
        image = page.locator(".card img").first
        image.evaluate("image => image.complete || new Promise((done) => { image.onload = done })")
        assert image.evaluate("image => image.naturalWidth") > 0
        assert f"{ITEMS} images" in page.text_content("#served")
        page.reload()
        page.wait_for_selector("html[data-ready]")
        context.close()


def test_items_have_ids_that_must_be_quoted(visit):
    assert item_id(0) in shown(visit())
