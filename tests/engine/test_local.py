"""The engine in-process: batches, chats and streams of one caller."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prefixcache.config import EngineConfig
from prefixcache.engine import CacheUse, LocalModel
from prefixcache.errors import ConfigError, EngineError, TemplateError, TextError, TokenIdError
from prefixcache.text import PromptEncoder
from prefixcache.types import EngineStats, FinishReason, SamplingParams
from tests.support.adapters import write_adapter
from tests.support.architectures import tiny_model
from tests.support.models import Bench, oracle, prompt_ids
from tests.support.tokenizers import write_chat_tokenizer

CONFIG = EngineConfig(kv_memory_bytes=1 << 20, block_size_tokens=4)
TEN = SamplingParams(max_tokens=10, ignore_eos=True)
REFERENCE = tiny_model("llama")


@pytest.fixture
def local(tmp_path: Path) -> LocalModel:
    """A tiny random model with a chat tokenizer."""
    write_chat_tokenizer(tmp_path)
    encoder = PromptEncoder.load(tmp_path)
    return LocalModel.from_model(tiny_model("llama"), CONFIG, encoder=encoder)


def is_idle(stats: EngineStats) -> bool:
    return stats.running == stats.waiting == stats.pool.held == 0


def assert_usable(local: LocalModel) -> None:
    """Nothing runs and nothing is held, and the next call answers as it should."""
    assert is_idle(local.engine.stats())
    local.engine.cache.check()
    prompt = prompt_ids(9, seed=77)
    (answer,) = local.generate([prompt], TEN)
    assert oracle(REFERENCE, prompt, 10).is_same(answer.token_ids)
    assert is_idle(local.engine.stats())


def test_answers_come_in_the_order_of_the_prompts(local: LocalModel) -> None:
    """One batch, however long each takes to read; the same prompt may be in it twice."""
    prompts = [prompt_ids(n, seed=n) for n in (90, 3, 40, 3, 17)]
    answers = local.generate(prompts, TEN)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert oracle(REFERENCE, prompt, 10).is_same(answer.token_ids)
        assert answer.usage.prompt_tokens == len(prompt)
        assert answer.usage.output_tokens == 10
        assert answer.finish_reason is FinishReason.LENGTH
    assert local.generate([], TEN) == []


def test_text_prompts_are_encoded_and_answers_decoded(local: LocalModel, tmp_path: Path) -> None:
    """A text prompt is its ids, and an answer's text is what its ids spell."""
    encoder = PromptEncoder.load(tmp_path)
    (by_text,) = local.generate([" hello world"], TEN)
    (by_ids,) = local.generate([encoder.text(" hello world")], TEN)
    assert by_text.token_ids == by_ids.token_ids
    assert by_text.text == encoder.tokenizer.decode(by_text.token_ids)
    assert "".join(local.stream(" hello world", TEN)) == by_text.text


def test_chats_go_through_the_template(local: LocalModel, tmp_path: Path) -> None:
    """A conversation is what the model's template makes of it, and its next turn hits."""
    messages = [{"role": "user", "content": " one two three question"}]
    answer = local.chat(messages, TEN)
    (same,) = local.generate([PromptEncoder.load(tmp_path).chat(messages)], TEN)
    assert answer.token_ids == same.token_ids
    assert answer.usage.cached_tokens == 0
    assert same.usage.cached_tokens == same.usage.prompt_tokens - 1
    with pytest.raises(TemplateError):
        local.chat([{"role": "user"}])
    assert_usable(local)


def test_a_model_without_an_encoder_takes_token_ids_alone() -> None:
    """Text and chats are refused with what to do; ids are answered without text."""
    local = LocalModel.from_model(tiny_model("llama"), CONFIG)
    for call in (
        lambda: local.generate(["text"]),
        lambda: local.chat([{"role": "user", "content": "x"}]),
        lambda: list(local.stream("text")),
    ):
        with pytest.raises(EngineError, match="token ids"):
            call()
    assert local.generate([[1, 2, 3]], TEN)[0].text == ""
    assert_usable(local)


@pytest.mark.parametrize("n_read", [1, 4])
def test_a_stream_closed_early_is_cancelled(local: LocalModel, n_read: int) -> None:
    """Whoever stops reading leaves nothing running and nothing held."""
    endless = SamplingParams(max_tokens=400, ignore_eos=True)
    stream = local.stream(" hello", endless)
    for _ in range(n_read):
        next(stream)
    assert local.engine.stats().running == 1
    stream.close()  # type: ignore[attr-defined]  # an Iterator to its readers
    assert is_idle(local.engine.stats())
    assert local.engine.stats().output_tokens_total <= n_read + 1
    assert_usable(local)


def test_a_stream_that_nobody_reads_costs_nothing(local: LocalModel) -> None:
    """A request is made when its first text is asked for."""
    stream = local.stream(" hello", TEN)
    assert not local.engine.has_work
    del stream
    assert_usable(local)


def test_streams_read_in_turns_keep_apart(local: LocalModel) -> None:
    """Each of two interleaved streams, and a batch between, has its own whole text."""
    texts = {prompt: "".join(local.stream(prompt, TEN)) for prompt in (" hello", " world", " one")}
    first, second = local.stream(" hello", TEN), local.stream(" world", TEN)
    got = ["", ""]
    between = ""
    for n, (one, other) in enumerate(itertools.zip_longest(first, second, fillvalue="")):
        got[0] += one
        got[1] += other
        if n == 3:
            between = local.generate([" one"], TEN)[0].text
    assert got == [texts[" hello"], texts[" world"]]
    assert between == texts[" one"]
    assert_usable(local)


def test_a_stream_left_beside_another_does_not_end_it(local: LocalModel) -> None:
    """Closing one stream cancels its own request alone."""
    whole = "".join(local.stream(" hello", TEN))
    kept, left = local.stream(" hello", TEN), local.stream(" world", TEN)
    got = next(kept) + next(kept)
    next(left)
    left.close()  # type: ignore[attr-defined]  # an Iterator to its readers
    assert local.engine.stats().running == 1
    assert got + "".join(kept) == whole
    assert_usable(local)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_bad_prompt_of_a_batch_leaves_the_model_usable(local: LocalModel, place: int) -> None:
    """A refused prompt raises with its reason; the others are let go."""
    prompts: list[list[int]] = [prompt_ids(20, seed=1), prompt_ids(30, seed=2)]
    prompts.insert(place, [5, 320])
    with pytest.raises(EngineError, match="320"):
        local.generate(prompts, TEN)
    assert_usable(local)


def test_a_bad_prompt_does_not_disturb_a_stream(local: LocalModel) -> None:
    """A batch that fails between two reads of a stream takes none of its text."""
    whole = "".join(local.stream(" hello", TEN))
    stream = local.stream(" hello", TEN)
    got = next(stream)
    with pytest.raises(EngineError):
        local.generate([[1, 2], []], TEN)
    assert got + "".join(stream) == whole
    assert_usable(local)


def test_a_prompt_that_cannot_be_encoded_starts_nothing(local: LocalModel) -> None:
    """The good prompts before it in the batch are not started either."""
    with pytest.raises(TokenIdError):
        local.generate([[1, 2], [-1]], TEN)
    with pytest.raises(TextError):
        local.generate([[1, 2], "\ud800"], TEN)
    assert not local.engine.has_work
    assert_usable(local)


def test_a_call_says_how_it_uses_the_cache(local: LocalModel) -> None:
    """It may keep nothing, read nothing, or share by salt alone."""
    prompt = prompt_ids(21)

    def cached(use: CacheUse) -> int:
        return local.generate([prompt], TEN, use)[0].usage.cached_tokens

    assert cached(CacheUse(store=False)) == 0
    assert cached(CacheUse()) == 0
    assert cached(CacheUse(read=False)) == 0
    assert cached(CacheUse()) == 20
    assert cached(CacheUse(salt="a")) == 0
    assert cached(CacheUse(salt="a")) == 20
    assert cached(CacheUse(salt="b")) == 0


@pytest.mark.parametrize(
    "config", [EngineConfig(dtype="bfloat16"), EngineConfig(model="x"), EngineConfig(threads=1)]
)
def test_settings_that_come_too_late_are_refused(config: EngineConfig) -> None:
    """A model in memory has its weights and place already: asking for others is an error."""
    with pytest.raises(ConfigError, match="in memory"):
        LocalModel.from_model(tiny_model("llama"), config)


@pytest.mark.parametrize("moment", ["schedule", "forward", "submit"])
def test_a_stream_collected_in_the_middle_of_a_call_disturbs_nothing(moment: str) -> None:
    """A generator that the garbage collector closes within another's step ends after it."""
    bench = Bench(n_blocks=40)
    model = LocalModel(bench.engine)
    left: list[Iterator[str]] = [model.stream(prompt_ids(30, seed=1), SamplingParams(max_tokens=9))]
    next(left[0])
    owner: Any = bench.engine.cache if moment == "schedule" else bench.model
    name = "extend" if moment == "schedule" else "forward"
    if moment == "submit":
        owner, name = bench.engine._intake, "sequence"
    whole = getattr(owner, name)

    def collecting(*arguments: Any, **options: Any) -> Any:
        left.clear()  # the last reference: its `finally` runs here
        bench.engine.cache.check()
        assert bench.n_held  # it is still in
        return whole(*arguments, **options)

    setattr(owner, name, collecting)
    found = model.generate([prompt_ids(12, seed=2)], SamplingParams(max_tokens=6))[0]
    assert oracle(bench.reference, prompt_ids(12, seed=2), 6).is_same(found.token_ids)
    assert not left
    assert bench.n_held == 0
    bench.engine.cache.check()


def test_scores_come_with_the_answer(local: LocalModel) -> None:
    """Asked for, every token of the answer and of the prompt but its first has a score."""
    prompt = prompt_ids(12, seed=5)
    sampling = SamplingParams(max_tokens=6, ignore_eos=True, top_scores=1, prompt_scores=0)
    (answer,) = local.generate([prompt], sampling)
    assert [score.token_id for score in answer.scores] == list(answer.token_ids)
    assert all(score.top[0][0] == score.token_id for score in answer.scores)
    assert [score.token_id for score in answer.prompt_scores] == prompt[1:]
    (plain,) = local.generate([prompt], TEN)
    assert (plain.scores, plain.prompt_scores) == ((), ())


def test_adapters_are_chosen_by_name(local: LocalModel, tmp_path: Path) -> None:
    """Texts, chats and streams of one adapter agree, and differ from the model's own."""
    folder = write_adapter(tmp_path / "adapter", REFERENCE)
    local.engine.load_adapter("a", str(folder))
    plain = local.generate(["hello there"])[0].text
    adapted = local.generate(["hello there"], adapter="a")[0].text
    assert plain != adapted
    assert "".join(local.stream("hello there", adapter="a")) == adapted
    messages = [{"role": "user", "content": "hello"}]
    assert local.chat(messages, adapter="a").text != local.chat(messages).text
