"""Published prompts: read by the engine for the system, and read again whenever they are lost.

Design: prefixcache/design/0024-control.md.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import msgspec

from prefixcache.config import EngineConfig
from prefixcache.control import Publication, PublicationState
from prefixcache.engine.adapters import LoadedAdapter
from prefixcache.engine.answers import Answers
from prefixcache.engine.deadlines import Deadlines
from prefixcache.engine.sampling import Sampler
from prefixcache.engine.scheduler import Scheduler
from prefixcache.engine.sequence import Sequence
from prefixcache.engine.served import Served
from prefixcache.engine.validation import request_refusal
from prefixcache.errors import PublicationError
from prefixcache.index import SYSTEM_TENANT, Namespace, PrefixCache, Published
from prefixcache.types import (
    Failed,
    FailureKind,
    Finished,
    GenerationRequest,
    RequestId,
    SamplingParams,
)

logger = logging.getLogger(__name__)

NOTHING_SAID = SamplingParams(max_tokens=0)
_GONE = "it was retired before it was read"
_LOST = "it did not stay in the cache: the KV pool has too little room for it now"
_NO_ADAPTER = "its adapter was unloaded before it was read"


@dataclass(slots=True, eq=False)
class _Live:
    """One publication, and what has become of it here."""

    publication: Publication
    published: Published | None = None  # None: its adapter is not loaded now
    sequence: Sequence | None = None  # reads it
    is_awaited: bool = True  # somebody is to be told when it was read, or cannot be
    has_trouble: bool = False  # it could not be read; it is left alone until something changes


@dataclass(frozen=True, slots=True)
class Reading:
    """What somebody waits for: a publication that can be matched, or that cannot be read."""

    prompt_id: str
    state: PublicationState | None
    refusal: str = ""


class Publishing:
    """Registers publications and has each of them read as a sequence that says nothing.

    They take part in steps as a tenant of their own, one of them after another. A request that
    begins with one that is not read now has it read at once and waits for that, so that what it
    finds does not depend on who came before.
    """

    def __init__(
        self,
        cache: PrefixCache,
        served: Served,
        config: EngineConfig,
        scheduler: Scheduler,
        answers: Answers,
        deadlines: Deadlines,
    ) -> None:
        self._prompts = cache.prompts
        self._served = served
        self._info = served.info  # which the namespaces of all publications are of
        self._config = config
        self._scheduler = scheduler
        self._answers = answers
        self._deadlines = deadlines
        self._live: dict[str, _Live] = {}  # by prompt id
        self._of: dict[Published, _Live] = {}
        self._due: dict[_Live, None] = {}  # to be read, in this order
        self._reading: dict[Sequence, _Live] = {}
        self._ended: list[Reading] = []
        self._n_pinned_blocks: int | None = 0  # None: to be counted anew

    @property
    def has_work(self) -> bool:
        """Whether a step would bring anything on."""
        is_behind = bool(self._live) and self._info is not self._served.info
        return bool(self._due or self._reading or is_behind)

    def publish(self, publication: Publication, *, stands: bool = False) -> None:
        """Register a publication, to be read; `readings` tells how that ended.

        Args:
            stands: it was published before, to an engine that is gone: it stays whatever becomes of
                its reading, waits for its adapter, and `readings` has it at once.

        Raises:
            PublicationError: it cannot be had; nothing has changed.
            ConfigError: it is shorter than a block.
        """
        self._keep_up()
        if not self._config.prefix_cache:
            raise PublicationError("the prefix cache is switched off (prefix_cache)")
        if publication.prompt_id in self._live:
            raise PublicationError("this prompt id is in use; each publication has its own")
        request, live = _request(publication), _Live(publication)
        if not (stands and self._is_away(live)):
            refusal = request_refusal(request, self._info, has_tokenizer=False, max_grammar_bytes=0)
            if refusal is not None:
                raise PublicationError(refusal[1])
            self._register(live, self._served.adapter_of(request))
            self._require_room(live, is_checked=not stands)
            self._due[live] = None
        self._live[publication.prompt_id] = live
        if stands:
            self._tell(live)

    def retire(self, prompt_id: str) -> None:
        """Share a publication no more. Unknown ids are ignored."""
        live = self._live.pop(prompt_id, None)
        if live is not None:
            self._withdraw(live)
            self._tell(live, _GONE)

    def read_again(self, adapter: str | None = None) -> None:
        """Have what is not cached read, after an invalidation: all, or what is of an adapter."""
        for live in self._live.values():
            if live.published is None or adapter not in (None, live.publication.adapter):
                continue
            self._stop_reading(live)
            live.has_trouble = False
            if not self._prompts.is_read(live.published):
                self._due[live] = None

    def try_again(self) -> None:
        """Have read what could not be read before: there may be room for it now."""
        for live in self._live.values():
            if live.has_trouble and live.published is not None:
                live.has_trouble = False
                self._due[live] = None

    def need(self, sequence: Sequence) -> None:
        """Have the longest prompt that a request begins with read, if it is not; it waits then.

        Cost: a look-up.
        """
        if not self._live or not self._scheduler.reads(sequence):
            return
        begun = self._prompts.begun_by(sequence.namespace, sequence.request.token_ids)
        longest = max(begun, key=lambda published: published.n_tokens, default=None)
        live = None if longest is None else self._of[longest]
        if longest is None or live is None or live.has_trouble or self._prompts.is_read(longest):
            return
        reader = live.sequence or self._begin(live, longest)
        sequence.reading = reader
        if sequence.request.priority < reader.request.priority:
            priority = sequence.request.priority
            reader.request = msgspec.structs.replace(reader.request, priority=priority)

    def tend(self) -> None:
        """Follow what is served now, and begin what is due. To be called before each step."""
        self._keep_up()
        while self._due and not self._reading:
            live = next(iter(self._due))
            del self._due[live]
            if live.published is not None:
                self._begin(live, live.published)

    def settle(self, *, is_idle: bool) -> None:
        """Take in what was read. To be called after each step.

        `is_idle`: nobody else is there, so that pinned prompts that gave way can be read again.
        Cost: then a look-up for each prompt.
        """
        for sequence, event in self._answers.readings():
            live = self._reading.pop(sequence, None)
            if live is not None:
                live.sequence = None
                self._take(live, event)
        if is_idle and self._live and not self._reading:
            self._look()

    def readings(self) -> list[Reading]:
        """Hand over which publications can be matched, or cannot be read, since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def states(self, tenant: str | None) -> list[PublicationState]:
        """Return how much of each publication is there; of those that a tenant may use, or all."""
        return [
            self._state(live)
            for live in self._live.values()
            if tenant is None
            or live.publication.tenants is None
            or tenant in live.publication.tenants
        ]

    def _register(self, live: _Live, adapter: LoadedAdapter | None) -> None:
        publication = live.publication
        tenants = publication.tenants
        live.published = self._prompts.publish(
            publication.name,
            publication.token_ids,
            tenants=None if tenants is None else frozenset(tenants),
            like=self._namespace(publication, adapter),
            version=publication.version,
            pin=publication.pin,
        )
        self._of[live.published] = live

    def _require_room(self, live: _Live, *, is_checked: bool) -> None:
        """Withdraw what is new, and raise PublicationError, if not all that is pinned has room.

        Cost: one comparison of memory for each other prompt.
        """
        assert live.published is not None
        n_blocks = -(-live.published.n_tokens // self._config.block_size_tokens)
        kept = ""
        if live.publication.pin:
            kept = "with those that are pinned already "
            if self._n_pinned_blocks is None:
                n_blocks = sum(n for _, n in self._prompts.pinned())
            else:
                n_new = self._prompts.blocks_beyond_others(live.published)
                n_blocks = self._n_pinned_blocks + n_new
            self._n_pinned_blocks = n_blocks
        most = self._prompts.most_blocks
        if is_checked and n_blocks > most:
            self._withdraw(live)
            raise PublicationError(
                f"{kept}it takes {n_blocks} KV blocks; published prompts have {most}. Retire some,"
                " or give them a larger quota."
            )

    def _begin(self, live: _Live, published: Published) -> Sequence:
        """Queue the sequence that reads a publication."""
        self._due.pop(live, None)
        request = _request(live.publication)
        adapter = self._served.adapter_of(request)
        sequence = Sequence(
            request=request,
            namespace=published.namespace,
            max_tokens=0,
            sampler=Sampler(NOTHING_SAID),
            text=None,
            adapter=adapter,
            published=published,
        )
        live.sequence = sequence
        self._reading[sequence] = live
        self._deadlines.note(sequence)
        self._answers.open(sequence)
        self._scheduler.waiting.add(sequence)
        return sequence

    def _take(self, live: _Live, event: Finished | Failed) -> None:
        """Note how a reading has ended."""
        assert live.published is not None
        if self._prompts.is_read(live.published):
            live.has_trouble = False
            self._tell(live)
        elif isinstance(event, Failed) and event.kind is FailureKind.CANCELLED:
            self._due[live] = None  # by a reload that does not wait
        else:
            self._give_up(live, event.message if isinstance(event, Failed) else _LOST)

    def _give_up(self, live: _Live, reason: str) -> None:
        """Refuse a publication that somebody waits for; leave any other until something changes."""
        if live.is_awaited:
            del self._live[live.publication.prompt_id]
            self._withdraw(live)
            self._tell(live, reason)
        else:
            live.has_trouble = True
            logger.warning("publication %s is not read: %s", live.publication.prompt_id, reason)

    def _tell(self, live: _Live, refusal: str = "") -> None:
        if live.is_awaited:
            live.is_awaited = False
            state = None if refusal else self._state(live)
            self._ended.append(Reading(live.publication.prompt_id, state, refusal))

    def _look(self) -> None:
        """Have pinned prompts read that gave way, the oldest first, as far as all have room."""
        lost = {
            live.published: live
            for live in self._live.values()
            if live.published is not None
            and live.publication.pin
            and not live.has_trouble
            and not self._prompts.is_read(live.published)
        }
        if not lost:
            return
        n_left = self._prompts.most_blocks
        for published, n_blocks in self._prompts.pinned():
            n_left -= n_blocks
            if n_left < 0:
                return
            if published in lost:
                self._due[lost[published]] = None

    def _keep_up(self) -> None:
        """Publish again what was for a model or an adapter that was loaded anew."""
        if self._info is self._served.info:
            return
        self._info = self._served.info
        for live in list(self._live.values()):
            adapter = self._served.adapter_of(_request(live.publication))
            is_away, namespace = self._is_away(live), self._namespace(live.publication, adapter)
            if not is_away and live.published is not None and live.published.namespace == namespace:
                continue
            self._withdraw(live)
            live.has_trouble = False
            if not is_away:
                self._register(live, adapter)
                self._due[live] = None
            elif live.is_awaited:
                self._give_up(live, _NO_ADAPTER)

    def _withdraw(self, live: _Live) -> None:
        """Take what was registered off the index."""
        self._stop_reading(live)
        self._due.pop(live, None)
        if live.published is not None:
            self._prompts.retire(live.published)
            del self._of[live.published]
            live.published = None
            self._n_pinned_blocks = None

    def _stop_reading(self, live: _Live) -> None:
        if live.sequence is not None:
            del self._reading[live.sequence]
            self._answers.fail(live.sequence, FailureKind.CANCELLED, _GONE)
            live.sequence = None

    def _is_away(self, live: _Live) -> bool:
        """Return whether its adapter is not loaded now."""
        names = {adapter.name for adapter in self._served.info.adapters}
        return live.publication.adapter not in (None, *names)

    def _namespace(self, publication: Publication, adapter: LoadedAdapter | None) -> Namespace:
        return self._served.namespace_of(_request(publication), adapter)

    def _state(self, live: _Live) -> PublicationState:
        published = live.published
        return PublicationState(
            prompt_id=live.publication.prompt_id,
            n_tokens=len(live.publication.token_ids) // 4,
            cached_tokens=0 if published is None else self._prompts.cached_tokens(published),
        )


def _request(publication: Publication) -> GenerationRequest:
    """Return a publication as what is to be read; no client can make a request with its id."""
    return GenerationRequest(
        request_id=RequestId(f"publication {publication.prompt_id}"),
        token_ids=publication.token_ids,
        sampling=NOTHING_SAID,
        tenant=SYSTEM_TENANT,
        adapter=publication.adapter,
    )
