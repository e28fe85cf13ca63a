"""Scenarios on a server that echoes: what is sent, in which order, and what is counted."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from gateway.client.prompts import WORDS, PromptMaker, Vocabulary, learn_vocabulary
from gateway.client.report import as_table
from gateway.client.scenarios import SCENARIOS, Measured, Sizes, scenarios
from gateway.client.sitting import Run, rows, sit
from gateway.client.streaming import BenchError, Streamed
from gateway.client.targets import Address, Target, make_target
from gateway.client.work import Work, WorkMeter
from tests.support.gateways import Gateway, echo_backend, running_gateway

SMALL = Sizes(
    prefixes=(64,),
    new=8,
    decode_prompt=16,
    decode_output=16,
    shared_prompt=64,
    shared_own=4,
    shared_output=16,
    tenant_requests=12,
    tenant_prompt=64,
    tenant_new=8,
    tenant_output=4,
    repeat_prompt=16,
    repeat_output=16,
)


@pytest.fixture
async def echo(tmp_path: Path) -> AsyncIterator[Gateway]:
    """A gateway that echoes, slowly enough that each token is an event of its own."""
    backend = echo_backend(tmp_path, [word.encode() for word in WORDS], seconds_per_token=0.002)
    async with running_gateway(backend) as gateway:
        yield gateway


async def target_of(gateway: Gateway, name: str = "one") -> Target:
    return await make_target(gateway.http, Address(name, gateway.url, os.getpid()))


async def sitting(
    targets: list[Target],
    names: tuple[str, ...],
    *,
    seed: int = 1,
    turns: int = 1,
    on_turn: Callable[[Sequence[Run]], None] = lambda _: None,
) -> tuple[list[Run], list[str]]:
    lines: list[str] = []
    runs = await sit(
        targets,
        scenarios(names, SMALL),
        SMALL,
        repeats=turns,
        warm_ups=0,
        seed=seed,
        report=lines.append,
        on_turn=on_turn,
    )
    return runs, lines


async def test_what_was_measured_is_there_after_each_turn(echo: Gateway) -> None:
    """A sitting that is ended early has its whole turns."""
    kept: list[list[int]] = []
    await sitting(
        [await target_of(echo)],
        ("decode",),
        turns=3,
        on_turn=lambda runs: kept.append([run.turn for run in runs]),
    )
    assert kept == [[0], [0, 1], [0, 1, 2]]


async def test_every_scenario_gives_figures_of_real_requests(echo: Gateway) -> None:
    """Each scenario sends prompts of its exact sizes and finds rates and times above zero."""
    runs, lines = await sitting([await target_of(echo)], SCENARIOS)
    assert [run.scenario for run in runs] == [
        *("cold 64", "cached 64", "decode", "shared", "tenants cold", "tenants warmed", "repeat")
    ]
    assert len(lines) == len(runs)
    for run in runs:
        assert all(value > 0 for value in run.measured.figures.values()), run
    table = as_table(rows(runs, ["one"]), ["one"])
    assert table.splitlines()[2].split() == [
        *("cached", "64", "first", "token", "s"),
        *(f"{runs[1].measured.figures['first token s']:.3f}", "64"),
    ]


async def test_the_tokens_of_the_scenarios_are_the_ones_the_server_counted(echo: Gateway) -> None:
    """The server's own counters say what the sizes say."""
    target = await target_of(echo)
    before = echo.backend.stats()
    await sitting([target], ("tenants",))
    after = echo.backend.stats()
    requests = 2 * 12 * (64 + 8)
    assert after.prompt_tokens_total - before.prompt_tokens_total == requests + 4 * 64
    assert after.output_tokens_total - before.output_tokens_total == 2 * 12 * 4 + 4 * 2


async def test_prompts_are_fresh_in_every_run_but_with_a_seed(echo: Gateway) -> None:
    """Another seed sends other prompts; a prompt that was sent before is not taken for cold."""
    target = await target_of(echo)
    for seed in (1, 2):
        runs, _ = await sitting([target], ("cold",), seed=seed)
        assert runs[0].measured.answers[0].cached_tokens in range(4)
    with pytest.raises(BenchError, match=r"had 63 tokens of a fresh prompt cached.*--seed"):
        await sitting([target], ("cold",), seed=2)


async def test_servers_take_turns_with_the_same_prompts(echo: Gateway, tmp_path: Path) -> None:
    """Within a turn each scenario visits all servers, and who begins changes."""
    backend = echo_backend(tmp_path / "two", [word.encode() for word in WORDS])
    async with running_gateway(backend) as other:
        targets = [await target_of(echo), await target_of(other, "two")]
        runs, _ = await sitting(targets, ("cold", "cached"), turns=2)
    assert [(run.turn, run.scenario, run.server) for run in runs] == [
        *((0, "cold 64", "one"), (0, "cold 64", "two")),
        *((0, "cached 64", "one"), (0, "cached 64", "two")),
        *((1, "cold 64", "two"), (1, "cold 64", "one")),
        *((1, "cached 64", "two"), (1, "cached 64", "one")),
    ]


def answer_with(cached_tokens: int | None) -> Streamed:
    return Streamed(0.0, (1.0,), 2.0, 10, 1, cached_tokens)


def test_a_count_that_is_not_reported_is_unknown() -> None:
    """Where a server does not say what was cached, the table has a question mark, not a zero."""
    run = Run("a", "cold", 0, False, Measured({"s": 1.0}, (answer_with(None),)), Work(1, None, 0))
    (row,) = rows([run], ["a"])
    assert row.cached_tokens == {"a": None}
    assert as_table([row], ["a"]).splitlines()[1].split() == ["cold", "s", "1.000", "?"]


def test_warm_ups_are_kept_and_not_counted() -> None:
    """Medians are of the turns that count; ratios are taken turn by turn, then their median."""
    quiet = Work(1.0, None, 0.0)
    figures = {"a": [9.0, 1.0, 2.0, 4.0], "b": [9.0, 3.0, 2.0, 8.0]}
    runs = [
        Run(server, "cold", turn, turn == 0, Measured({"s": value}, (answer_with(turn),)), quiet)
        for server, values in figures.items()
        for turn, value in enumerate(values)
    ]
    (row,) = rows(runs, ["a", "b"])
    assert row.medians == {"a": 2.0, "b": 3.0}
    assert row.to_first == {"a": 1.0, "b": 2.0}
    assert row.cached_tokens == {"a": 2, "b": 2}
    assert "3.000 (x2.00)" in as_table([row], ["a", "b"])


async def test_prompts_have_the_tokens_that_were_asked_for() -> None:
    """Words of several tokens are found out, and what a server adds to a prompt is counted."""
    words = ["one", "two", "three", "four", "five", "six", "seven"]
    costs = {"three": 2, "six": 3, "seven": 2}

    async def count(text: str) -> int:
        return 3 + sum(costs.get(word, 1) for word in text.split())

    vocabulary = await learn_vocabulary(count, [f" {word}" for word in words])
    assert vocabulary == Vocabulary((" one", " two", " four", " five"), 3)
    maker = PromptMaker(vocabulary.words, random.Random(0))
    prompt = maker.fresh(100, vocabulary)
    assert await count(prompt.text) == prompt.tokens == 100
    longer = maker.longer(prompt, 20)
    assert await count(longer.text) == longer.tokens == 120
    assert longer.text.startswith(prompt.text)


async def test_a_server_without_single_words_is_refused() -> None:
    """Where no word is one token, no prompt of an exact length can be made."""

    async def count(text: str) -> int:
        return len(text)

    with pytest.raises(BenchError, match="0 of 2 words"):
        await learn_vocabulary(count, [" one", " two"])


def test_rates_count_from_the_first_token() -> None:
    """The first event starts the clock; an event that holds several tokens has its share."""
    answer = Streamed(0.0, (2.0, 3.0, 4.0, 6.0), 7.0, 10, 9, None)
    assert answer.first_token_seconds == 2.0
    assert answer.tokens_per_second == 2.0
    assert answer.tokens_after(3.0) == 4.5
    with pytest.raises(BenchError, match="one event"):
        _ = Streamed(0.0, (2.0,), 7.0, 10, 9, None).tokens_per_second


def test_work_is_the_servers_or_other() -> None:
    """Processor time of the server and what it started is the server's; of others, other."""
    code = (
        "import sys, time\nsys.stdin.readline()\n"
        "while time.process_time() < 0.5: pass\nprint(flush=True); sys.stdin.readline()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        meters = WorkMeter(process.pid), WorkMeter(None)
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        server, other = (meter.read() for meter in meters)
        process.communicate(b"\n")
    assert server.server_cpu_seconds is not None
    assert server.server_cpu_seconds > 0.3
    assert other.server_cpu_seconds is None
    assert other.other_cores * other.seconds > 0.3
