"""What a scrape shows."""

from __future__ import annotations

import asyncio
import json
import math
import re
from pathlib import Path
from typing import Any

from gateway.tier_metrics import tier_metrics
from prefixcache.types import TierStats
from tests.support.gateways import MODEL, echo_backend, running_gateway

TEXT = "/v1/completions"
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


async def test_a_fresh_server_shows_zeros(tmp_path: Path) -> None:
    """Before any traffic every counter is there and is 0, and nothing is NaN."""
    async with running_gateway(echo_backend(tmp_path)) as gateway:
        counters = await gateway.counters()
    for name in ("prompt_tokens", "cached_tokens", "computed_tokens", "output_tokens"):
        assert counters[f"prefixcache_{name}_total"] == 0
    for name in ("evicted_blocks", "preemptions", "worker_restarts", "client_closed"):
        assert counters[f"prefixcache_{name}_total"] == 0
    for state in ("free", "cached", "held"):
        assert counters[f'prefixcache_pool_blocks{{state="{state}"}}'] == 0
    assert counters["prefixcache_requests_running"] == 0
    assert counters["prefixcache_requests_waiting"] == 0
    assert counters["prefixcache_ready"] == 1
    assert not any(math.isnan(value) for value in counters.values())


async def test_requests_and_tokens_are_counted(tmp_path: Path) -> None:
    """Routes are counted by status, tokens once each, and times once per output."""
    async with running_gateway(echo_backend(tmp_path)) as gateway:
        body = {"model": MODEL, "prompt": "one two three"}
        for _ in range(2):
            await gateway.post(TEXT, body)
        await gateway.post(TEXT, {"model": MODEL})
        await gateway.post("/nowhere/secret", {})
        counters = await gateway.counters()
    route = 'prefixcache_http_requests_total{route="%s",status="%d"}'
    assert counters[route % (TEXT, 200)] == 2
    assert counters[route % (TEXT, 400)] == 1
    assert counters[route % ("none", 404)] == 1
    assert counters["prefixcache_prompt_tokens_total"] == 6
    assert counters["prefixcache_cached_tokens_total"] == 2
    assert counters["prefixcache_output_tokens_total"] == 6
    assert counters["prefixcache_time_to_first_token_seconds_count"] == 2
    assert counters["prefixcache_inter_token_seconds_count"] == 4


async def test_two_gateways_in_one_process_count_for_themselves(tmp_path: Path) -> None:
    """There is no global registry: a second server starts at zero."""
    async with running_gateway(echo_backend(tmp_path)) as first:
        await first.post(TEXT, {"model": MODEL, "prompt": "one"})
        async with running_gateway(echo_backend(tmp_path)) as second:
            counters: Any
            _, counters = await asyncio.gather(first.counters(), second.counters())
    assert counters["prefixcache_prompt_tokens_total"] == 0


def tier_samples() -> dict[str, float]:
    families = tier_metrics({"host": TierStats(size_bytes=1, used_bytes=1)})
    samples = [sample for family in families for sample in family.samples]
    return {f'{sample.name}{{tier="host"}}': sample.value for sample in samples}


async def test_metrics_that_the_manual_names_are_exposed(tmp_path: Path) -> None:
    """Each name on any page is a sample's or a family's, with the labels that it is shown with."""
    pages = [*(ROOT / "gateway/manual").glob("*.md"), ROOT / "README.md"]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    named = set(re.findall(r"`(prefixcache_\w+)(?:\{([\w,]*)\})?`", text))
    assert named
    async with running_gateway(echo_backend(tmp_path)) as gateway:
        await gateway.post(TEXT, {"model": MODEL, "prompt": "one two"})
        counters = await gateway.counters()
    counters |= tier_samples()  # an echo has no tiers
    for name, labels in named:
        samples = [sample for sample in counters if sample.partition("{")[0] == name]
        assert samples, name
        assert set(re.findall(r'(\w+)="', samples[0])) >= set(filter(None, labels.split(","))), name


def dashboard_queries() -> list[str]:
    """Every query of the Grafana dashboard."""
    page = json.loads((EXAMPLES / "grafana.json").read_text(encoding="utf-8"))
    return [target["expr"] for panel in page["panels"] for target in panel["targets"]]


async def test_the_grafana_dashboard_asks_for_what_there_is(tmp_path: Path) -> None:
    """Each name in a query is exposed, with the labels that it groups by."""
    async with running_gateway(echo_backend(tmp_path)) as gateway:
        for _ in range(2):
            await gateway.post(TEXT, {"model": MODEL, "prompt": "one two three"})
        samples = await gateway.counters() | tier_samples()  # an echo has no tiers
    names = {name.partition("{")[0] for name in samples}
    labels = {label for name in samples for label in re.findall(r'(\w+)="', name)}
    queries = dashboard_queries()
    assert len(queries) > 15
    for query in queries:
        asked = set(re.findall(r"prefixcache_\w+", query))
        assert asked
        assert asked <= names, query
        for group in re.findall(r"by \(([^)]*)\)", query):
            assert set(group.split(", ")) <= labels, query


async def test_the_grafana_dashboards_rates_are_shares(tmp_path: Path) -> None:
    """What is divided is a part of what it is divided by: the hit rate is cached of all tokens."""
    ratio = re.compile(r"sum\(rate\((\w+)\[\S+\)\) / \(sum\(rate\((\w+)\[\S+\)\) > 0\)")
    parts = [found.groups() for query in dashboard_queries() if (found := ratio.fullmatch(query))]
    assert len(parts) == sum("/" in query for query in dashboard_queries())
    async with running_gateway(echo_backend(tmp_path)) as gateway:
        for _ in range(2):
            await gateway.post(TEXT, {"model": MODEL, "prompt": "one two three"})
        samples = await gateway.counters()
    shares = {part: samples[part] / samples[whole] for part, whole in parts if samples[whole]}
    assert shares == {"prefixcache_cached_tokens_total": 2 / 6}


async def test_every_metric_is_on_the_grafana_dashboard(tmp_path: Path) -> None:
    """What is exposed can be seen."""
    async with running_gateway(echo_backend(tmp_path)) as gateway:
        samples = await gateway.counters() | tier_samples()
    shown = set(re.findall(r"prefixcache_\w+", " ".join(dashboard_queries())))
    names = {name.partition("{")[0] for name in samples if "_created" not in name}
    assert {re.sub(r"_(count|sum)$", "_bucket", name) for name in names} <= shown


def test_each_tier_is_shown_by_name() -> None:
    """Hits, bytes and whether it is left out; what is not known is not shown."""
    tiers = {"host": TierStats(size_bytes=8, hit_tokens=32), "disk": TierStats(is_out=True)}
    families = {family.name: family.samples for family in tier_metrics(tiers)}
    hits = {s.labels["tier"]: s.value for s in families["prefixcache_tier_hit_tokens"]}
    assert hits == {"host": 32, "disk": 0}
    out = {s.labels["tier"]: s.value for s in families["prefixcache_tier_out"]}
    assert out == {"host": 0, "disk": 1}
    assert [s.labels["tier"] for s in families["prefixcache_tier_size_bytes"]] == ["host"]
    assert not list(tier_metrics({}))
