"""All servers measured in one sitting, in turns, so that what the machine does meets them all."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.client.identity import check_unchanged
from gateway.client.prompts import PromptMaker
from gateway.client.scenarios import Measured, Scenario, Sizes
from gateway.client.targets import Target
from gateway.client.work import Work, WorkMeter


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one scenario on one server."""

    server: str
    scenario: str
    turn: int
    is_warm_up: bool
    measured: Measured
    work: Work  # preparing requests included


@dataclass(frozen=True, slots=True)
class Row:
    """The medians of one figure, server by server, warm-ups left out."""

    scenario: str
    figure: str
    medians: dict[str, float]  # server -> figure
    to_first: dict[str, float]  # server -> median over the turns of its figure / the first one's
    cached_tokens: dict[str, int | None]  # server -> median of a request; None: not reported


async def sit(
    targets: Sequence[Target],
    scenarios: Sequence[Scenario],
    sizes: Sizes,
    *,
    repeats: int,
    warm_ups: int,
    seed: int,
    report: Callable[[str], None],
    on_turn: Callable[[Sequence[Run]], None],
) -> list[Run]:
    """Run every scenario on every server `warm_ups + repeats` times, the servers taking turns.

    In a turn all servers get the same prompts; who begins changes from turn to turn. `on_turn` is
    given all runs so far after each, so that a sitting of hours may end early.

    Raises:
        BenchError: a server failed, or another process has its port by now.
    """
    words = _common_words(targets)
    runs = []
    for turn in range(warm_ups + repeats):
        order = [*targets[turn % len(targets) :], *targets[: turn % len(targets)]]
        for scenario in scenarios:
            for target in order:
                check_unchanged(target.address.url, target.identity)
                maker = PromptMaker(words, _rng(seed, turn, scenario.name))
                meter = WorkMeter(target.identity.pid)
                measured = await scenario.run(target, maker, sizes)
                is_warm_up = turn < warm_ups
                name = target.address.name
                runs.append(Run(name, scenario.name, turn, is_warm_up, measured, meter.read()))
                report(_line(runs[-1]))
        for target in targets:
            check_unchanged(target.address.url, target.identity)
        on_turn(runs)
    return runs


def rows(runs: Sequence[Run], servers: Sequence[str]) -> list[Row]:
    """Return the medians of all runs but the warm-ups, in the order of the runs."""
    counted = [run for run in runs if not run.is_warm_up]
    figures = dict.fromkeys(
        (run.scenario, figure) for run in counted for figure in run.measured.figures
    )
    return [_row(counted, servers, scenario, figure) for scenario, figure in figures]


def _row(runs: Sequence[Run], servers: Sequence[str], scenario: str, figure: str) -> Row:
    values: dict[str, dict[int, float]] = {server: {} for server in servers}
    cached: dict[str, list[int | None]] = {server: [] for server in servers}
    for run in runs:
        if run.scenario == scenario:
            values[run.server][run.turn] = run.measured.figures[figure]
            cached[run.server] += [answer.cached_tokens for answer in run.measured.answers]
    first = values[servers[0]]
    return Row(
        scenario,
        figure,
        medians={server: statistics.median(found.values()) for server, found in values.items()},
        to_first={
            server: statistics.median(found[turn] / first[turn] for turn in found)
            for server, found in values.items()
        },
        cached_tokens={server: _median(found) for server, found in cached.items()},
    )


def _median(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return round(statistics.median(known)) if known else None


def _common_words(targets: Sequence[Target]) -> list[str]:
    """Return the words that are one token to every server."""
    first, *others = (target.vocabulary.words for target in targets)
    return [word for word in first if all(word in words for words in others)]


def _rng(seed: int, turn: int, scenario: str) -> random.Random:
    return random.Random(f"{seed}/{turn}/{scenario}")  # noqa: S311 (prompts, not secrets)


def _line(run: Run) -> str:
    figures = ", ".join(f"{value:.4g} {name}" for name, value in run.measured.figures.items())
    kind = "warm-up" if run.is_warm_up else "turn"
    others = f"others had {run.work.other_cores:.2f} cores"
    return f"{kind} {run.turn + 1}: {run.scenario}: {run.server}: {figures} ({others})"
