"""The requests in flight: their tokens, their text, their ends, and the events of these."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from torch import Tensor

from prefixcache.engine.counters import Counters
from prefixcache.engine.deadlines import overdue_message
from prefixcache.engine.runner import Outcome
from prefixcache.engine.sampling import Pick, choose_tokens
from prefixcache.engine.scheduler import Scheduler
from prefixcache.engine.scoring import token_scores
from prefixcache.engine.sequence import Sequence
from prefixcache.engine.shares import Share
from prefixcache.engine.tiers import Tiers
from prefixcache.index import Lease, PrefixCache
from prefixcache.types import (
    Delta,
    Event,
    Failed,
    FailureKind,
    Finished,
    FinishReason,
    ModelInfo,
    PromptScores,
    RequestId,
    SamplingParams,
    Started,
)

logger = logging.getLogger(__name__)


def end_tokens(sampling: SamplingParams, info: ModelInfo) -> tuple[int, ...]:
    """Return the tokens that end an answer."""
    return sampling.stop_token_ids + (() if sampling.ignore_eos else info.eos_token_ids)


@dataclass(frozen=True, slots=True)
class _Proposal:
    """A sequence that is to have a token, and what is known of those after it."""

    sequence: Sequence
    drafts: tuple[int, ...]
    rows: Tensor  # [1 + drafts, vocab_size]


class Answers:
    """Gives every sequence that is up to date its next token, and ends those that are through."""

    def __init__(
        self,
        cache: PrefixCache,
        scheduler: Scheduler,
        tiers: Tiers,
        info: ModelInfo,
        counters: Counters,
    ) -> None:
        self._cache = cache
        self._tiers = tiers
        self._scheduler = scheduler
        self._info = info
        self._counters = counters
        self._events: list[Event] = []
        self._readings: list[tuple[Sequence, Finished | Failed]] = []
        self.in_flight: dict[RequestId, Sequence] = {}

    @property
    def has_news(self) -> bool:
        """Whether events wait to be taken."""
        return bool(self._events)

    def open(self, sequence: Sequence) -> None:
        """Take note of a request that has queued."""
        self.in_flight[sequence.request.request_id] = sequence

    def start(self, sequence: Sequence) -> None:
        """Tell that a request was admitted for the first time."""
        if sequence.published is not None:
            return
        self._counters.count_admission(sequence)
        usage = sequence.usage
        request_id = sequence.request.request_id
        self._events.append(
            Started(
                request_id, usage.prompt_tokens, usage.cached_tokens, dict(sequence.tier_tokens)
            )
        )

    def take(self, shares: list[Share], outcomes: list[Outcome]) -> None:
        """Count what was computed, and give a token to every sequence that is up to date."""
        ready: list[_Proposal] = []
        for share, outcome in zip(shares, outcomes, strict=True):
            sequence = share.sequence
            if sequence.has_ended:
                continue
            if outcome.has_failed:
                self._fail_internally(sequence, "the model failed on this request")
                continue
            self._counters.computed_tokens += share.n_tokens
            sequence.n_computed += share.n_tokens
            if outcome.prompt_rows is not None:
                self._score_prompt(sequence, outcome.prompt_rows)
            if outcome.rows is None:
                self._store_prompt(sequence)
            elif not sequence.max_tokens:
                self._store_prompt(sequence)
                self._finish(sequence, FinishReason.LENGTH)
            else:
                ready.append(_Proposal(sequence, share.drafts, outcome.rows))
        self._choose(ready)

    def refuse(self, request_id: RequestId, kind: FailureKind, message: str) -> None:
        """Tell that a request was not taken."""
        self._events.append(Failed(request_id, kind, message))

    def fail(
        self, sequence: Sequence, kind: FailureKind, message: str, *, keep: bool = True
    ) -> None:
        """End a request by an error. `keep`: what it computed can be trusted."""
        request_id = sequence.request.request_id
        self._tell_end(sequence, Failed(request_id, kind, message, sequence.usage))
        self._end(sequence, keep=keep)

    def expire(self, sequence: Sequence, kind: FailureKind, limit_seconds: float) -> None:
        """End a request whose time is over: by what it has, and with nothing yet by an error."""
        if kind is FailureKind.DEADLINE and sequence.output:
            try:
                self._close(sequence, FinishReason.LENGTH)
            except Exception:
                logger.exception("request %s failed", sequence.request.request_id)
                self.fail(sequence, FailureKind.INTERNAL, "the answer could not be made into text")
        else:
            self.fail(sequence, kind, overdue_message(kind, limit_seconds))

    def events(self) -> list[Event]:
        """Hand over what has happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def readings(self) -> list[tuple[Sequence, Finished | Failed]]:
        """Hand over what was read for the system since the last call, and how that ended."""
        readings, self._readings = self._readings, []
        return readings

    def _tell_end(self, sequence: Sequence, event: Finished | Failed) -> None:
        if sequence.published is None:
            self._events.append(event)
        else:
            self._readings.append((sequence, event))

    def _choose(self, ready: list[_Proposal]) -> None:
        """Give each a token, and one more for each draft of its that was right.

        Row by row: a sampler chooses from a row only when all tokens before it are its own, so
        that its chance, penalties and grammar are where they would be without drafts.
        """
        depth = 0
        while ready:
            rows = [each.rows[depth] for each in ready]
            picks = choose_tokens(rows, [each.sequence.sampler for each in ready])
            ready = [
                each
                for each, pick in zip(ready, picks, strict=True)
                if self._goes_on(each, pick, depth)
            ]
            depth += 1

    def _goes_on(self, proposal: _Proposal, pick: Pick | None, depth: int) -> bool:
        """Take a token; return whether it is the draft that the next row was computed from."""
        sequence = proposal.sequence
        if pick is None:
            self._fail_choosing(sequence)
            return False
        self._store_prompt(sequence)
        self._advance_alone(sequence, pick)
        if sequence.has_ended or proposal.drafts[depth : depth + 1] != (pick.token,):
            return False
        sequence.n_computed += 1  # only now: what is refused is never in the tree
        self._counters.computed_tokens += 1
        self._scheduler.tenants.charge(sequence.request.tenant, 1)
        return True

    def _score_prompt(self, sequence: Sequence, rows: Tensor) -> None:
        """Tell how likely the next tokens of a prompt were."""
        first = sequence.n_scored
        tokens = sequence.prompt[first : first + len(rows)]
        n_top = sequence.request.sampling.prompt_scores or 0
        scores = token_scores(rows, tokens, [n_top] * len(tokens))
        sequence.n_scored += len(tokens)
        self._events.append(PromptScores(sequence.request.request_id, tuple(scores)))

    def _store_prompt(self, sequence: Sequence) -> None:
        """Make what it read matchable as far as it was computed; answers follow at their end.

        One that was preempted reads its own answer as well, and others may wait for that.
        """
        assert sequence.lease is not None
        if sequence.n_computed > sequence.n_admitted:
            return
        self._cache.commit(sequence.lease, sequence.packed(sequence.n_computed))
        self._tiers.keep(sequence, sequence.lease)
        if not sequence.has_stored_prompt:
            self._note_stored(sequence, sequence.lease)

    def _note_stored(self, sequence: Sequence, lease: Lease) -> None:
        """Count what others find of its prompt because of it; at the prompt's end, retain that."""
        n_whole = len(sequence.prompt) // lease.block_tokens * lease.block_tokens
        n_most = max(n_whole - (sequence.cached_tokens or 0), 0)
        sequence.written_tokens = min(sequence.written_before + lease.written_tokens, n_most)
        if sequence.n_computed < len(sequence.prompt):
            return
        sequence.has_stored_prompt = True
        if sequence.request.store_cache:
            for retain in sequence.request.retain:
                self._cache.retain(lease, retain.n_tokens, seconds=retain.seconds)

    def _advance_alone(self, sequence: Sequence, pick: Pick) -> None:
        try:
            self._advance(sequence, pick)
        except Exception:
            logger.exception("request %s failed", sequence.request.request_id)
            self.fail(sequence, FailureKind.INTERNAL, "the answer could not be made into text")

    def _advance(self, sequence: Sequence, pick: Pick) -> None:
        """Add a sampled token: show its text, and end the sequence where it ends."""
        token = pick.token
        sequence.output.append(token)
        self._counters.output_tokens += 1
        is_end = token in end_tokens(sequence.request.sampling, self._info)
        matcher = sequence.sampler.matcher
        is_through = is_end or (matcher is not None and matcher.is_complete)
        reason = FinishReason.STOP if is_through else None
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
        shown = () if is_end else (token,)
        scores = () if is_end or pick.score is None else (pick.score,)
        self._events.append(Delta(request_id, text, shown, scores))
        if reason is not None:
            self._finish(sequence, reason)

    def _close(self, sequence: Sequence, reason: FinishReason) -> None:
        """End an answer between two tokens, with the text that was held back."""
        text = "" if sequence.text is None else sequence.text.finish()
        if sequence.text is not None and sequence.text.stopped is not None:
            reason = FinishReason.STOP
        request_id = sequence.request.request_id
        if text:
            self._events.append(Delta(request_id, text, ()))
        self._finish(sequence, reason)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        request_id = sequence.request.request_id
        stop = None if sequence.text is None else sequence.text.stopped
        self._tell_end(sequence, Finished(request_id, reason, sequence.usage, stop))
        self._end(sequence)

    def _fail_choosing(self, sequence: Sequence) -> None:
        matcher = sequence.sampler.matcher
        if matcher is None or matcher.error is None:
            self._fail_internally(sequence, "no token could be chosen")
        else:
            message = f"the grammar cannot go on: {matcher.error}"
            self.fail(sequence, FailureKind.GRAMMAR, message)

    def _fail_internally(self, sequence: Sequence, message: str) -> None:
        self.fail(sequence, FailureKind.INTERNAL, message, keep=False)

    def _end(self, sequence: Sequence, *, keep: bool = True) -> None:
        self._scheduler.let_go(sequence, keep=keep)
        del self.in_flight[sequence.request.request_id]
