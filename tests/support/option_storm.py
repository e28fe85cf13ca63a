"""A storm of requests with everything that a request can ask of its answer."""

from __future__ import annotations

from typing import Any

import msgspec

from prefixcache.index import pack
from prefixcache.text import Tokenizer
from prefixcache.types import (
    Failed,
    FailureKind,
    FinishReason,
    GenerationRequest,
    Grammar,
    GrammarKind,
    RequestId,
    SamplingParams,
)
from tests.support.models import Bench
from tests.support.storm import Storm

END = 2  # the tokenizer's end of a turn
DEADLINE_STEPS = 30
BAD = Grammar(GrammarKind.REGEX, "(")
GRAMMARS = (
    Grammar(GrammarKind.REGEX, "[a-c]{3,9}"),
    Grammar(GrammarKind.JSON_SCHEMA, '{"type": "array", "items": {"type": "integer"}}'),
    Grammar(GrammarKind.CHOICE, '["yes", "no"]'),
    BAD,
)
# each with how likely it is, and the values that it may have
OPTIONS: dict[str, tuple[float, tuple[Any, ...]]] = {
    "temperature": (0.5, (0.7, 1.5)),
    "frequency_penalty": (0.3, (2.0, -1.0)),
    "repetition_penalty": (0.3, (0.8, 1.4)),
    "presence_penalty": (0.2, (1.0,)),
    "logit_bias": (0.2, (((40, 5.0),), ((70, -100.0), (71, 3.0)))),
    "min_tokens": (0.2, (1, 3)),
    "top_k": (0.2, (1, 20)),
    "top_p": (0.2, (0.8,)),
    "min_p": (0.2, (0.02,)),
    "grammar": (0.3, GRAMMARS),
    "top_scores": (0.2, (0, 2)),
    "prompt_scores": (0.2, (0, 2)),
    "stop": (0.2, (("a", "b"),)),
    "stop_token_ids": (0.2, ((40, 41, 42),)),
    "ignore_eos": (0.2, (True,)),
}


class OptionStorm(Storm):
    """Its clock ticks once a step; a request that has a deadline may be cut short by it."""

    def __init__(self, seed: int, architecture: str, tokenizer: Tokenizer, **rates: float) -> None:
        self._now = 0.0
        self.requests: dict[str, GenerationRequest] = {}
        fixed: dict[str, Any] = {"tokenizer": tokenizer, "eos_token_id": END}
        self._alone = Bench(architecture, **fixed)
        super().__init__(seed, architecture=architecture, clock=self._clock, **fixed, **rates)

    def _clock(self) -> float:
        return self._now

    def submit(self) -> None:
        rng = self.rng
        self.n_to_come -= 1
        name = f"r{len(self.prompts)}"
        stem = rng.choice(self.stems)[: rng.randrange(min(self.limit - 6, 50))]
        self.prompts[name] = stem + [rng.randrange(3, 9) for _ in range(rng.randint(1, 5))]
        self.outputs[name] = []
        chosen = {
            option: rng.choice(values)
            for option, (likely, values) in OPTIONS.items()
            if rng.random() < likely
        }
        self.requests[name] = GenerationRequest(
            request_id=RequestId(name),
            token_ids=pack(self.prompts[name]),
            sampling=SamplingParams(
                max_tokens=rng.choice([0, 1, 2, rng.randint(3, 25)]),
                seed=rng.randrange(99),
                choice=rng.randrange(3),
                **chosen,
            ),
            tenant=rng.choice("aab"),
            read_cache=rng.random() < 0.9,
            store_cache=rng.random() < 0.9,
            priority=rng.choice([0, 0, 0, -1, 3]),
            deadline_seconds=rng.choice([None, None, None, DEADLINE_STEPS]),
        )
        self.engine.submit(self.requests[name])

    def cancel_some(self) -> None:
        """Cancel requests, those whose grammar is being compiled among them."""
        super().cancel_some()
        if self.prompts and self.rng.random() < self._cancel_rate:
            latest = len(self.prompts) - 1
            self.engine.cancel(RequestId(f"r{self.rng.randint(max(0, latest - 4), latest)}"))

    def step(self) -> None:
        self._now += 1
        super().step()

    def check_end(self) -> None:
        """Check that all have ended as alone, or as they may, and that nothing is left."""
        assert self.ends.keys() == self.prompts.keys()
        stats = self.engine.stats()
        assert (stats.running, stats.waiting, stats.pool.held) == (0, 0, 0)
        assert not self.engine._scheduler.tenants._in_flight
        for name in self.ends:
            self._check_answer(name)
        self.engine.cache.evict(10_000)
        self.engine.cache.check()
        assert self.engine.stats().pool.free == self.engine.info.pool_blocks

    def may_fail(self, name: str) -> set[FailureKind]:
        """Return how a request may fail: by its deadline or its grammar too."""
        request = self.requests[name]
        late = {FailureKind.DEADLINE} if request.deadline_seconds else set()
        return (
            late
            | ({FailureKind.GRAMMAR} if request.sampling.grammar == BAD else set())
            | (super().may_fail(name))
        )

    def _check_answer(self, name: str) -> None:
        end, request, tokens = self.ends[name], self.requests[name], self.outputs[name]
        if isinstance(end, Failed):
            assert end.kind in self.may_fail(name)
            return
        fields = msgspec.structs.asdict(request.sampling)
        expected = self._alone.run(self.prompts[name], fields.pop("max_tokens"), **fields)
        assert expected.token_ids[: len(tokens)] == tokens
        if end != expected.finished:
            is_cut = end.reason is FinishReason.LENGTH and request.deadline_seconds is not None
            assert is_cut or end.reason is expected.finished.reason
            assert is_cut or len(tokens) == len(expected.token_ids)
