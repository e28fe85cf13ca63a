"""The manual's figures are those of the committed results."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from examples import attention_speed, gateway_cost, invariant_cost, kv_formats, servers
from examples.index_speed import (
    NOT_MEASURED,
    OURS,
    PAGE,
    RIVALS,
    US,
    amount,
    filled,
    ours_table,
    read,
    render,
    rivals_table,
)
from gateway.config import Settings

ADAPTERS = Path(__file__).parent.parent / "gateway/manual/adapters.md"
TIERS = Path(__file__).parent.parent / "gateway/manual/tiers.md"
SCHEDULING = Path(__file__).parent.parent / "gateway/manual/scheduling.md"
RESULT = {
    "engines": [US, "other"],
    "rows": [
        {"workload": "B", "engine": US, "figures": {"match_us": 20.0}},
        {"workload": "B", "engine": "other", "figures": {"match_us": 125.0}},
    ],
}


def test_the_page_shows_what_the_results_hold() -> None:
    """Rendering the page again changes nothing."""
    page = PAGE.read_text(encoding="utf-8")
    assert render(page, read("index.json"), read("index_rivals.json")) == page


def test_every_figure_of_the_page_was_measured() -> None:
    """Our result file has each workload and figure that the page names."""
    rows = read("index.json")["rows"]
    for workload, figure, _, _ in OURS:
        found = [row for row in rows if row["workload"] == workload]
        assert found
        assert all(figure in row["figures"] for row in found)
    assert len([row for row in rows if row["workload"] == "C2"]) == 3


def test_our_table_has_a_line_for_each_row_of_a_workload() -> None:
    """Rows of one workload at several sizes are told apart by their size."""
    figures = {"evict_us_per_call": 5.0, "evict_us_per_block": 1.25}
    rows = [{"workload": "C2", "figures": figures | {"leaves": n}} for n in (1000, 25_000)]
    table = ours_table({"rows": rows})
    for leaves in ("1,000", "25,000"):
        assert f"| C2, {leaves} leaves: eviction, a block | 1.25 us |" in table


def test_rivals_are_set_against_ours() -> None:
    """Each figure of another engine has in brackets how many times ours it is."""
    lines = rivals_table(RESULT).splitlines()
    assert lines[0] == f"| | {US} | other |"
    assert "| B: match, us | 20.0 | 125 (6.2) |" in lines
    assert len(lines) == len(RIVALS) + 2


def test_what_was_not_measured_has_no_figure() -> None:
    """A gap in the results is a gap in the table."""
    lines = rivals_table(RESULT).splitlines()
    assert f"| D: memory, bytes a block | {NOT_MEASURED} | {NOT_MEASURED} |" in lines


@pytest.mark.parametrize(
    ("value", "text"), [(1234.5, "1,234"), (0.8324, "0.83"), (12.34, "12.3"), (9, "9")]
)
def test_figures_are_short(value: float, text: str) -> None:
    """Three digits are enough; large ones keep their whole part, and counts have no fraction."""
    assert amount(value) == text


def test_a_page_without_its_marks_is_refused() -> None:
    """A renamed mark is an error, never a page left as it was."""
    with pytest.raises(ValueError, match="0 parts named 'ours'"):
        filled("no marks", "ours", "text")


def test_the_page_on_attention_shows_what_its_result_holds() -> None:
    """Rendering the page again changes nothing."""
    page = attention_speed.PAGE.read_text(encoding="utf-8")
    assert attention_speed.render(page, read("attention.json")) == page


def test_the_page_on_invariance_shows_what_its_result_holds() -> None:
    """Rendering the page again changes nothing, and no cell is empty."""
    page = invariant_cost.PAGE.read_text(encoding="utf-8")
    result = read("invariant.json")
    assert invariant_cost.render(page, result) == page
    assert len(result["rows"]) == len(invariant_cost.WORKS) * len(invariant_cost.WEIGHTS)


def test_the_page_on_the_gateways_cost_shows_what_its_result_holds() -> None:
    """Rendering the page again changes nothing."""
    page = gateway_cost.PAGE.read_text(encoding="utf-8")
    assert gateway_cost.render(page, read("gateway_cost.json")) == page


@pytest.mark.parametrize("sitting", servers.SITTINGS)
def test_the_page_on_servers_shows_what_its_results_hold(sitting: str) -> None:
    """Rendering the page again changes nothing, and ours is the first of several servers."""
    page = servers.PAGE.read_text(encoding="utf-8")
    result = read(f"servers_{sitting}.json")
    assert servers.render(page, sitting, result) == page
    assert result["servers"][0]["kind"] == "prefixcache"
    assert len(result["servers"]) > 1


def test_large_prompts_stop_nothing() -> None:
    """Beside 5 MB prompts, /health answers and streams go on within 200 ms."""
    quiet, strained = read("gateway_cost.json")["large_prompts"]
    assert quiet["large_prompts_answered"] == 0 < strained["large_prompts_answered"]
    assert strained["health_max_ms"] < 200
    assert strained["stream_longest_gap_ms"] < 200


def test_sharing_pays_as_it_must() -> None:
    """Eight streams over one prefix of 4,096 cost at most 0.35 of as many lone steps."""
    rows = read("attention.json")["decodes"]
    (row,) = (row for row in rows if (row["streams"], row["prefix_tokens"]) == (8, 4096))
    assert row["shared_to_alone"] <= 0.35
    assert row["shared_ms"] < row["apart_ms"] < row["alone_ms"]


def test_the_page_on_adapters_shows_what_its_result_holds() -> None:
    """Each case of the result is a line of its table, with the figures that were measured."""
    page = ADAPTERS.read_text(encoding="utf-8")
    for row in read("adapters.json")["results"]:
        assert f"| {row['case']} | {row['step_ms']:.1f} | {row['to_plain']:.2f} |" in page


def test_the_table_of_kv_formats_has_what_a_result_holds() -> None:
    """Each format of a result is a line of the page, with its bytes, quality and time."""
    quality = {"perplexity": 20.125, "kl_mean": 0.00061, "kl_max": 0.011, "agreement": 0.986}
    row = {"kv_format": "int8", "bytes_per_token": 11880, "tokens": 10_390, "step_ratio": 1.5}
    machine = {"cores": 2, "processor": "CPU", "python": "3.11"}
    result = {"machine": machine, "results": [row | {"quality": quality}]}
    committed = kv_formats.PAGE.read_text(encoding="utf-8")
    assert kv_formats.render_formats(committed, read("kv_formats.json")) == committed
    page = kv_formats.render_formats(committed, result)
    assert "| `int8` | 11,880 | 20.12 | 0.00061 | 0.011 | 98.6% | 1.50 |" in page
    assert "10,390 tokens, 2 cores" in page


def test_the_table_of_pruned_state_has_what_a_result_holds() -> None:
    """Each setting of a result is a line of the page, with its quality beside all kept."""
    quality = {"perplexity": 20.125, "kl_mean": 0.061, "kl_max": 3.2, "agreement": 0.871}
    row = {"kv_prune": "4+512", "tokens": 8842, "whole_perplexity": 19.5, "quality": quality}
    machine = {"cores": 2, "processor": "CPU", "python": "3.11"}
    result = {"machine": machine, "results": [row]}
    committed = kv_formats.PAGE.read_text(encoding="utf-8")
    assert kv_formats.render_pruning(committed, read("kv_pruning.json")) == committed
    page = kv_formats.render_pruning(committed, result)
    assert "| `4+512` | 8,842 | 19.50 | 20.12 | 0.061 | 3.2 | 87.1% |" in page


def test_the_tables_of_tiers_have_what_the_result_holds() -> None:
    """Each length is a line with its seconds by source, and each workload one with its rate."""
    page, result = TIERS.read_text(encoding="utf-8"), read("tiers.json")
    sources = ("computed", "device", "host", "disk")
    found = {(row["source"], row["prompt_tokens"]): row["seconds"] for row in result["results"]}
    for n_tokens in sorted({n_tokens for _, n_tokens in found}):
        times = " | ".join(f"{found[source, n_tokens]:.2f} s" for source in sources)
        assert f"| {n_tokens:,} | {times} |" in page
    for load in result["workload"]:
        rate, hits = f"{load['requests_per_second']:.2f}", f"{load['hit_rate']:.1%}"
        assert f"| {load['tiers']} | {rate} | {hits} |" in page


def test_the_settings_of_the_scheduling_page_have_their_defaults() -> None:
    """Each number or name in a table of settings is what the server starts with."""
    settings = Settings()
    found = re.findall(r"^\| `(\w+)` \| (\S+) \|", SCHEDULING.read_text(encoding="utf-8"), re.M)
    assert len(found) == 10
    for name, shown in found:
        table = settings.server if hasattr(settings.server, name) else settings.engine
        default = None if shown == "none" else json.loads(shown.strip("`"))
        assert getattr(table, name) == default, name
