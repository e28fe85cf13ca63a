"""The operator's page in a real browser."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from gateway.backends.echo import EchoBackend
from prefixcache.types import EngineStats, TierStats
from tests.support.bodies import TEXT
from tests.support.browser import browser, look
from tests.support.gateways import MODEL, echo_backend
from tests.support.prompts import SYSTEM, asked, cached, publish
from tests.support.tenancy import ACME, ADMIN, BETA, Keyed, bearer, keyed_gateway
from tests.support.tokenizers import write_chat_tokenizer

PATIENCE_SECONDS = 30
PHONE, DESK = (390, 844), (1280, 900)


@pytest.fixture
async def keyed(tmp_path: Path) -> AsyncIterator[Keyed]:
    """A gateway with a little traffic of two tenants."""
    async with keyed_gateway(echo_backend(tmp_path), trend_seconds=0.1) as running:
        for key in (ACME, ACME, BETA):
            body = {"model": MODEL, "prompt": "one two three" * 6}
            status, _ = await running.gateway.post(TEXT, body, **bearer(key))
            assert status == 200
        yield running


def open_page(page: webdriver.Chrome, keyed: Keyed) -> None:
    page.get(f"http://operator:{ADMIN}@127.0.0.1:{keyed.gateway.port}/dashboard")
    WebDriverWait(page, PATIENCE_SECONDS).until(
        lambda shown: shown.find_elements(By.CSS_SELECTOR, "#tree [role=treeitem]")
    )


def text_of(page: webdriver.Chrome, selector: str) -> str:
    return page.find_element(By.CSS_SELECTOR, selector).text


def sizes(page: webdriver.Chrome) -> Any:
    return page.execute_script(
        "return [document.documentElement.scrollWidth, innerWidth,"
        " getComputedStyle(document.body).backgroundColor]"
    )


def see_all(keyed: Keyed) -> None:
    """Open the page and look at everything that it shows."""
    with browser() as page:
        grounds = []
        for width, height in (DESK, PHONE):
            for scheme in ("light", "dark"):
                look(page, width, height, scheme)
                open_page(page, keyed)
                needed, available, ground = sizes(page)
                assert needed <= available == width, (width, scheme)
                grounds.append(ground)
        assert grounds[0] == grounds[2] != grounds[1] == grounds[3]
        assert text_of(page, "#state") == "ready"
        assert "acme" in text_of(page, "#tenants")
        assert "beta" in text_of(page, "#tenants")
        assert "nothing stored" in text_of(page, "#misses")
        assert "None are published." in text_of(page, "#published")
        assert "None are set up" in text_of(page, "#tiers")
        assert len(page.find_elements(By.CSS_SELECTOR, ".charts svg[aria-label]")) == 4
        hosts = page.execute_script(
            "return performance.getEntriesByType('resource').map((each) => new URL(each.name).host)"
        )
        assert set(hosts) == {f"127.0.0.1:{keyed.gateway.port}"}
        log: Any = page.execute("getLog", {"type": "browser"})
        assert [line["message"] for line in log["value"]] == []


def see_published(keyed: Keyed) -> None:
    """Read the panel of published prompts, where there is little room and much."""
    with browser() as page:
        for width, height in (PHONE, DESK):
            look(page, width, height, "light")
            open_page(page, keyed)
            needed, available, _ = sizes(page)
            assert needed <= available == width
        heads, row = text_of(page, "#published").splitlines()
        assert heads.split() == ["Prompt", "Version", "For", "State", "Tokens", "Cached"]
        assert row.split()[:4] == ["kind", "2", "acme", "ready"]
        assert row.split()[4:] == ["167", "95.8", "%"]


class Tiered(EchoBackend):
    """An echo that says it had tiers."""

    def stats(self) -> EngineStats:
        host = TierStats(size_bytes=2**30, used_bytes=2**29, hit_tokens=512, read_bytes=2**20)
        disk = TierStats(is_out=True, waiting_bytes=2**10)
        tiers = {"host": host, "disk": disk}
        return msgspec.structs.replace(super().stats(), tiers=tiers, cached_tokens_total=2048)


def see_tiers(keyed: Keyed) -> None:
    """Read the panel of tiers, where there is little room and much."""
    with browser() as page:
        for width, height in (PHONE, DESK):
            look(page, width, height, "light")
            page.get(f"http://operator:{ADMIN}@127.0.0.1:{keyed.gateway.port}/dashboard")
            WebDriverWait(page, PATIENCE_SECONDS).until(
                lambda shown: shown.find_elements(By.CSS_SELECTOR, "#tiers tbody tr")
            )
            needed, available, _ = sizes(page)
            assert needed <= available == width
        _, host, disk = text_of(page, "#tiers").splitlines()
        assert host == "host in use 512 25 % 512 MiB 1 GiB 1 MiB 0 B 0 B 0 B"
        assert disk == "disk left out 0 0 % – – 0 B 0 B 1 KiB 0 B"


def walk_the_tree(keyed: Keyed) -> None:
    """Go through the tree with the keyboard alone, zoom, and colour it by tenant."""
    with browser() as page:
        look(page, *DESK, "light")
        open_page(page, keyed)
        bar = page.find_element(By.CSS_SELECTOR, "#tree [tabindex='0']")
        page.execute_script("arguments[0].focus()", bar)
        bar.send_keys("\ue015")  # arrow down
        focused = page.switch_to.active_element
        assert focused.get_attribute("aria-level") == "2"
        assert "18 tokens from 0" in text_of(page, "#tree-detail")
        n_bars = len(page.find_elements(By.CSS_SELECTOR, "#tree [role=treeitem]"))
        focused.send_keys("\ue007")  # enter
        assert len(page.find_elements(By.CSS_SELECTOR, "#tree [role=treeitem]")) < n_bars
        page.switch_to.active_element.send_keys("\ue00c")  # escape, twice: out to its tree, to all
        page.switch_to.active_element.send_keys("\ue00c")
        assert len(page.find_elements(By.CSS_SELECTOR, "#tree [role=treeitem]")) == n_bars
        page.find_element(By.CSS_SELECTOR, "input[value=tenant]").click()
        assert text_of(page, "#tree-legend").split() == ["acme", "beta"]


async def test_the_page_shows_the_server(keyed: Keyed) -> None:
    """Wide and narrow, light and dark, it fits, shows real data and loads nothing else."""
    await asyncio.to_thread(see_all, keyed)


async def test_published_prompts_are_shown_by_name(tmp_path: Path) -> None:
    """With their version, who may use them, and how much of them is cached."""
    write_chat_tokenizer(tmp_path)
    async with keyed_gateway(EchoBackend(tmp_path)) as keyed:
        for system in (SYSTEM, f"{SYSTEM} And brief."):
            await publish(keyed, system=system, tenants=["acme"])
        await cached(keyed, ACME, asked())
        await asyncio.to_thread(see_published, keyed)


async def test_tiers_are_shown_by_name(tmp_path: Path) -> None:
    """With their hits, their size where it is known, and whether they are used."""
    write_chat_tokenizer(tmp_path)
    async with keyed_gateway(Tiered(tmp_path)) as keyed:
        await asyncio.to_thread(see_tiers, keyed)


async def test_the_tree_works_without_a_pointer(keyed: Keyed) -> None:
    """Keys move along and into it, and say what is there."""
    await asyncio.to_thread(walk_the_tree, keyed)
