"""The status page in a real browser, and `pdserve top`, over real engine processes."""

import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from cluster import cli
from tests.support import conformance_cluster
from tests.support.http_balancer import HttpBalancer
from tests.support.process_cluster import MODEL_NAME, ProcessCluster
from tests.support.programs import program

model_dir = conformance_cluster.model_dir
SECONDS = 1000  # Playwright counts in milliseconds
expect.set_options(timeout=60 * SECONDS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = program("chromium", "chromium")
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox"], timeout=120 * SECONDS
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def cluster(model_dir, tmp_path_factory) -> Iterator[ProcessCluster]:
    with ProcessCluster(model_dir, tmp_path_factory.mktemp("logs"), num_decode=2) as cluster:
        yield cluster


@pytest.fixture
def page(browser, cluster, tmp_path) -> Iterator[Page]:
    """The page, 1280 wide; any console error fails the test, and a picture of its end is kept."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    errors: list[str] = []
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{cluster.balancer.url}/dashboard")
    expect(page.locator("#state")).to_have_text("ready")
    yield page
    page.screenshot(path=tmp_path / "status-page.png", full_page=True)
    page.close()
    assert errors == []


def complete(cluster: ProcessCluster, max_tokens: int, request_id: str) -> None:
    body = {"model": MODEL_NAME, "prompt": "The tea", "max_tokens": max_tokens, "ignore_eos": True}
    answer = httpx.post(
        f"{cluster.balancer.url}/v1/completions",
        json=body,
        headers={"X-Request-Id": request_id},
        timeout=60,
    )
    assert answer.status_code == 200


def test_both_pools_and_their_pages(page):
    expect(page.locator("#prefill li")).to_have_count(1)
    expect(page.locator("#decode li")).to_have_count(2)
    expect(page.locator("#decode li").first).to_contain_text("ready")
    assert "of 256 pages" in page.locator("#prefill .bar").get_attribute("aria-label")


def test_a_request_shows_while_it_runs_and_its_life_opens_by_keyboard(page, cluster):
    seen = threading.Event()

    def keep_asking() -> None:
        while not seen.is_set():
            complete(cluster, 400, "watched")

    asking = threading.Thread(target=keep_asking)
    asking.start()
    try:
        rows = page.locator("#requests tr", has_text="watched")
        expect(rows.filter(has_text="running").first).to_be_visible()
        expect(page.locator("#flows")).to_contain_text("→")
    finally:
        seen.set()
        asking.join()
    expect(rows.filter(has_text="running")).to_have_count(0)
    row = rows.filter(has_text="length").first
    expect(row).to_contain_text("+ 400")
    row.get_by_role("button").press("Enter")
    life = page.locator("#life")
    expect(life).to_be_visible()
    for span in ("request", "prefill queue", "transfer", "decode"):
        expect(life.locator("#life-spans")).to_contain_text(span)
    expect(life.locator("#life-steps")).to_contain_text("first token")
    page.keyboard.press("Escape")
    expect(life).to_be_hidden()


def test_the_playground_answers(page):
    page.locator("#question").fill("Sing of the wind.")
    page.locator("#limit").fill("8")
    page.locator("#ask").click()
    expect(page.locator("#answer-facts")).to_contain_text("output tokens")


def test_the_playground_says_what_was_wrong(browser, cluster):
    page = browser.new_page()
    page.goto(f"{cluster.balancer.url}/dashboard")
    expect(page.locator("#state")).to_have_text("ready")
    page.locator("#limit").fill("1000000")
    page.locator("#ask").click()
    expect(page.locator("#answer-facts")).to_contain_text("maximum context length")
    expect(page.locator("#ask")).to_be_enabled()
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_screen(browser, cluster, width, scheme, tmp_path):
    page = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
    page.goto(f"{cluster.balancer.url}/dashboard")
    expect(page.locator("#state")).to_have_text("ready")
    expect(page.locator("#prefill li")).to_have_count(1)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    page.screenshot(path=tmp_path / f"status-page-{width}-{scheme}.png", full_page=True)
    page.close()


def test_top_prints_the_same(cluster, capsys):
    assert cli.run(["top", "--once", "--url", cluster.balancer.url]) == 0
    printed = capsys.readouterr().out
    assert "ready" in printed
    assert all(f"{worker}@" in printed for worker in ("p0", "d0", "d1"))
    assert "of 256 held" in printed


def test_top_says_when_nobody_answers(capsys):
    assert cli.run(["top", "--once", "--url", "http://127.0.0.1:9"]) == 1
    assert "127.0.0.1:9" in capsys.readouterr().err


def test_an_administrators_key_is_asked_for_and_asks_the_model_too(
    browser, cluster, model_dir, tmp_path
):
    keys, clients = tmp_path / "admins", tmp_path / "clients"
    keys.write_text("the-key\n")
    clients.write_text("another\n")
    settings = {"admin_key_file": str(keys), "api_key_file": str(clients)}
    with HttpBalancer(cluster.service.endpoint, model_dir, MODEL_NAME, **settings) as balancer:
        page = browser.new_page()
        page.goto(f"{balancer.url}/dashboard")
        key = page.get_by_label("administrator's key")
        expect(key).to_be_visible()
        expect(page.locator("#prefill li")).to_have_count(0)
        key.fill("the-key")
        page.keyboard.press("Enter")
        expect(page.locator("#state")).to_have_text("ready")
        expect(page.locator("#prefill li")).to_have_count(1)
        page.locator("#limit").fill("8")
        page.locator("#ask").click()
        expect(page.locator("#answer-facts")).to_contain_text("output tokens")
        page.close()


def test_a_killed_worker_shows(page, cluster):
    """The last test: it leaves the cluster short of an engine."""
    cluster.kill("d1")
    lost = page.locator("#decode li.gone")
    expect(lost).to_contain_text("d1")
    expect(page.locator("#decode li", has_text="d0")).to_contain_text("ready")
    expect(page.locator("#state")).to_have_text("ready")


def test_every_part_of_the_page_is_served_and_nothing_else(cluster):
    folder = Path(cli.__file__).parent / "api" / "page"
    for file in folder.iterdir():
        name = "" if file.name == "index.html" else f"/{file.name}"
        answer = cluster.balancer.get(f"/dashboard{name}")
        assert answer.status_code == 200
        assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
        assert "http" not in file.read_text().replace("http://www.w3.org/2000/svg", "")
    assert cluster.balancer.get("/dashboard/..%2Fapp.py").status_code == 404
