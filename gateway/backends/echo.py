"""A backend without a model: it answers with the prompt, to test and measure all the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path

import msgspec

from gateway.backends.local import IDLE_STATS
from gateway.errors import NotReadyError, StartError
from prefixcache.errors import PrefixCacheError
from prefixcache.index import common_prefix_tokens, unpack
from prefixcache.text import OutputText, Tokenizer
from prefixcache.types import (
    Delta,
    EngineStats,
    Event,
    Failed,
    FailureKind,
    Finished,
    FinishReason,
    GenerationRequest,
    ModelInfo,
    PromptScores,
    Started,
    TokenScore,
    Usage,
)

_BLOCK_TOKENS = 16


@dataclass(slots=True)
class _Totals:
    """What was counted so far; never falls."""

    prompt: int = 0
    cached: int = 0
    output: int = 0


@dataclass(slots=True)
class _Memory:
    """The last prompt of each tenant and salt, at most `limit` of them."""

    limit: int = 64
    prompts: dict[tuple[str, str | None], bytes] = field(default_factory=dict)

    def cached_tokens(self, request: GenerationRequest, n_prompt: int) -> int:
        """Return how far the last prompt goes along with this one, less the token to compute."""
        last = self.prompts.get((request.tenant, request.salt), b"")
        if not request.read_cache:
            return 0
        return min(common_prefix_tokens(last, 0, request.token_ids, 0), n_prompt - 1)

    def keep(self, request: GenerationRequest) -> None:
        """Remember the prompt, forgetting the oldest one when there are too many."""
        if not request.store_cache:
            return
        self.prompts.pop((request.tenant, request.salt), None)
        self.prompts[request.tenant, request.salt] = request.token_ids
        if len(self.prompts) > self.limit:
            del self.prompts[next(iter(self.prompts))]


class EchoBackend:
    """A `Backend` that gives a prompt's own tokens back, one by one.

    Stop strings, stop tokens and max_tokens are honoured; the end of the prompt ends the
    answer like an end-of-text token, unless `ignore_eos` has it start over. Every token is certain:
    its logprob is 0. A prompt counts as
    cached as far as it equals the one before it of the same tenant and salt.
    """

    def __init__(
        self,
        folder: Path,
        *,
        max_model_tokens: int = 2048,
        seconds_per_token: float = 0.0,
    ) -> None:
        self._folder = folder
        self._max_model_tokens = max_model_tokens
        self._seconds_per_token = seconds_per_token
        self._tokenizer: Tokenizer | None = None
        self._memory = _Memory()
        self._totals = _Totals()
        self._running = 0

    @property
    def is_ready(self) -> bool:
        """Whether the tokenizer is loaded and the backend is not closed."""
        return self._tokenizer is not None

    async def start(self) -> ModelInfo:
        """Load the tokenizer in the folder. Raises StartError when it cannot be read."""
        try:
            self._tokenizer = await asyncio.to_thread(Tokenizer.load, self._folder)
        except (OSError, PrefixCacheError) as error:
            raise StartError(f"no tokenizer can be read in {self._folder}: {error}") from error
        return ModelInfo(
            name=self._folder.resolve().name,
            folder=str(self._folder),
            vocab_size=self._tokenizer.vocab_size,
            max_model_tokens=self._max_model_tokens,
            eos_token_ids=(),
            kv_bytes_per_token=0,
            pool_blocks=0,
            block_size_tokens=_BLOCK_TOKENS,
            dtype="none",
            weights="none",
            device="none",
            load_id="echo",
        )

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Event]:
        """Give the prompt back; see `Backend`."""
        tokenizer = self._tokenizer
        if tokenizer is None:
            raise NotReadyError("the tokenizer is not loaded")
        prompt = unpack(request.token_ids)
        cached = self._memory.cached_tokens(request, len(prompt))
        self._memory.keep(request)
        self._totals.prompt += len(prompt)
        self._totals.cached += cached
        self._running += 1
        try:
            yield Started(request.request_id, len(prompt), cached)
            if request.sampling.prompt_scores is not None and len(prompt) > 1:
                scores = tuple(TokenScore(token, 0.0, ((token, 0.0),)) for token in prompt[1:])
                yield PromptScores(request.request_id, scores)
            sampling = request.sampling
            text = OutputText(tokenizer, stop=sampling.stop, shown_ids=sampling.shown_special_ids)
            answer = _Answer(request, prompt, text)
            for delta in answer:
                self._totals.output += len(delta.token_ids)
                yield delta
                await asyncio.sleep(self._seconds_per_token)
                if self._tokenizer is None:
                    yield Failed(request.request_id, FailureKind.CANCELLED, "the server stops")
                    return
            usage = Usage(len(prompt), cached, answer.n_tokens)
            yield Finished(request.request_id, answer.reason, usage, text.stopped)
        finally:
            self._running -= 1

    def stats(self) -> EngineStats:
        """Return what was counted; there is no pool."""
        totals = self._totals
        return msgspec.structs.replace(
            IDLE_STATS,
            running=self._running,
            prompt_tokens_total=totals.prompt,
            cached_tokens_total=totals.cached,
            computed_tokens_total=totals.prompt - totals.cached + totals.output,
            output_tokens_total=totals.output,
        )

    async def close(self) -> None:
        """End the requests in flight at their next token."""
        self._tokenizer = None


class _Answer:
    """The deltas of one echoed prompt; when they are read, why it ended and after how many."""

    def __init__(self, request: GenerationRequest, prompt: list[int], output: OutputText) -> None:
        self._request = request
        self._prompt = prompt
        self._output = output
        self.reason = FinishReason.STOP
        self.n_tokens = 0

    def __iter__(self) -> Iterator[Delta]:
        sampling = self._request.sampling
        source = cycle(self._prompt) if sampling.ignore_eos else iter(self._prompt)
        for token_id in islice(source, sampling.max_tokens):
            self.n_tokens += 1
            if token_id in sampling.stop_token_ids:
                break
            yield self._delta(self._output.push([token_id]), token_id)
            if self._output.stopped is not None:
                return
        else:
            if self.n_tokens == sampling.max_tokens:
                self.reason = FinishReason.LENGTH
        rest = self._output.finish()
        if self._output.stopped is not None:
            self.reason = FinishReason.STOP
        if rest:
            yield self._delta(rest)

    def _delta(self, text: str, *token_ids: int) -> Delta:
        scores: tuple[TokenScore, ...] = ()
        if self._request.sampling.top_scores is not None:
            scores = tuple(TokenScore(token, 0.0, ((token, 0.0),)) for token in token_ids)
        return Delta(self._request.request_id, text, token_ids, scores)
