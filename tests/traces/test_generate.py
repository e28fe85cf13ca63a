"""Made-up workloads share what they were asked to share."""

from __future__ import annotations

import random
import re
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import main
from prefixcache.errors import ConfigError
from prefixcache.traces import (
    Agentic,
    Arrivals,
    MultiTurn,
    ReadOptions,
    SharedPrefix,
    Workload,
    infinite_cache,
    read_trace,
)

BLOCK = 16
WORKLOADS = (
    SharedPrefix(requests=60, block_tokens=BLOCK, prefixes=4, prefix_tokens=160, spread=0.5),
    MultiTurn(requests=60, block_tokens=BLOCK, system_tokens=64, spread=0.5),
    Agentic(requests=60, block_tokens=BLOCK, shared_tokens=64, branches=3, spread=0.5),
)


def whole(tokens: int) -> int:
    """Return the tokens of the whole blocks of a prompt's beginning."""
    return tokens // BLOCK * BLOCK


def hit_tokens(workload: Workload) -> int:
    return infinite_cache(workload.generate()).hit_tokens


def test_all_but_the_first_of_a_prefix_hit_it() -> None:
    """Hits are the prefix's whole blocks, for every request but the first of each prefix."""
    workload = SharedPrefix(
        requests=50, block_tokens=BLOCK, prefixes=3, prefix_tokens=100, own_tokens=30
    )
    assert hit_tokens(workload) == (50 - 3) * whole(100)


def test_a_turn_hits_the_prompt_before() -> None:
    """Hits are the prompt of the turn before, and of first turns what all begin with."""
    workload = MultiTurn(
        requests=40,
        block_tokens=BLOCK,
        turns=4,
        system_tokens=100,
        user_tokens=25,
        output_tokens=41,
        arrivals=Arrivals(process="fixed", per_second=1e-6),  # one conversation after another
    )
    later = sum(whole(100 + 25 + turn * (25 + 41)) for turn in range(3))
    assert hit_tokens(workload) == 10 * later + 9 * whole(100)


@pytest.mark.parametrize("branches", [1, 3])
def test_a_step_hits_the_step_before(branches: int) -> None:
    """Hits are the step before, its first branch, and within a step what its branches share."""
    workload = Agentic(
        requests=5 * branches * 4,
        block_tokens=BLOCK,
        steps=5,
        shared_tokens=200,
        task_tokens=50,
        output_tokens=30,
        result_tokens=70,
        branches=branches,
        branch_tokens=20,
        arrivals=Arrivals(process="fixed", per_second=1e-6),
    )
    own = 20 if branches > 1 else 0
    starts = [250 + step * (own + 30 + 70) for step in range(5)]
    later = sum(whole(start + own) for start in starts[:-1])
    within = sum((branches - 1) * whole(start) for start in starts)
    assert hit_tokens(workload) == 4 * (later + within) + 3 * whole(200)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda each: type(each).__name__)
def test_a_workload_is_what_was_asked_for(workload: Workload) -> None:
    """So many requests in order of arrival, from 0 on, with an id a block; the same every time."""
    made = list(workload.generate())
    assert made == list(workload.generate())
    assert len(made) == workload.requests
    times = [request.timestamp_seconds for request in made]
    assert times == sorted(times)
    assert times[0] == 0
    for request in made:
        assert len(request.hash_ids) == -(-request.input_tokens // BLOCK)
        assert request.output_tokens >= 1
    assert len({request.input_tokens for request in made}) > 10


def test_another_seed_makes_other_prompts() -> None:
    """Workloads of two seeds share nothing."""
    first, second = (
        {id for request in MultiTurn(requests=10, seed=seed).generate() for id in request.hash_ids}
        for seed in (1, 2)
    )
    assert not first & second


def test_conversations_go_on_side_by_side() -> None:
    """Where they begin faster than they end, their turns are mixed."""
    made = MultiTurn(requests=60, arrivals=Arrivals(per_second=10.0)).generate()
    order = [request.conversation for request in made]
    assert order != sorted(order, key=lambda name: int(name or 0))
    assert max(Counter(order).values()) <= 5


def test_skew_prefers_the_first_prefixes() -> None:
    """With a skew of 2 the first one has more than half of the requests."""
    made = SharedPrefix(requests=400, prefixes=10, skew=2.0).generate()
    (most,) = Counter(request.hash_ids[0] for request in made).most_common(1)
    assert 200 < most[1] < 300


def test_arrivals_have_their_rate() -> None:
    """Evenly, at random or in bursts: as many a second as were asked for."""
    taken = {
        process: list(
            islice(Arrivals(process=process, per_second=4, burst=5).seconds(random.Random(1)), 2001)
        )
        for process in ("fixed", "poisson", "bursts")
    }
    assert taken["fixed"][:3] == [0, 0.25, 0.5]
    assert taken["bursts"][:6] == [0, 0, 0, 0, 0, 1.25]
    for times in taken.values():
        assert times == sorted(times)
        assert times[0] == 0
        assert 450 < times[-1] < 550


@pytest.mark.parametrize("wrong", [{"requests": 0}, {"spread": 1.0}, {"turns": 0}, {"turns": -1}])
def test_what_cannot_be_made_is_refused(wrong: dict[str, Any]) -> None:
    """An error names the setting."""
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        MultiTurn(**{"requests": 1, **wrong})


@pytest.mark.parametrize("wrong", [{"per_second": 0.0}, {"process": "x"}, {"burst": 0}])
def test_arrivals_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    """An error names the setting."""
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Arrivals(**wrong)


@pytest.mark.parametrize("kind", ["shared-prefix", "multi-turn", "agentic"])
def test_the_file_holds_the_workload(kind: str, tmp_path: Path) -> None:
    """What is read back has its ids, lengths, times and sessions; the same seed, the same bytes."""
    kinds = {"shared-prefix": SharedPrefix, "multi-turn": MultiTurn, "agentic": Agentic}
    files = [tmp_path / name for name in ("a.jsonl", "b.jsonl")]
    for file in files:
        arguments = ("--requests", "20", "--seed", "3", "--block-tokens", "64", "-o", str(file))
        with pytest.raises(SystemExit) as end:
            main(["generate", kind, *arguments])
        assert not end.value.code
    assert files[0].read_bytes() == files[1].read_bytes()
    options = ReadOptions(strict=True, block_tokens=64)
    read = read_trace(files[0], format="mooncake", options=options)
    made = list(kinds[kind](requests=20, seed=3, block_tokens=64).generate())
    assert [request.hash_ids for request in read] == [request.hash_ids for request in made]
    for found, meant in zip(read, made, strict=True):
        assert found.conversation == meant.conversation
        assert (found.input_tokens, found.output_tokens) == (
            meant.input_tokens,
            meant.output_tokens,
        )
        assert found.timestamp_seconds == pytest.approx(meant.timestamp_seconds, abs=1e-3)


@pytest.mark.parametrize(
    "arguments",
    [
        ("multi-turn",),
        ("multi-turn", "--requests", "0", "-o", "x"),
        ("agentic", "--per-second", "nan", "-o", "x"),
        ("shared-prefix", "-o", "no/such/folder/x"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    arguments: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever is wrong with the command line is one line on standard error."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["generate", *arguments])
    assert end.value.code == 2
    assert re.fullmatch(r"prefixcache: [^\n]+\n", capsys.readouterr().err)
