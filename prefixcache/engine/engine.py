"""The engine: requests in, one step at a time, events out."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from torch import Tensor
from transformers import PreTrainedModel

from prefixcache.config import EngineConfig
from prefixcache.engine.budget import StepBudget
from prefixcache.engine.loading import LoadedModel, load_model, prepare_model
from prefixcache.engine.plan import Chunk, plan_step
from prefixcache.engine.sampling import Sampler, choose_tokens
from prefixcache.engine.scheduler import Scheduler, Share
from prefixcache.engine.sequence import Sequence
from prefixcache.engine.validation import request_refusal
from prefixcache.errors import ConfigError, EngineError
from prefixcache.index import TOKEN_BYTES, BlockCopy, Namespace, PrefixCache
from prefixcache.index.policies import PolicyOptions, make_policy
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
    RequestId,
    Started,
)

logger = logging.getLogger(__name__)

FIRST_STEP_TOKENS = {"cpu": 128}  # until the machine's speed is known
FIRST_STEP_TOKENS_ELSEWHERE = 2048
_LONGEST_LOOK_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the model gave for one share: logits [vocab_size] where its sequence is up to date."""

    row: Tensor | None = None
    has_failed: bool = False


class Engine:
    """Runs requests against one model and its prefix cache.

    Nothing happens between calls: `step` does the work, and returns what it brought. One
    thread at a time may call it; `cancel` may come from within the `poll` of a step.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig,
        *,
        clock: Callable[[], float] = time.perf_counter,  # seconds; paces long prompts
    ) -> None:
        self._clock = clock
        self._model = loaded.model
        self._store = loaded.store
        self._tokenizer = loaded.tokenizer
        self.info: ModelInfo = loaded.info
        self.cache = PrefixCache(
            pool_blocks=[loaded.store.n_blocks] * len(loaded.store.layout.groups),
            block_size_tokens=config.block_size_tokens,
            growth_blocks=config.growth_blocks,
            token_exact_reuse=config.token_exact_reuse,
            policy=partial(
                make_policy,
                config.eviction_policy,
                PolicyOptions(idle_ttl_seconds=config.idle_ttl_seconds),
            ),
            copy_block=self._copy_block,
        )
        device = loaded.model.device.type
        self._budget = StepBudget(
            step_seconds=config.step_seconds,
            max_tokens=config.max_step_tokens,
            first_tokens=FIRST_STEP_TOKENS.get(device, FIRST_STEP_TOKENS_ELSEWHERE),
        )
        self._scheduler = Scheduler(self.cache, config, self._budget)
        self._config = config
        self._sequences: dict[RequestId, Sequence] = {}
        self._events: list[Event] = []
        self._steps = 0
        self._prompt_tokens = self._cached_tokens = 0
        self._misses: Counter[str] = Counter()
        self._computed_tokens = self._output_tokens = 0

    @classmethod
    def load(
        cls,
        config: EngineConfig,
        *,
        env: Mapping[str, str],
        report: Callable[[str], None] = logger.info,
    ) -> Engine:
        """Find, fetch if need be, load and check the model that `config` names.

        Args:
            config: what to load and how much to use.
            env: the process's environment: where models are kept.
            report: called with a line for people at each stage.

        Raises:
            ModelError: it cannot be found, read or served; the message says why.
            ConfigError: the KV memory cannot be had.
        """
        return cls(load_model(config, env=env, report=report), config)

    @classmethod
    def from_model(
        cls,
        model: PreTrainedModel,
        config: EngineConfig | None = None,
        *,
        tokenizer: Tokenizer | None = None,
    ) -> Engine:
        """Serve a transformers model that is already in memory; it is taken over.

        Without a tokenizer, prompts are token ids and there are no stop strings.

        Raises:
            ConfigError: `config` sets what only loading a model can honour.
            UnsupportedModelError: the model cannot be served; the message says why.
        """
        settings = config or EngineConfig()
        for setting in ("model", "dtype", "device", "threads"):
            if (value := getattr(settings, setting)) != getattr(EngineConfig(), setting):
                raise ConfigError(setting, value, "the model is in memory already; leave it out")
        return cls(prepare_model(model, settings, name="model", tokenizer=tokenizer), settings)

    @property
    def has_work(self) -> bool:
        """Whether `step` would bring anything."""
        return bool(self._sequences or self._events)

    @property
    def seconds_to_next_look(self) -> float | None:
        """How long an idle engine may wait for its next `step`, in seconds; None: for ever.

        A quarter of the time after which unused prefixes go, so that they go about then.
        """
        if self._config.eviction_policy != "ttl":
            return None
        return min(self._config.idle_ttl_seconds / 4, _LONGEST_LOOK_SECONDS)

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request. What is wrong with it comes back as a Failed event.

        Raises:
            EngineError: a request with this id is still in flight.
        """
        if request.request_id in self._sequences:
            raise EngineError(f"request id {request.request_id!r} is in use")
        refusal = request_refusal(request, self.info, has_tokenizer=self._tokenizer is not None)
        if refusal is None and len(self._scheduler.waiting) >= self._config.max_waiting_requests:
            waiting = len(self._scheduler.waiting)
            refusal = FailureKind.OVERLOADED, f"{waiting} requests are waiting; try again later"
        if refusal is not None:
            self._events.append(Failed(request.request_id, *refusal))
            return
        text = None
        if self._tokenizer is not None:
            text = OutputText(self._tokenizer, stop=request.sampling.stop)
        n_prompt = len(request.token_ids) // TOKEN_BYTES
        sequence = Sequence(
            request=request,
            namespace=Namespace(
                model=self.info.load_id,
                kv_format=self.info.dtype,
                tenant=request.tenant,
                salt=request.salt,
            ),
            max_tokens=min(request.sampling.max_tokens, self.info.max_model_tokens - n_prompt),
            sampler=Sampler(request.sampling),
            text=text,
        )
        self._sequences[request.request_id] = sequence
        self._scheduler.waiting.append(sequence)

    def cancel(self, request_id: RequestId) -> None:
        """End a request: no token follows, its blocks are released. Unknown ids are ignored."""
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            self._fail(sequence, FailureKind.CANCELLED, "the request was cancelled")

    def step(self, poll: Callable[[], None] | None = None) -> list[Event]:
        """Run one batch through the model.

        Args:
            poll: called once the forward is through and before its tokens count, so that
                whoever was cancelled meanwhile gets none of them.

        Returns:
            What happened since the last call, in order.
        """
        if self._config.eviction_policy == "ttl":
            self.cache.expire()
        shares, admitted = self._scheduler.schedule()
        for sequence in admitted:
            self._count_admission(sequence)
        if shares:
            self._steps += 1
            self._take_tokens(shares, self._forward(shares, poll))
        events, self._events = self._events, []
        return events

    def stats(self) -> EngineStats:
        """Return counters since the start and gauges of now."""
        return EngineStats(
            pool=self.cache.counts(),
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            steps_total=self._steps,
            prompt_tokens_total=self._prompt_tokens,
            cached_tokens_total=self._cached_tokens,
            computed_tokens_total=self._computed_tokens,
            output_tokens_total=self._output_tokens,
            evicted_blocks_total=self.cache.evicted_blocks,
            preemptions_total=self._scheduler.preemptions_total,
            misses=dict(self._misses),
        )

    def _copy_block(self, copy: BlockCopy) -> None:
        self._store.copy_block(copy.group, copy.source, copy.target, copy.n_tokens)

    def _count_admission(self, sequence: Sequence) -> None:
        usage = sequence.usage
        self._prompt_tokens += usage.prompt_tokens
        self._cached_tokens += usage.cached_tokens
        if sequence.lease is not None and (miss := sequence.lease.miss) is not None:
            self._misses[miss.reason.value] += 1
        request_id = sequence.request.request_id
        self._events.append(Started(request_id, usage.prompt_tokens, usage.cached_tokens))

    def _forward(self, shares: list[Share], poll: Callable[[], None] | None) -> list[Outcome]:
        """Feed the shares as one batch; where that fails, each alone."""
        begin = self._clock()
        try:
            outcomes = self._rows(shares)
        except Exception:
            logger.exception("a step of %d requests failed; each is tried alone", len(shares))
            outcomes = [self._row_alone(share) for share in shares]
        self._budget.record(sum(share.n_tokens for share in shares), self._clock() - begin)
        if poll is not None:
            poll()
        return outcomes

    def _rows(self, shares: list[Share]) -> list[Outcome]:
        n_groups = len(self._store.layout.groups)
        chunks = [_chunk(share, n_groups) for share in shares]
        logits = iter(self._model.forward(plan_step(chunks, self._store, self._model.device)))
        return [Outcome(row=next(logits) if chunk.wants_logits else None) for chunk in chunks]

    def _row_alone(self, share: Share) -> Outcome:
        try:
            return self._rows([share])[0]
        except Exception:
            logger.exception("request %s failed", share.sequence.request.request_id)
            return Outcome(has_failed=True)

    def _take_tokens(self, shares: list[Share], outcomes: list[Outcome]) -> None:
        """Count what was computed, and give a token to every sequence that is up to date."""
        ready: list[Sequence] = []
        rows: list[Tensor] = []
        for share, outcome in zip(shares, outcomes, strict=True):
            sequence = share.sequence
            if sequence.has_ended:
                continue
            if outcome.has_failed:
                self._fail(
                    sequence, FailureKind.INTERNAL, "the model failed on this request", keep=False
                )
                continue
            self._computed_tokens += share.n_tokens
            sequence.n_computed += share.n_tokens
            if outcome.row is None:
                self._store_prompt(sequence)
            else:
                ready.append(sequence)
                rows.append(outcome.row)
        if not ready:
            return
        tokens = choose_tokens(rows, [sequence.sampler for sequence in ready])
        for sequence, token in zip(ready, tokens, strict=True):
            if token is None:
                self._fail(sequence, FailureKind.INTERNAL, "no token could be chosen", keep=False)
            else:
                self._store_prompt(sequence)
                self._advance_alone(sequence, token)

    def _store_prompt(self, sequence: Sequence) -> None:
        """Make what it read matchable as far as it was computed; answers follow at their end.

        One that was preempted reads its own answer as well, and others may wait for that.
        """
        assert sequence.lease is not None
        if sequence.n_computed <= sequence.n_admitted:
            self.cache.commit(sequence.lease, sequence.packed(sequence.n_computed))

    def _advance_alone(self, sequence: Sequence, token: int) -> None:
        try:
            self._advance(sequence, token)
        except Exception:
            logger.exception("request %s failed", sequence.request.request_id)
            self._fail(sequence, FailureKind.INTERNAL, "the answer could not be made into text")

    def _advance(self, sequence: Sequence, token: int) -> None:
        """Add a sampled token: show its text, and end the sequence where it ends."""
        sequence.output.append(token)
        self._output_tokens += 1
        sampling = sequence.request.sampling
        is_end = token in sampling.stop_token_ids or (
            token in self.info.eos_token_ids and not sampling.ignore_eos
        )
        reason = FinishReason.STOP if is_end else None
        text = ""
        if sequence.text is not None and not is_end:
            text = sequence.text.push([token])
            if sequence.text.stopped is not None:
                reason = FinishReason.STOP
        if reason is None and len(sequence.output) >= sequence.max_tokens:
            reason = FinishReason.LENGTH
        if reason is not None and sequence.text is not None:
            text += sequence.text.finish()
            if sequence.text.stopped is not None:  # a stop string in what was still held back
                reason = FinishReason.STOP
        request_id = sequence.request.request_id
        self._events.append(Delta(request_id, text, () if is_end else (token,)))
        if reason is not None:
            self._events.append(Finished(request_id, reason, sequence.usage))
            self._end(sequence)

    def _fail(
        self, sequence: Sequence, kind: FailureKind, message: str, *, keep: bool = True
    ) -> None:
        request_id = sequence.request.request_id
        self._events.append(Failed(request_id, kind, message, sequence.usage))
        self._end(sequence, keep=keep)

    def _end(self, sequence: Sequence, *, keep: bool = True) -> None:
        self._scheduler.let_go(sequence, keep=keep)
        del self._sequences[sequence.request.request_id]


def _chunk(share: Share, n_groups: int) -> Chunk:
    """Return a share as the model is fed it."""
    sequence = share.sequence
    assert sequence.lease is not None
    start = sequence.n_computed
    stop = start + share.n_tokens
    return Chunk(
        token_ids=sequence.tokens(start, stop),
        first_position=start,
        tables=tuple(sequence.lease.spans(group) for group in range(n_groups)),
        wants_logits=stop == sequence.n_tokens,
    )
