"""Attempts to break the engine: poisoned memory, odd settings, crowded pools, broken files."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest
import torch
from msgspec import structs
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, DeepseekV3Config, PreTrainedModel, Qwen2MoeConfig

from prefixcache import wire
from prefixcache.config import EngineConfig
from prefixcache.engine import Engine, LocalModel, attention, worker
from prefixcache.engine.model import PagedModel
from prefixcache.engine.plan import Chunk, Step, plan_step
from prefixcache.engine.sampling import Sampler
from prefixcache.engine.selfcheck import check_model
from prefixcache.errors import EngineError, ModelError, TokenIdError, UnsupportedModelError
from prefixcache.index import Namespace, pack
from prefixcache.kv import KVLayout, KVStore, LayerGroup
from prefixcache.text import Tokenizer
from prefixcache.types import (
    BlockId,
    Delta,
    Failed,
    FailureKind,
    Finished,
    FinishReason,
    GenerationRequest,
    RequestId,
    SamplingParams,
    Span,
    Started,
)
from tests.support.drawing import draw
from tests.support.models import (
    CLEAR_GAP,
    VOCAB_SIZE,
    Answer,
    Bench,
    oracle,
    prompt_ids,
    tiny_model,
    write_tiny_model,
)
from tests.support.tokenizers import write_chat_tokenizer

BLOCK = 4  # the test benches' default
SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "initializer_range": 0.2,
}


# Whatever comes in whatever order, no answer is made of memory that is not its own.


def poison(bench: Bench) -> None:
    """Fill the store with NaN, and every block again in the moment that it is freed."""
    store = bench.loaded.store
    size = bench.config.block_size_tokens

    def spoil(group: int, first: int, n_blocks: int) -> None:
        for layer in store.layout.groups[group].layers:
            for tensor in store.layer(layer):
                tensor[:, first * size : (first + n_blocks) * size] = torch.nan

    for group, pool in enumerate(bench.engine.cache._pools.pools):
        spoil(group, 0, store.n_blocks)

        def freed(span: Span, give_back: Any = pool.free, group: int = group) -> None:
            spoil(group, span.first, span.n_blocks)
            give_back(span)

        pool.free = freed  # type: ignore[method-assign]


def is_greedy(model: PreTrainedModel, prompt: list[int], output: list[int]) -> bool:
    """Whether each token of `output` is the best one, or nearly, in one plain forward."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([prompt + output])).logits[0, len(prompt) - 1 :]
    chosen = logits[range(len(output)), output]
    return bool((logits[: len(output)].max(-1).values - chosen <= CLEAR_GAP).all())


def small_bench(architecture: str = "llama", *, n_tokens: int, **settings: Any) -> Bench:
    """Return an engine whose pool holds `n_tokens`, or the part of a block that is missing more."""
    info = Bench(architecture, **settings).engine.info
    n_blocks = -(-n_tokens // info.block_size_tokens)
    n_bytes = n_blocks * info.block_size_tokens * info.kv_bytes_per_token
    return Bench(architecture, kv_memory_bytes=n_bytes, **settings)


class Workload:
    """Random requests, cancels, preemptions and evictions on one engine, all from one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        size = rng.choice([1, 3, 4, 8, 16])
        architecture = rng.choice(["qwen2-mixed", "mistral-window", "llama", "gpt2"])
        self.bench = small_bench(
            architecture,
            n_tokens=rng.choice([64, 100, 200]),
            block_size_tokens=size,
            max_step_tokens=rng.choice([2, 7, 16, 64]),
            max_running_requests=rng.choice([2, 4, 16]),
            growth_blocks=rng.choice([0, 1, 8, 100]),
            token_exact_reuse=rng.random() < 0.8,
            prefix_cache=rng.random() < 0.9,
        )
        self.engine = self.bench.engine
        self.limit = self.engine.info.max_model_tokens
        poison(self.bench)
        self.stems = [prompt_ids(self.limit, seed=number) for number in range(3)]
        self.prompts: dict[str, list[int]] = {}
        self.outputs: dict[str, list[int]] = {}
        self.ends: dict[str, Finished | Failed] = {}
        self.takes_new = True

    def submit(self) -> None:
        rng = self.rng
        stem = rng.choice(self.stems)[: rng.randrange(min(self.limit - 6, 50))]
        if self.outputs and rng.random() < 0.3:  # the next turn of somebody's conversation
            name = rng.choice(list(self.outputs))
            stem = (self.prompts[name] + self.outputs[name])[: self.limit - 6]
        prompt = stem + [rng.randrange(4) for _ in range(rng.randint(1, 5))]
        name = f"r{len(self.prompts)}"
        self.prompts[name], self.outputs[name] = prompt, []
        request = GenerationRequest(
            request_id=RequestId(name),
            token_ids=pack(prompt),
            sampling=SamplingParams(max_tokens=rng.choice([1, 2, rng.randint(3, 25)])),
            tenant=rng.choice(["a", "a", "b"]),
            read_cache=rng.random() < 0.9,
            store_cache=rng.random() < 0.9,
        )
        self.engine.submit(request)

    def cancel_some(self) -> None:
        while self.rng.random() < 0.1 and self.prompts.keys() - self.ends.keys():
            alive = sorted(self.prompts.keys() - self.ends.keys())
            self.engine.cancel(RequestId(self.rng.choice(alive)))

    def poll(self) -> None:
        self.cancel_some()
        if self.takes_new and self.rng.random() < 0.1:
            self.submit()
        self.engine.cache.check()

    def preempt_some(self) -> None:
        scheduler = self.engine._scheduler
        while scheduler.running and self.rng.random() < 0.15:
            scheduler._preempt(scheduler.running[-1])

    def step(self) -> None:
        self.cancel_some()
        self.preempt_some()
        if self.rng.random() < 0.05:
            self.engine.cache.evict(self.rng.randint(1, 9))
        for event in self.engine.step(self.poll):
            assert event.request_id not in self.ends
            if isinstance(event, Delta):
                self.outputs[event.request_id].extend(event.token_ids)
            elif isinstance(event, Started):
                assert event.cached_tokens < event.prompt_tokens
            elif isinstance(event, Finished | Failed):
                self.ends[event.request_id] = event
        self.engine.cache.check()

    def run(self) -> None:
        for _ in range(60):
            if self.rng.random() < 0.5:
                self.submit()
            self.step()
        self.takes_new = False
        for _ in range(3000):
            if not self.engine.has_work:
                return
            self.step()
        raise AssertionError("still at work")


@pytest.mark.parametrize("seed", range(8))
def test_no_order_of_events_lets_a_request_read_foreign_memory(seed: int) -> None:
    """With every free block full of NaN, each answer stays the greedy one, cancelled ones too."""
    work = Workload(seed)
    work.run()
    assert work.ends.keys() == work.prompts.keys()
    assert work.engine.stats().pool.held == 0
    for name, end in work.ends.items():
        assert isinstance(end, Finished) or end.kind is FailureKind.CANCELLED
        assert is_greedy(work.bench.reference, work.prompts[name], work.outputs[name])


def test_short_answers_evict_no_more_than_they_can_use() -> None:
    """A request that may add six tokens takes no room for a long answer from the cache."""
    bench = small_bench(n_tokens=96, growth_blocks=8)
    bench.run(prompt_ids(95), 1)
    before = bench.engine.stats()
    bench.run(prompt_ids(8, seed=5), 6)
    needed = -(-13 // BLOCK) - before.pool.free
    assert bench.engine.stats().evicted_blocks_total - before.evicted_blocks_total == needed


def test_decoding_neighbours_never_stop_a_prompt() -> None:
    """A prompt goes on in each step, however many others are decoding beside it."""
    bench = Bench(max_step_tokens=8)
    for number in range(8):
        bench.submit(f"d{number}", prompt_ids(1, seed=number), 60)
    bench.step()
    bench.submit("late", prompt_ids(24, seed=99), 1)
    for _ in range(26):
        bench.step()
    assert bench.answers["late"].ending is not None


# Sampling


def reference_chances(logits: Tensor, params: SamplingParams) -> Tensor:
    """Temperature, then the k best, then the fewest of them that reach top_p; one at a time."""
    scaled = (logits.double() / params.temperature).tolist()
    order = sorted(range(len(scaled)), key=lambda token: -scaled[token])[: params.top_k]
    weights = torch.softmax(torch.tensor([scaled[token] for token in order]), 0).tolist()
    chances, mass = torch.zeros(len(scaled)), 0.0
    for token, weight in zip(order, weights, strict=True):
        if mass >= params.top_p:
            break
        chances[token] = weight
        mass += weight
    return chances / chances.sum()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.0},
        {"top_k": 3},
        {"top_k": 50},
        {"top_p": 0.8},
        {"top_p": 0.05},
        {"temperature": 0.7, "top_k": 4, "top_p": 0.9},
    ],
)
def test_draws_follow_the_filtered_distribution(options: dict[str, Any]) -> None:
    """Over many draws every token comes as often as the settings say, and no other comes."""
    logits = torch.tensor([2.0, -1.0, 0.5, 1.5, 0.0, 1.0, -3.0, 0.8])
    params = SamplingParams(**{"temperature": 1.0, "seed": 7} | options)
    sampler, n_draws = Sampler(params), 4000
    counts = torch.bincount(
        torch.tensor([draw(sampler, logits) for _ in range(n_draws)]), minlength=8
    )
    expected = reference_chances(logits, params)
    assert not counts[expected == 0].any()
    deviation = (expected * (1 - expected) / n_draws).sqrt()
    assert ((counts / n_draws - expected).abs() <= 4.5 * deviation + 1e-9).all()


def test_requests_without_a_seed_differ() -> None:
    """Two samplers without a seed do not draw the same long sequence."""
    logits = torch.zeros(VOCAB_SIZE)
    first, second = (Sampler(SamplingParams(temperature=1.0)) for _ in range(2))
    assert [draw(first, logits) for _ in range(9)] != [draw(second, logits) for _ in range(9)]


@pytest.mark.parametrize(
    "options",
    [{"temperature": 1e-50}, {"temperature": 5e-324}, {"temperature": 1.0, "top_p": 1e-50}],
)
def test_settings_beyond_float32_choose_the_best_token(options: dict[str, Any]) -> None:
    """Values that are 0 in float32 are legal, act as greedy, and fail no neighbour."""
    bench = Bench()
    bench.submit("odd", prompt_ids(9), 4, **options)
    bench.submit("good", prompt_ids(9), 4)
    bench.drain()
    assert bench.answers["odd"].token_ids == bench.answers["good"].token_ids


def test_step_survives_a_row_that_cannot_be_sampled() -> None:
    """An error while one token is chosen ends that request alone."""
    bench = Bench()
    bench.submit("odd", prompt_ids(9), 4, temperature=1e300)  # -inf / inf is no number
    bench.submit("good", prompt_ids(9), 4)
    forward = bench.model.forward

    def masked(step: Any) -> Tensor:
        logits = forward(step).clone()
        logits[:, 5] = -torch.inf
        return logits

    bench.model.forward = masked  # type: ignore[method-assign]
    bench.drain()
    assert bench.answers["odd"].ending is not None
    assert bench.answers["good"].finished.usage.output_tokens == 4


@pytest.mark.parametrize("seed", [2**63, 2**64, -(2**63) - 1])
def test_seeds_beyond_64_bits_are_refused(seed: int) -> None:
    """A seed that no generator takes fails its request; the widest ones are served."""
    bench = Bench()
    bench.submit("bad", [1, 2], 1, temperature=1.0, seed=seed)
    bench.submit("least", [1, 2], 1, temperature=1.0, seed=-(2**63))
    bench.submit("most", [1, 2], 1, temperature=1.0, seed=2**63 - 1)
    bench.drain()
    refusal = bench.answers["bad"].ending
    assert isinstance(refusal, Failed)
    assert refusal.kind is FailureKind.INVALID
    assert len(bench.answers["least"].token_ids + bench.answers["most"].token_ids) == 2


def test_packed_ids_that_end_inside_one_are_refused() -> None:
    """Five bytes are no prompt: the request fails, and the call that queues it does not."""
    bench = Bench()
    bench.answers["half"] = Answer()
    half = GenerationRequest(
        request_id=RequestId("half"), token_ids=b"\1\0\0\0\2", sampling=SamplingParams()
    )
    bench.engine.submit(half)
    bench.drain()
    refusal = bench.answers["half"].ending
    assert isinstance(refusal, Failed)
    assert refusal.kind is FailureKind.INVALID


# Text


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_chat_tokenizer(folder)
    return Tokenizer.load(folder)


def finish(engine: Engine, **sampling: Any) -> tuple[str, Finished]:
    params = SamplingParams(**{"max_tokens": 12, "ignore_eos": True} | sampling)
    engine.submit(
        GenerationRequest(request_id=RequestId("r"), token_ids=pack(prompt_ids(9)), sampling=params)
    )
    text = ""
    while True:
        for event in engine.step():
            if isinstance(event, Delta):
                text += event.text
            elif isinstance(event, Finished):
                return text, event


def test_stop_string_that_the_end_completes_is_the_reason(tokenizer: Tokenizer) -> None:
    """Where the last token's text ends in a stop string, it is cut and the reason is stop."""
    settings = EngineConfig(kv_memory_bytes=1 << 20)
    engine = Engine.from_model(tiny_model("llama"), settings, tokenizer=tokenizer)
    text, end = finish(engine)
    assert end.reason is FinishReason.LENGTH
    stop, longer = text[-2:], text[-3:] + "..."  # the longer one could still have come true
    assert stop not in text[:-1]
    found, end = finish(engine, stop=(longer, stop))
    assert found == text[:-2]
    assert end.reason is FinishReason.STOP


# The library without HTTP


@pytest.fixture
def local() -> LocalModel:
    return LocalModel.from_model(tiny_model("llama"), EngineConfig(kv_memory_bytes=1 << 20))


TWO = SamplingParams(max_tokens=2)


def test_refused_prompt_spoils_no_later_call(local: LocalModel) -> None:
    """After a call that failed, the next one answers."""
    for bad, error in (([], EngineError), ([-1], TokenIdError)):
        with pytest.raises(error):
            local.generate([prompt_ids(5), bad], TWO)
        assert len(local.generate([prompt_ids(5)], TWO)[0].token_ids) == 2


def test_closed_stream_spoils_no_later_call(local: LocalModel) -> None:
    """A stream that is left early is cancelled, and the next call answers."""
    stream = local.stream(prompt_ids(5), SamplingParams(max_tokens=50))
    next(stream)
    cast(Generator[str], stream).close()
    assert len(local.generate([prompt_ids(5)], TWO)[0].token_ids) == 2


def test_open_streams_keep_their_own_events(local: LocalModel) -> None:
    """Streams read by turns, and calls between, each get their own tokens and end."""
    long, short = (local.stream(prompt_ids(5), SamplingParams(max_tokens=n)) for n in (9, 3))
    assert len([next(long), next(short)]) == 2
    assert len(local.generate([prompt_ids(6)], TWO)[0].token_ids) == 2
    assert len(list(long)) == 8
    assert len(list(short)) == 2


# Models and files that cannot be served


def serve(model: PreTrainedModel) -> None:
    paged = PagedModel(model)
    check_model(paged, KVStore(paged.layout(block_size_tokens=16), 4, paged.device))


def test_window_that_only_the_mask_knows_is_refused() -> None:
    """A model whose window does not reach the attention function is not served without it."""
    window = {"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 2}
    config = Qwen2MoeConfig(**SMALL, **window, num_experts=4, num_experts_per_tok=2)
    with pytest.raises(UnsupportedModelError, match="window"):
        serve(AutoModelForCausalLM.from_config(config, dtype=torch.float32))


def test_compressed_caches_are_refused_with_a_reason() -> None:
    """A model that stores something else than its attention reads is refused by name."""
    latent = {"q_lora_rank": 16, "kv_lora_rank": 16, "v_head_dim": 8}
    heads = {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "n_group": 1, "topk_group": 1}
    config = DeepseekV3Config(**SMALL, **latent, **heads, n_routed_experts=4, num_experts_per_tok=2)
    with pytest.raises(UnsupportedModelError, match="Deepseek"):
        serve(AutoModelForCausalLM.from_config(config, dtype=torch.float32))


@pytest.mark.parametrize(
    ("dtype", "factor"), [(torch.float32, 0.95), (torch.float16, 0.8), (torch.bfloat16, 0.5)]
)
def test_wrong_scale_is_refused_in_every_dtype(
    dtype: torch.dtype, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check at load tells a wrong attention from rounding, in 16 bits too."""
    serve(tiny_model("llama").to(dtype))
    plain = attention._attention

    def weaker(*tensors: Any, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
        return plain(*tensors, causal=causal, scale=scale * factor)

    monkeypatch.setattr(attention, "_attention", weaker)
    with pytest.raises(UnsupportedModelError, match="differ"):
        serve(tiny_model("llama").to(dtype))


def cut_weights(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def drop_weights(file: Path) -> None:
    weights = load_file(file)
    del weights[next(name for name in weights if "layers.1.mlp.up" in name)]
    save_file(weights, file, metadata={"format": "pt"})


@pytest.mark.parametrize("spoil", [cut_weights, drop_weights])
def test_damaged_weights_stop_the_load(spoil: Any, tmp_path: Path) -> None:
    """A file that ends early or lacks a tensor is refused, never filled up with noise."""
    write_tiny_model(tmp_path)
    spoil(tmp_path / "model.safetensors")
    settings = EngineConfig(model=str(tmp_path), kv_memory_bytes=1 << 20)
    with pytest.raises(ModelError):
        Engine.load(settings, env={}, report=lambda _: None)


# Order and room


def test_requests_start_in_order_of_arrival() -> None:
    """Among those that wait, who came first is admitted first."""
    bench = Bench(max_running_requests=1)
    started = []
    for number in range(4):
        bench.submit(f"r{number}", prompt_ids(5, seed=number), 2)
    while bench.engine.has_work:
        started += [event.request_id for event in bench.step() if isinstance(event, Started)]
    assert started == ["r0", "r1", "r2", "r3"]


def test_preempted_request_goes_before_those_that_came_later() -> None:
    """Who gave way to an older request is the next to be admitted, and is started once."""
    bench = small_bench(n_tokens=64)
    for name, seed in (("old", 1), ("young", 2)):
        bench.submit(name, prompt_ids(20, seed=seed), 24)
    bench.step()
    bench.submit("late", prompt_ids(30, seed=3), 1)
    endings, started = [], []
    while bench.engine.has_work:
        for event in bench.step():
            if isinstance(event, Finished):
                endings.append(event.request_id)
            elif isinstance(event, Started):
                started.append(event.request_id)
    assert bench.engine.stats().preemptions_total > 0
    assert started == ["late"]  # the others were, before
    assert endings == ["old", "young", "late"]


def test_no_more_than_the_limit_run_side_by_side() -> None:
    """max_running_requests is kept in every step."""
    bench = Bench(max_running_requests=3)
    for number in range(8):
        bench.submit(f"r{number}", prompt_ids(5, seed=number), 6)
    most = 0
    while bench.engine.has_work:
        bench.step()
        most = max(most, bench.engine.stats().running)
    assert most <= 3
    assert all(isinstance(answer.ending, Finished) for answer in bench.answers.values())


def test_decodes_go_on_beside_a_long_prompt() -> None:
    """Who is answering gets a token in each step, however long another's prompt is."""
    bench = Bench(max_step_tokens=8)
    bench.submit("short", prompt_ids(4), 12)
    bench.step()
    bench.submit("long", prompt_ids(90, seed=2), 1)
    for n_tokens in range(2, 12):
        bench.step()
        assert len(bench.answers["short"].token_ids) == n_tokens
    assert bench.answers["long"].ending is None


def test_admission_keeps_a_block_for_the_answer() -> None:
    """Prompts that fill the pool to the last block are not admitted only to be preempted."""
    bench = small_bench(n_tokens=64)
    for name in ("a", "b"):
        bench.submit(name, prompt_ids(32, seed=ord(name)), 3)
    bench.drain()
    assert bench.engine.stats().preemptions_total == 0


def test_answer_of_one_token_needs_no_room_beyond_its_prompt() -> None:
    """The last token is never fed, so two prompts that fill the pool run at once."""
    bench = small_bench(n_tokens=64)
    for name in ("a", "b"):
        bench.submit(name, prompt_ids(32, seed=ord(name)), 1)
    events = bench.step()
    assert sum(isinstance(event, Finished) for event in events) == 2


def test_poll_is_called_between_the_forward_and_its_tokens() -> None:
    """What arrives while the model computes is known before its tokens are shown."""
    bench = Bench()
    order: list[str] = []
    forward = bench.model.forward

    def noted(step: Step) -> Tensor:
        order.append("forward")
        return forward(step)

    bench.model.forward = noted  # type: ignore[method-assign]
    bench.submit("r", prompt_ids(5), 1)
    bench.engine.step(poll=lambda: order.append("poll"))
    assert order == ["forward", "poll"]


def test_prompt_may_leave_room_for_one_token() -> None:
    """A prompt one short of the limit gets one token; one as long as the limit is refused."""
    bench = small_bench(n_tokens=64)
    bench.submit("long", prompt_ids(64), 4)
    assert bench.run(prompt_ids(63), 4).finished.usage.output_tokens == 1
    refusal = bench.answers["long"].ending
    assert isinstance(refusal, Failed)
    assert refusal.kind is FailureKind.TOO_LARGE


def test_the_narrowest_limit_is_the_longest_sequence() -> None:
    """Of the model's, the setting's and the pool's limit the least one counts."""
    assert small_bench(n_tokens=64).engine.info.max_model_tokens == 64
    assert Bench(kv_memory_bytes=1 << 23).engine.info.max_model_tokens == 512
    assert Bench(max_model_tokens=30).engine.info.max_model_tokens == 30


# What is stored


def namespace(bench: Bench) -> Namespace:
    info = bench.engine.info
    return Namespace(model=info.load_id, kv_format=info.dtype)


def test_only_written_positions_are_matchable() -> None:
    """A prompt that is cancelled one token before a block is full leaves that block out."""
    bench = Bench(max_step_tokens=31)
    poison(bench)
    prompt = prompt_ids(64, seed=1)
    bench.submit("gone", prompt, 4)
    bench.step()
    bench.engine.cancel(RequestId("gone"))
    assert bench.engine.cache.match_length(namespace(bench), pack(prompt)) == 28
    assert is_greedy(bench.reference, prompt, bench.run(prompt, 4).token_ids)


@pytest.mark.parametrize(("n_tokens", "known"), [(4, 20), (5, 24)])
def test_last_block_of_an_answer_is_stored_when_it_is_full(n_tokens: int, known: int) -> None:
    """Prompt and answer less the last token, to the token, are there for the next turn."""
    bench = Bench()
    prompt = prompt_ids(20, seed=1)
    turn = prompt + bench.run(prompt, n_tokens).token_ids
    assert bench.run([*turn, 1, 2], 1).cached_tokens == known


def test_salts_share_nothing() -> None:
    """The same prompt of the same tenant under another salt is a miss."""
    bench = Bench()
    cached = []
    for number, salt in enumerate((None, "a", "b", "a", "")):
        bench.answers[str(number)] = Answer()
        bench.engine.submit(
            GenerationRequest(
                request_id=RequestId(str(number)),
                token_ids=pack(prompt_ids(21)),
                sampling=TWO,
                salt=salt,
            )
        )
        bench.drain()
        cached.append(bench.answers[str(number)].cached_tokens)
    assert cached == [0, 0, 0, 20, 0]


def test_stats_count_every_token_once() -> None:
    """Prompt, cached, computed and output tokens add up over a cold and a warm request."""
    bench = Bench()
    for _ in range(2):
        bench.run(prompt_ids(21), 4)
    stats = bench.engine.stats()
    assert (stats.prompt_tokens_total, stats.cached_tokens_total) == (42, 20)
    assert stats.output_tokens_total == 8
    assert stats.computed_tokens_total == 42 - 20 + 2 * 3  # each answer's last is never fed
    assert (stats.running, stats.waiting, stats.pool.held) == (0, 0, 0)


# The model's call


def test_scale_of_the_model_is_the_scale_of_the_scores() -> None:
    """Where a model names its scale, attention uses that one."""
    group = LayerGroup((0,), 1, 4, 4, None)
    store = KVStore(KVLayout((group,), 4, torch.float32), 2, torch.device("cpu"))
    chunk = Chunk([1, 2], 0, ([Span(BlockId(0), 1)],), n_logits=1)
    step = plan_step([chunk], store, torch.device("cpu"))
    layer = torch.nn.Module()
    layer.layer_idx = 0  # type: ignore[assignment]
    torch.manual_seed(1)
    query, key, value = torch.randn(3, 1, 1, 2, 4).unbind()
    found, _ = attention.paged_attention(layer, query, key, value, None, step=step, scaling=3.0)
    weights = torch.softmax(3.0 * query[0, 0, 1] @ key[0, 0].T, 0)
    torch.testing.assert_close(found[0, 1, 0], weights @ value[0, 0])


def test_each_layer_group_has_its_own_table() -> None:
    """Where the groups' blocks differ, each group's slots come from its own."""
    groups = LayerGroup((0,), 1, 4, 4, None), LayerGroup((1,), 1, 4, 4, 8)
    store = KVStore(KVLayout(groups, 4, torch.float32), 8, torch.device("cpu"))
    tables = ([Span(BlockId(2), 1)], [Span(BlockId(5), 1)])
    step = plan_step([Chunk([1, 2], 1, tables, n_logits=1)], store, torch.device("cpu"))
    assert [group.slots.tolist() for group in step.groups] == [[9, 10], [21, 22]]
    assert [group.rows[0].pieces[0].start for group in step.groups] == [8, 20]


def test_logits_that_are_no_numbers_end_their_request_alone() -> None:
    """A row of NaN fails its own request, and nothing of it stays in the cache."""
    bench = Bench()
    bench.submit("bad", prompt_ids(9), 3)
    bench.submit("good", prompt_ids(9, seed=2), 3)
    forward = bench.model.forward

    def spoiled(step: Step) -> Tensor:
        logits = forward(step).clone()
        logits[0] = torch.nan
        return logits

    bench.model.forward = spoiled  # type: ignore[method-assign]
    bench.step()
    del bench.model.forward
    bench.drain()
    refusal = bench.answers["bad"].ending
    assert isinstance(refusal, Failed)
    assert refusal.kind is FailureKind.INTERNAL
    assert bench.answers["good"].finished.usage.output_tokens == 3
    assert bench.run(prompt_ids(9), 3).cached_tokens == 0


# How an answer ends


@pytest.fixture
def chatty(tokenizer: Tokenizer) -> Engine:
    """An engine with a tokenizer, for which the sixth token of its answer ends texts."""
    model = tiny_model("llama")
    sixth = oracle(model, prompt_ids(9), 6).token_ids[5]
    model.generation_config.eos_token_id = [VOCAB_SIZE - 1, sixth]
    settings = EngineConfig(kv_memory_bytes=1 << 20)
    return Engine.from_model(model, settings, tokenizer=tokenizer)


def test_end_of_text_token_ends_the_answer_unseen(chatty: Engine, tokenizer: Tokenizer) -> None:
    """Any of the model's end tokens gives reason stop and is counted, but is no text."""
    whole, _ = finish(chatty, max_tokens=6)
    text, end = finish(chatty, max_tokens=6, ignore_eos=False)
    assert end.reason is FinishReason.STOP
    assert end.usage.output_tokens == 6
    assert text == tokenizer.decode(oracle(tiny_model("llama"), prompt_ids(9), 5).token_ids)
    assert whole != text


def test_stop_string_ends_the_answer_before_it(chatty: Engine) -> None:
    """The text ends before the stop string, with reason stop and no more tokens."""
    whole, _ = finish(chatty, max_tokens=12)
    stop = whole[4:6]
    text, end = finish(chatty, max_tokens=12, stop=(stop,))
    assert text == whole[: whole.index(stop)]
    assert end.reason is FinishReason.STOP
    assert end.usage.output_tokens < 12


def test_text_is_whole_when_the_answer_ends(chatty: Engine, tokenizer: Tokenizer) -> None:
    """What was held back, half a character or half a stop string, comes with the last token."""
    ids = oracle(tiny_model("llama"), prompt_ids(9), 12).token_ids
    for n_tokens in range(1, 13):
        expected = tokenizer.decode(ids[:n_tokens])
        stop = expected[-1:] + "never"
        assert finish(chatty, max_tokens=n_tokens)[0] == expected
        assert finish(chatty, max_tokens=n_tokens, stop=(stop,))[0] == expected


def test_answer_that_cannot_be_made_into_text_fails_alone(tmp_path: Path) -> None:
    """An error of the tokenizer ends the request that met it, and no other."""
    model = tiny_model("llama")
    token = oracle(model, prompt_ids(9), 3).token_ids[2]
    write_chat_tokenizer(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)

    def spelling(token_id: int) -> str:
        if token_id == token:
            raise RuntimeError("planted")
        return "a"

    tokenizer.spelling = spelling  # type: ignore[method-assign]
    settings = EngineConfig(kv_memory_bytes=1 << 20)
    engine = Engine.from_model(model, settings, tokenizer=tokenizer)
    for name, ends_first in (("bad", False), ("good", True)):
        params = SamplingParams(max_tokens=2 if ends_first else 4)
        engine.submit(
            GenerationRequest(
                request_id=RequestId(name), token_ids=pack(prompt_ids(9)), sampling=params
            )
        )
    endings = {}
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, Finished | Failed):
                endings[event.request_id] = type(event)
    assert endings == {"bad": Failed, "good": Finished}
    assert engine.stats().pool.held == 0


# The worker


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(10)
        yield ours, theirs


def receive(frames: BinaryIO) -> wire.ToGateway:
    length = wire.payload_length(frames.read(wire.HEADER.size))
    return wire.decode_to_gateway(frames.read(length))


@pytest.mark.parametrize("message", ["again", "odd"])
def test_worker_outlives_a_bad_submit(
    message: str, ends: tuple[socket.socket, socket.socket]
) -> None:
    """A second request with an id in flight, or one with extreme settings, harms no other."""
    ours, theirs = ends
    bench = Bench()
    params = SamplingParams(max_tokens=60)
    good = GenerationRequest(
        request_id=RequestId("good"), token_ids=pack(prompt_ids(5)), sampling=params
    )
    odd = structs.replace(
        good, request_id=RequestId("odd"), sampling=SamplingParams(temperature=1e-50)
    )
    ours.sendall(
        wire.encode(wire.Submit(good))
        + wire.encode(wire.Submit(good if message == "again" else odd))
    )
    thread = threading.Thread(target=worker.Worker(worker.Connection(theirs), bench.engine).run)
    thread.start()
    n_tokens, frames = 0, ours.makefile("rb")
    while n_tokens < 60:
        step = receive(frames)
        assert isinstance(step, wire.Step)
        n_tokens += sum(isinstance(e, Delta) and e.request_id == "good" for e in step.events)
    ours.sendall(wire.encode(wire.Stop()))
    thread.join(10)
    assert not thread.is_alive()


def test_worker_ends_quietly_when_the_gateway_goes_while_it_loads(
    tmp_path: Path, ends: tuple[socket.socket, socket.socket]
) -> None:
    """A gateway that is gone before the model is there is an end, not an error."""
    ours, theirs = ends
    write_tiny_model(tmp_path)
    settings = EngineConfig(model=str(tmp_path), kv_memory_bytes=1 << 20)
    ours.sendall(wire.encode(wire.Start(settings)))
    ours.close()
    assert worker.serve(worker.Connection(theirs), {}) in (0, 1)
