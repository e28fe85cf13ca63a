"""Reports to look at: the page, its charts, and the plots."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gateway.cli import main
from prefixcache.traces import ReplayPlan, ReplayResult, open_trace, replay
from prefixcache.traces.capacity import Capacity
from prefixcache.traces.curve_points import curve_points
from prefixcache.traces.page import as_page
from prefixcache.traces.series import Series, over_capacity, over_distance, over_time
from prefixcache.traces.svg import line_chart
from prefixcache.traces.why import explain
from tests.support.traces import mooncake, write_lines, write_mooncake
from tests.traces.plain import trace

VOID = {"meta", "br"}


class Balanced(HTMLParser):
    """Fails on a tag that is closed by another one."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        assert not {"src", "href"} & {name for name, _ in attrs}

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Nothing is left open."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def result(path: Path, **plan: object) -> ReplayResult:
    return replay(open_trace(str(path)), ReplayPlan(**plan))  # type: ignore[arg-type]


def full(path: Path) -> ReplayResult:
    """Return a result with all that a page can show."""
    found = result(path, capacities=[Capacity(2), Capacity()])
    requests = list(open_trace(str(path)).read())
    return ReplayResult(
        found.trace,
        found.time_unit,
        found.block_tokens,
        found.report,
        found.rows,
        explain(requests),
        curve_points(requests),
    )


def test_a_page_is_whole_and_loads_nothing(tmp_path: Path) -> None:
    """Every tag is closed; tables, charts and rows that were skipped are there."""
    path = write_lines(tmp_path / "<b>a.jsonl", mooncake(1, 2), mooncake(1, 2, at_ms=9), "{")
    page = as_page([full(path)], command="prefixcache replay <i>")
    reader = Balanced()
    reader.feed(page)
    assert reader.open == []
    text = " ".join(reader.text)
    assert "prefixcache replay <i>" in text
    assert "<b>a.jsonl, line 3: skipped" in text
    assert "Hit rate by token" in text
    assert page.count("<svg") == 3


def test_a_page_without_explanations_has_fewer_charts(tmp_path: Path) -> None:
    """What was not asked for is left out, not empty."""
    page = as_page([result(write_mooncake(tmp_path / "a.jsonl", (1,), (1,)))], command="")
    assert page.count("<svg") == 1
    assert "Why" not in page


def test_curves_end_where_more_room_brings_no_more() -> None:
    """The optimum is never below, and both meet at the end."""
    requests = trace((1, 2), (3, 4), (5,), (1, 2), (3, 4), (5,))
    points = curve_points(requests)
    lru, best = dict(points.lru), dict(points.optimum)
    assert max(lru) == max(best) == 5
    assert lru[5] == best[5] == 0.5
    assert all(best[n] >= lru[n] for n in lru.keys() & best.keys())


def test_what_was_run_is_drawn(tmp_path: Path) -> None:
    """A dot for each limited capacity, a line over time for each cache."""
    found = full(write_mooncake(tmp_path / "a.jsonl", (1, 2), (1, 2), (3,)))
    by_capacity = {line.name: line for line in over_capacity(found)}
    assert set(by_capacity) == {"lru, all", "optimum", "lru"}
    assert [x for x, _ in by_capacity["lru"].points] == [2]
    assert [line.name for line in over_time(found)] == ["lru, 2", "lru, unlimited"]
    assert [y for _, y in over_time(found)[0].points] == [0, 1, 0]
    assert over_distance(found)[0].points[-1][1] == 1


def test_a_chart_places_its_points() -> None:
    """The highest on top, the first at the left, logarithms where asked."""
    chart = line_chart([Series("a", [(1, 0.0), (10, 0.5), (100, 1.0)])], x_label="n", is_log=True)
    found = re.search(r'points="([^"]+)"', chart)
    assert found is not None
    places = [tuple(map(float, pair.split(","))) for pair in found[1].split()]
    (x0, y0), (x1, y1), (x2, y2) = places
    assert x1 - x0 == pytest.approx(x2 - x1)
    assert y0 > y1 > y2
    assert line_chart([], x_label="n") == line_chart([Series("a", [])], x_label="n") == ""


def test_a_chart_of_one_point_is_drawn() -> None:
    """However little there is."""
    assert "circle" in line_chart([Series("<a>", [(1, 0.0)], is_dots=True)], x_label="n")
    assert "<a>" not in line_chart([Series("<a>", [(1, 0.0)])], x_label="n")


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        main(["replay", *map(str, arguments)])
    assert isinstance(left.value.code, int | None)
    return left.value.code or 0


def test_the_command_writes_page_and_plots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And explains on the terminal when asked."""
    path = write_mooncake(tmp_path / "a.jsonl", (1, 2), (1, 3))
    plot, page = tmp_path / "a.png", tmp_path / "a.html"
    assert run(path, "--why", "--plot", plot, "--html", page) == 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "prefix that saves most" in capsys.readouterr().out


def test_plots_need_matplotlib(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the error says how to get it, before anything is read."""
    monkeypatch.setitem(__import__("sys").modules, "prefixcache.traces.plots", None)
    path = write_mooncake(tmp_path / "a.jsonl", (1,))
    assert run(path, "--plot", tmp_path / "a.png") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "pip install 'prefixcache[plots]'" in line


@pytest.mark.parametrize("option", [("--plot", "a.xyz"), ("--html", "/nowhere/a.html")])
def test_a_report_that_cannot_be_written_is_one_line(
    tmp_path: Path, option: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2."""
    path = write_mooncake(tmp_path / "a.jsonl", (1,))
    assert run(path, option[0], tmp_path / option[1]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_tier_without_a_limit_is_shown_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And not as some huge number of blocks."""
    path = write_mooncake(tmp_path / "a.jsonl", (1, 2), (1, 3))
    assert run(path, "--host-capacity", "unlimited", "--capacity", 2) == 0
    assert "host capacity blocks unlimited" in capsys.readouterr().out


def test_what_ifs_are_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Replicas, tiers and published prompts; the last need tenants."""
    path = write_mooncake(tmp_path / "a.jsonl", (1, 2), (1, 3))
    options = ("--replicas", 2, "--routing", "session", "--host-capacity", "512tokens")
    assert run(path, *options, "--capacity", 2, "--json", tmp_path / "r.json") == 0
    assert '"host_capacity_blocks": 1' in (tmp_path / "r.json").read_text(encoding="utf-8")
    capsys.readouterr()
    assert run(path, "--publish", 1) == 2
    assert "no tenants in it have a prefix in common" in capsys.readouterr().err
    assert run(path, "--replicas", 2, "--policy", "belady") == 2
    assert "is computed for one cache" in capsys.readouterr().err
