"""Guessed tokens: they save steps where they are right, and change nothing where they are not."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from prefixcache.engine.drafting import Draft, Trust
from prefixcache.engine.sequence import Sequence as Request
from prefixcache.text import Tokenizer
from prefixcache.types import Delta, Finished, FinishReason, Grammar, GrammarKind, TokenScore
from tests.support.architectures import VOCAB_SIZE
from tests.support.models import Bench, prompt_ids
from tests.support.storm import CheapRows
from tests.support.tokenizers import write_chat_tokenizer

Guess = Callable[[int], Sequence[int]]  # how many tokens were said -> what may follow


class Scripted:
    """A drafter that says what a test wrote for it."""

    def __init__(self, guess: Guess) -> None:
        self._guess = guess

    def draft(self, output: Sequence[int], n_most: int) -> Draft | None:
        tokens = list(self._guess(len(output)))[:n_most]
        return Draft(tokens, Trust(0.99)) if tokens else None


def speculating(guess: Guess | None = None, **options: Any) -> Bench:
    """Return an engine that drafts whatever it can; `guess`: what, where it is not its own."""
    bench = Bench(**({"speculation": "auto"} | options))
    speculation = bench.engine._speculation
    speculation._costs = CheapRows()  # type: ignore[assignment]
    if guess is not None:
        speculation._drafter = lambda _: Scripted(guess)  # type: ignore[assignment,method-assign,return-value]
    return bench


@dataclass
class Seen:
    """All that a client sees of an answer."""

    token_ids: list[int]
    text: str
    scores: list[TokenScore]
    ending: Finished


def ask(bench: Bench, prompt: Sequence[int], n_tokens: int, **options: Any) -> Seen:
    scores: list[TokenScore] = []
    name = f"ask-{len(bench.answers)}"
    bench.submit(name, prompt, n_tokens, **options)
    while bench.engine.has_work:
        for event in bench.step():
            if isinstance(event, Delta):
                assert len(event.scores) in (0, len(event.token_ids))
                scores += event.scores
    answer = bench.answers[name]
    ending = answer.finished
    return Seen(answer.token_ids, answer.text, scores, Finished("", ending.reason, ending.usage))  # type: ignore[arg-type]


def assert_same(found: Seen, wanted: Seen) -> None:
    assert found.token_ids == wanted.token_ids
    assert (found.text, found.ending) == (wanted.text, wanted.ending)
    assert [score.token_id for score in found.scores] == [score.token_id for score in wanted.scores]
    for mine, theirs in zip(found.scores, wanted.scores, strict=True):
        assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-3)
        assert [token for token, _ in mine.top] == [token for token, _ in theirs.top]


def misled(right: Sequence[int], seed: int) -> Guess:
    """Return guesses that go wrong somewhere, or nowhere, or everywhere."""
    rng = random.Random(seed)

    def guess(n_said: int) -> list[int]:
        tokens = list(right[n_said:])
        for at in range(len(tokens)):
            if rng.random() < 0.3:
                tokens[at] = rng.randrange(VOCAB_SIZE)
        return tokens + [rng.randrange(VOCAB_SIZE)] * rng.randrange(3)

    return guess


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_chat_tokenizer(folder)
    return Tokenizer.load(folder)


OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "scored": {"top_scores": 3},
    "seeded": {"temperature": 1.0, "seed": 5},
    "filtered": {"temperature": 0.8, "seed": 6, "top_p": 0.9, "top_k": 40, "min_p": 0.01},
    "penalised": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.7},
    "biased": {"logit_bias": ((3, 4.0), (4, 3.0)), "min_tokens": 4, "temperature": 1.0, "seed": 1},
    "stopped": {"stop_token_ids": tuple(range(0, 320, 7))},
    "prompt scores": {"prompt_scores": 1, "top_scores": 1},
    "regex": {
        "grammar": Grammar(GrammarKind.REGEX, "([a-c]{1,3} ){0,9}z"),
        "temperature": 1.0,
        "seed": 2,
    },
    "schema": {
        "grammar": Grammar(
            GrammarKind.JSON_SCHEMA, '{"type": "array", "items": {"type": "integer"}}'
        ),
        "temperature": 1.0,
        "seed": 3,
    },
    "stop text": {"stop": ("e", "the"), "temperature": 1.0, "seed": 4},
}


@pytest.mark.parametrize("architecture", ["llama", "qwen2-mixed"])
@pytest.mark.parametrize("name", OPTIONS)
def test_drafts_change_no_answer(name: str, architecture: str, tokenizer: Tokenizer) -> None:
    """Tokens, text, scores, ending, usage and what is cached are those of one token a step.

    Right or wrong drafts, asked once, and again where the tree knows the answer.
    """
    options: dict[str, Any] = {
        "tokenizer": tokenizer,
        "eos_token_id": 2,
        "architecture": architecture,
    }
    seed = list(OPTIONS).index(name)
    prompt = prompt_ids(11, seed)
    plain = Bench(**options)
    wanted = [ask(plain, prompt, 40, **OPTIONS[name]) for _ in range(2)]
    own = speculating(**options)
    wild = speculating(misled(wanted[0].token_ids, seed), **options)
    for bench in (own, wild):
        for each in wanted:
            assert_same(ask(bench, prompt, 40, **OPTIONS[name]), each)
        for n in range(0, 60, 4) if architecture == "llama" else ():  # windows let go of some
            stored = [*[*prompt, *wanted[0].token_ids][:n], 1]
            assert bench.matchable(stored) == plain.matchable(stored)
        assert bench.n_held == 0


def test_a_repeated_answer_takes_a_fraction_of_the_steps() -> None:
    """What was said before comes again many tokens a step, from the tree."""
    bench, prompt = speculating(block_size_tokens=4), prompt_ids(20)
    first = bench.run(prompt, 61)
    before = bench.engine.stats()
    second = bench.run(prompt, 61)
    after = bench.engine.stats()
    assert second.token_ids == first.token_ids
    assert after.steps_total - before.steps_total <= 12
    assert after.accepted_tokens_total - before.accepted_tokens_total >= 50
    assert after.drafted_tokens_total >= after.accepted_tokens_total


def test_an_answer_that_repeats_itself_takes_fewer_steps() -> None:
    """Words that came in the prompt or the answer before are guessed to go on as they did."""
    words = prompt_ids(8, 3)
    bench = speculating(script=[0] * 9 + words * 9)
    answer = bench.run(prompt_ids(10), 64)
    assert answer.token_ids == (words * 9)[:64]
    assert bench.engine.stats().steps_total <= 25


def test_wrong_drafts_cost_rows_and_nothing_else() -> None:
    """With every draft wrong each step gives one token, and none is counted as accepted."""
    plain, prompt = Bench(), prompt_ids(10)
    wanted = plain.run(prompt, 30)
    wrong = [(token + 1) % VOCAB_SIZE for token in wanted.token_ids]
    bench = speculating(lambda n_said: wrong[n_said:])
    assert bench.run(prompt, 30).token_ids == wanted.token_ids
    stats, plain_stats = bench.engine.stats(), plain.engine.stats()
    assert stats.steps_total == plain_stats.steps_total
    assert stats.drafted_tokens_total > 300
    assert stats.accepted_tokens_total == 0
    assert stats.computed_tokens_total == plain_stats.computed_tokens_total
    assert stats.pool == plain_stats.pool


def test_a_draft_that_is_no_token_of_the_model_is_never_fed() -> None:
    """Drafts end before an id that the model does not have."""
    bench = speculating(lambda _: [1, VOCAB_SIZE, 1])
    assert len(bench.run(prompt_ids(10), 12).token_ids) == 12
    assert {step.token_ids.shape[1] for step in bench.model.steps[1:]} == {1, 2}


def test_right_drafts_are_all_taken() -> None:
    """Drafts that are right give as many tokens a step, and the last step none too many."""
    prompt = prompt_ids(10)
    wanted = Bench().run(prompt, 33)
    bench = speculating(lambda n_said: wanted.token_ids[n_said:], max_draft_tokens=7)
    assert bench.run(prompt, 33).token_ids == wanted.token_ids
    assert bench.engine.stats().steps_total == 1 + 4
    assert max(step.token_ids.shape[1] for step in bench.model.steps[1:]) == 8


def test_switched_off_nothing_is_drafted() -> None:
    """`speculation` off leaves one token a step."""
    bench, prompt = Bench(speculation="off"), prompt_ids(10)
    for _ in range(2):
        bench.run(prompt, 20)
    assert bench.engine.stats().drafted_tokens_total == 0
    assert bench.engine.stats().steps_total == 40


def test_what_another_tenant_said_is_never_drafted() -> None:
    """A tenant's first request gets no guess from what another one was answered."""
    bench, prompt = speculating(), list(range(10, 30))
    bench.run(prompt, 30, tenant="a")
    bench.run(prompt, 30, tenant="a")
    assert bench.engine.stats().accepted_tokens_total > 20
    alone = speculating()
    alone.run(prompt, 30, tenant="b")
    before = bench.engine.stats().drafted_tokens_total
    bench.run(prompt, 30, tenant="b")
    drafted = bench.engine.stats().drafted_tokens_total - before
    assert drafted == alone.engine.stats().drafted_tokens_total


def test_a_request_that_may_not_read_the_cache_has_no_drafts_from_it() -> None:
    """Its guesses come from its own words alone."""
    bench, prompt = speculating(), list(range(10, 30))
    bench.run(prompt, 30, read_cache=False)
    before = bench.engine.stats().drafted_tokens_total
    bench.run(prompt, 30, read_cache=False)
    assert bench.engine.stats().drafted_tokens_total == 2 * before


def test_drafts_take_no_room_that_anybody_needs() -> None:
    """In a pool that is full they neither evict nor preempt, and are left out."""
    wild = random.Random(3)
    options: dict[str, Any] = {"n_blocks": 20, "block_size_tokens": 4, "growth_blocks": 0}

    def served(bench: Bench) -> tuple[list[list[int]], Any]:
        bench.run(prompt_ids(17, 9), 2)
        for number in range(3):
            bench.submit(f"r{number}", prompt_ids(9, number), 11)
        bench.drain()
        return [bench.answers[f"r{number}"].token_ids for number in range(3)], bench.engine.stats()

    plain_answers, plain = served(Bench(**options))
    answers, stats = served(
        speculating(lambda _: [wild.randrange(VOCAB_SIZE) for _ in range(15)], **options)
    )
    assert answers == plain_answers
    assert stats.drafted_tokens_total > 0
    assert (stats.evicted_blocks_total, stats.preemptions_total) == (
        plain.evicted_blocks_total,
        plain.preemptions_total,
    )
    assert stats.pool.held == 0


@pytest.mark.parametrize("max_step_tokens", [3, 5, 12])
def test_drafts_count_in_a_step(max_step_tokens: int) -> None:
    """With its drafts a step has no more rows than it may have."""
    bench = speculating(lambda _: [1] * 15, max_step_tokens=max_step_tokens, max_running_requests=3)
    for number in range(3):
        bench.submit(f"r{number}", prompt_ids(9, number), 12)
    bench.drain()
    sizes = [step.token_ids.shape[1] for step in bench.model.steps]
    assert max(sizes) == max_step_tokens


def test_a_cancel_within_a_step_drops_its_drafts() -> None:
    """Nothing of a request that was cancelled while its drafts were verified comes out."""
    prompt = prompt_ids(10)
    wanted = Bench().run(prompt, 30)
    bench = speculating(lambda n_said: wanted.token_ids[n_said:])
    bench.submit("a", prompt, 30)
    bench.step()
    bench.step(lambda: bench.engine.cancel("a"))  # type: ignore[arg-type]
    assert bench.answers["a"].token_ids == wanted.token_ids[:1]
    assert bench.n_held == 0


def test_a_preempted_answer_goes_on_with_drafts() -> None:
    """What was accepted before a preemption stays, and drafts come again after it."""
    prompt = prompt_ids(10)
    wanted = Bench().run(prompt, 40)
    bench = speculating(lambda n_said: wanted.token_ids[n_said:], max_draft_tokens=5)
    bench.submit("a", prompt, 40)
    for _ in range(4):
        bench.step()
        scheduler = bench.engine._scheduler
        scheduler._preempt(scheduler.running[0])
        bench.engine.cache.check()
    bench.drain()
    assert bench.answers["a"].token_ids == wanted.token_ids
    assert bench.engine.stats().accepted_tokens_total > 20


def test_an_end_among_the_drafts_is_the_end(tokenizer: Tokenizer) -> None:
    """Right drafts beyond a stop token or a stop text are not said."""
    script = [0] * 9 + [*range(20, 40)]
    for options in ({"stop_token_ids": (24,)}, {"stop": (tokenizer.decode([24]),)}):
        benches = [
            Bench(tokenizer=tokenizer, script=script),
            speculating(lambda n: range(20 + n, 40), tokenizer=tokenizer, script=script),
        ]
        plain, found = (ask(bench, prompt_ids(10), 20, **options) for bench in benches)
        assert_same(found, plain)
        assert found.ending.reason is FinishReason.STOP
        assert found.ending.usage.output_tokens == 5


def test_eight_streams_share_their_drafts_fairly() -> None:
    """Where rows are dear nobody falls below nine tenths of the pace it would have alone."""
    bench = speculating(max_running_requests=8)

    class Dear:
        def relative(self, n_rows: int, n_more: int) -> list[float]:
            return [1 + 0.03 * row for row in range(n_more + 1)]

    speculation = bench.engine._speculation
    speculation._costs = Dear()  # type: ignore[assignment]
    lucky = prompt_ids(40, 99)

    def drafter(request: Request) -> Scripted:
        return Scripted(lambda n: lucky[n:] if request.request.request_id == "r0" else [])

    speculation._drafter = drafter  # type: ignore[assignment,method-assign]
    for number in range(8):
        bench.submit(f"r{number}", prompt_ids(9, number), 12)
    bench.drain()
    assert max(len(step.logit_rows) for step in bench.model.steps) == 11
