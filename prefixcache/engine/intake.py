"""What becomes of a request before it queues: a refusal, or a sequence."""

from __future__ import annotations

import msgspec

from prefixcache.config import EngineConfig
from prefixcache.engine.answers import end_tokens
from prefixcache.engine.compiling import CompilingRequests
from prefixcache.engine.sampling import Sampler
from prefixcache.engine.scheduler import Scheduler
from prefixcache.engine.sequence import Sequence
from prefixcache.engine.served import Served
from prefixcache.engine.validation import request_refusal
from prefixcache.index import TOKEN_BYTES, unpack
from prefixcache.text import OutputText, Tokenizer
from prefixcache.types import FailureKind, GenerationRequest


class Intake:
    """Checks requests and makes them ready; it queues nothing itself."""

    def __init__(
        self,
        served: Served,
        config: EngineConfig,
        tokenizer: Tokenizer | None,
        scheduler: Scheduler,
        compiling: CompilingRequests,
    ) -> None:
        self._served = served
        self._config = config
        self._tokenizer = tokenizer
        self._waiting = scheduler.waiting
        self._compiling = compiling

    def refusal(self, request: GenerationRequest) -> tuple[FailureKind, str] | None:
        """Return why `request` cannot be taken, now or ever, or None. Cost: O(prompt tokens)."""
        refusal = request_refusal(
            request,
            self._served.info,
            has_tokenizer=self._tokenizer is not None,
            max_grammar_bytes=self._config.max_grammar_bytes,
        )
        most = self._config.max_waiting_requests
        n_new, n_all = (n + len(self._compiling) for n in (self._waiting.n_new, len(self._waiting)))
        if refusal is None and (n_new >= most or n_all >= 2 * most):
            return FailureKind.OVERLOADED, f"{n_all} requests are waiting; try again later"
        return refusal

    def sequence(self, request: GenerationRequest) -> Sequence:
        """Return the sequence of a request that was not refused."""
        adapter, info = self._served.adapter_of(request), self._served.info
        sampling = request.sampling
        if sampling.prompt_scores is not None:  # every row has to be computed
            request = msgspec.structs.replace(request, read_cache=False)
        n_prompt = len(request.token_ids) // TOKEN_BYTES
        return Sequence(
            request=request,
            namespace=self._served.namespace_of(request, adapter),
            max_tokens=min(sampling.max_tokens, info.max_model_tokens - n_prompt),
            sampler=Sampler(
                sampling,
                prompt=unpack(request.token_ids) if sampling.repetition_penalty != 1 else (),
                end_ids=end_tokens(sampling, info) if sampling.grammar is None else (),
            ),
            text=self._text(request),
            adapter=adapter,
        )

    def _text(self, request: GenerationRequest) -> OutputText | None:
        if self._tokenizer is None:
            return None
        sampling = request.sampling
        return OutputText(self._tokenizer, stop=sampling.stop, shown_ids=sampling.shown_special_ids)
