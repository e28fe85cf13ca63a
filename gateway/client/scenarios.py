"""What is measured of a server: each scenario asks with fresh prompts and returns figures."""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from gateway.client.prompts import PromptMaker
from gateway.client.streaming import BenchError, Streamed
from gateway.client.targets import Target

Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Prompts and answers in tokens, and how many requests."""

    prefixes: tuple[int, ...] = (1024, 4096)  # of `cold` and `cached`
    new: int = 32  # after the cached prefix
    decode_prompt: int = 128
    decode_output: int = 128
    shared_streams: int = 8
    shared_prompt: int = 1024
    shared_own: int = 16  # each stream's own tokens after the shared ones
    shared_output: int = 64
    tenants: int = 4
    tenant_requests: int = 64
    tenant_streams: int = 8  # at a time
    tenant_prompt: int = 1024
    tenant_new: int = 64
    tenant_output: int = 32
    repeat_prompt: int = 256
    repeat_output: int = 128


QUICK_SIZES = Sizes(
    prefixes=(256,),
    decode_output=16,
    shared_streams=4,
    shared_prompt=256,
    shared_output=16,
    tenants=2,
    tenant_requests=4,
    tenant_streams=2,
    tenant_prompt=256,
    tenant_output=4,
    repeat_prompt=64,
    repeat_output=16,
)  # to see that a server can be measured


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of a scenario: its figures and the answers that they were taken from."""

    figures: Figures
    answers: tuple[Streamed, ...]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A name for the tables and what it does with a server."""

    name: str
    run: Callable[[Target, PromptMaker, Sizes], Awaitable[Measured]]


SCENARIOS = ("cold", "cached", "decode", "shared", "tenants", "repeat")
_FIRST = "first token s"
_RATE = "tokens/s"
_CHANCE_TOKENS = 4


def scenarios(names: Sequence[str], sizes: Sizes) -> list[Scenario]:
    """Return the scenarios of these names; some are several, one for each size or state."""
    several = {
        "cold": [Scenario(f"cold {n:,}", _cold(n)) for n in sizes.prefixes],
        "cached": [Scenario(f"cached {n:,}", _cached(n)) for n in sizes.prefixes],
        "decode": [Scenario("decode", _decode)],
        "shared": [Scenario("shared", _shared)],
        "tenants": [
            Scenario("tenants cold", _tenants(is_warmed=False)),
            Scenario("tenants warmed", _tenants(is_warmed=True)),
        ],
        "repeat": [Scenario("repeat", _repeat)],
    }
    return [scenario for name in names for scenario in several[name]]


def _cold(tokens: int) -> Callable[[Target, PromptMaker, Sizes], Awaitable[Measured]]:
    async def run(target: Target, maker: PromptMaker, sizes: Sizes) -> Measured:
        """Time the first token of a prompt that was never sent before."""
        answer = await target.ask(maker.fresh(tokens, target.vocabulary), 2)
        _check_unread(target, [answer], 0)
        return Measured({_FIRST: answer.first_token_seconds}, (answer,))

    return run


def _cached(tokens: int) -> Callable[[Target, PromptMaker, Sizes], Awaitable[Measured]]:
    async def run(target: Target, maker: PromptMaker, sizes: Sizes) -> Measured:
        """Time the first token of new tokens after a prefix that the server has just read."""
        prefix = maker.fresh(tokens, target.vocabulary)
        await target.ask(maker.longer(prefix, sizes.new), 2)
        answer = await target.ask(maker.longer(prefix, sizes.new), 2)
        _check_unread(target, [answer], tokens)
        return Measured({_FIRST: answer.first_token_seconds}, (answer,))

    return run


async def _decode(target: Target, maker: PromptMaker, sizes: Sizes) -> Measured:
    """Take the rate of one stream alone."""
    prompt = maker.fresh(sizes.decode_prompt, target.vocabulary)
    answer = await target.ask(prompt, sizes.decode_output)
    return Measured({_RATE: answer.tokens_per_second}, (answer,))


async def _shared(target: Target, maker: PromptMaker, sizes: Sizes) -> Measured:
    """Take the rate of all streams on one cached prompt together, once all have begun.

    The rate of the whole, first tokens included, is kept beside it: a server that answers one
    after another begins its last stream when the others are over.
    """
    shared = maker.fresh(sizes.shared_prompt, target.vocabulary)
    await target.ask(maker.longer(shared, sizes.shared_own), 2)
    prompts = [maker.longer(shared, sizes.shared_own) for _ in range(sizes.shared_streams)]
    answers = await target.ask_all(prompts, sizes.shared_output, at_a_time=len(prompts))
    all_begun = max(answer.arrivals[0] for answer in answers)
    end = max(answer.arrivals[-1] for answer in answers)
    if end <= all_begun:
        raise BenchError(f"{target.address.name} streams nothing: answers come in one piece")
    tokens = sum(answer.tokens_after(all_begun) for answer in answers)
    total = sum(answer.completion_tokens for answer in answers)
    figures = {_RATE: tokens / (end - all_begun), "tokens/s in all": total / _seconds(answers)}
    return Measured(figures, tuple(answers))


def _tenants(*, is_warmed: bool) -> Callable[[Target, PromptMaker, Sizes], Awaitable[Measured]]:
    async def run(target: Target, maker: PromptMaker, sizes: Sizes) -> Measured:
        """Take the rate of requests of several tenants, each after its own long prompt."""
        prompts = [
            maker.fresh(sizes.tenant_prompt, target.vocabulary) for _ in range(sizes.tenants)
        ]
        if is_warmed:
            for prompt in prompts:
                await target.ask(prompt, 2)
        requests = [
            maker.longer(prompts[index % sizes.tenants], sizes.tenant_new)
            for index in range(sizes.tenant_requests)
        ]
        answers = await target.ask_all(
            requests, sizes.tenant_output, at_a_time=sizes.tenant_streams
        )
        _check_unread(target, answers, sizes.tenant_prompt)
        first_tokens = statistics.median(answer.first_token_seconds for answer in answers)
        figures = {"requests/s": len(answers) / _seconds(answers), _FIRST: first_tokens}
        return Measured(figures, tuple(answers))

    return run


async def _repeat(target: Target, maker: PromptMaker, sizes: Sizes) -> Measured:
    """Set the rate of a request that was answered before against the first time."""
    prompt = maker.fresh(sizes.repeat_prompt, target.vocabulary)
    answers = [await target.ask(prompt, sizes.repeat_output) for _ in range(2)]
    first, second = (answer.tokens_per_second for answer in answers)
    figures = {"first tokens/s": first, "second tokens/s": second, "second/first": second / first}
    return Measured(figures, tuple(answers[1:]))


def _seconds(answers: Sequence[Streamed]) -> float:
    begin = min(answer.sent_at for answer in answers)
    return max(answer.ended_at for answer in answers) - begin


def _check_unread(target: Target, answers: Sequence[Streamed], read_tokens: int) -> None:
    """Raise BenchError when more was cached than what it adds itself and `read_tokens`.

    A few random words may agree by chance, or be rounded up to a block with what follows.
    """
    allowed = read_tokens + target.vocabulary.added_tokens + _CHANCE_TOKENS
    most = max(answer.cached_tokens or 0 for answer in answers)
    if most > allowed:
        raise BenchError(
            f"{target.address.name} had {most} tokens of a fresh prompt cached; {allowed} are"
            " possible. Were these prompts sent before? Use another --seed"
        )
