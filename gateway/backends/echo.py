"""A backend without a model: it answers with the prompt, to test and measure all the rest."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

import msgspec

from gateway.backends.echo_memory import BLOCK_TOKENS, EchoMemory
from gateway.backends.local import IDLE_STATS
from gateway.errors import NotReadyError, StartError
from prefixcache.control import (
    Inspection,
    Invalidation,
    Publication,
    PublicationState,
    TenantQuota,
)
from prefixcache.errors import PrefixCacheError
from prefixcache.index import TOKEN_BYTES, unpack
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


@dataclass(slots=True)
class _Totals:
    """What was counted so far; never falls."""

    prompt: int = 0
    cached: int = 0
    output: int = 0


class EchoBackend:
    """A `Backend`, and `Control`, that gives a prompt's own tokens back, one by one.

    Stop strings, stop tokens and max_tokens are honoured; the end of the prompt ends the
    answer like an end-of-text token, unless `ignore_eos` has it start over. Every token is certain:
    its logprob is 0. A prompt counts as cached as far as it equals the one before it of the same
    tenant and salt, or a published one. Nothing is kept for longer because of `retain`.
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
        self._memory = EchoMemory(clock=time.monotonic)
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
            block_size_tokens=BLOCK_TOKENS,
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
        sampling, n_prompt = request.sampling, len(request.token_ids) // TOKEN_BYTES
        cached, written = self._memory.take(request)
        self._totals.prompt += n_prompt
        self._totals.cached += cached
        self._running += 1
        try:
            yield Started(request.request_id, n_prompt, cached)
            if sampling.prompt_scores is not None and n_prompt > 1:
                tokens = unpack(request.token_ids)[1:]
                scores = tuple(TokenScore(token, 0.0, ((token, 0.0),)) for token in tokens)
                yield PromptScores(request.request_id, scores)
            text = OutputText(tokenizer, stop=sampling.stop, shown_ids=sampling.shown_special_ids)
            answer = _Answer(request, text)
            for delta in answer:
                self._totals.output += len(delta.token_ids)
                yield delta
                await asyncio.sleep(self._seconds_per_token)
                if self._tokenizer is None:
                    yield Failed(request.request_id, FailureKind.CANCELLED, "the server stops")
                    return
            usage = Usage(n_prompt, cached, answer.n_tokens, written)
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
            misses=self._memory.misses,
        )

    async def publish(self, publication: Publication) -> PublicationState:
        """Count a prefix as cached for its tenants from now on. See `Control`."""
        return self._open_memory().publish(publication, max_tokens=self._max_model_tokens - 1)

    async def retire(self, prompt_id: str) -> None:
        """Count it as cached no more."""
        self._memory.retire(prompt_id)

    async def invalidate(self, invalidation: Invalidation) -> None:
        """Forget prompts; what is published is there again at once. See `Control`."""
        self._memory.invalidate(invalidation)

    async def set_quotas(self, quotas: Mapping[str, TenantQuota]) -> None:
        """Remember quotas, to show them; there is no pool to divide. See `Control`."""
        self._open_memory().set_quotas(quotas)

    async def inspect(self, *, max_nodes: int = 1000, tenant: str | None = None) -> Inspection:
        """Return what is remembered, each prompt as a tree of one node. See `Control`."""
        return self._open_memory().inspection(max_nodes=max_nodes, tenant=tenant)

    def _open_memory(self) -> EchoMemory:
        if self._tokenizer is None:
            raise NotReadyError("the tokenizer is not loaded")
        return self._memory

    async def close(self) -> None:
        """End the requests in flight at their next token."""
        self._tokenizer = None


class _Answer:
    """The deltas of one echoed prompt; when they are read, why it ended and after how many."""

    def __init__(self, request: GenerationRequest, output: OutputText) -> None:
        most_bytes = TOKEN_BYTES * request.sampling.max_tokens
        self._request = request
        self._prompt = unpack(request.token_ids[:most_bytes])  # a prompt may have millions
        self._output = output
        self._has_scores = request.sampling.top_scores is not None
        self.reason = FinishReason.STOP
        self.n_tokens = 0

    def __iter__(self) -> Iterator[Delta]:
        sampling = self._request.sampling
        source = cycle(self._prompt) if sampling.ignore_eos else iter(self._prompt)
        for token_id in islice(source, sampling.max_tokens):
            self.n_tokens += 1
            if token_id in sampling.stop_token_ids:
                break
            yield self._delta(self._output.push((token_id,)), token_id)
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
        if not self._has_scores:
            return Delta(self._request.request_id, text, token_ids)
        scores = tuple(TokenScore(token, 0.0, ((token, 0.0),)) for token in token_ids)
        return Delta(self._request.request_id, text, token_ids, scores)
