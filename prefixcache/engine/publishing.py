"""Published prompts: read by the engine for the system, and read again whenever they are lost.

Design: prefixcache/design/0024-control.md.
"""

from __future__ import annotations

import logging

import msgspec

from prefixcache.config import EngineConfig
from prefixcache.control import Publication, PublicationState
from prefixcache.engine.answers import Answers
from prefixcache.engine.deadlines import Deadlines
from prefixcache.engine.publications import LivePrompt, PinnedRoom, Reading, n_tokens
from prefixcache.engine.sampling import Sampler
from prefixcache.engine.scheduler import Scheduler
from prefixcache.engine.sequence import Sequence
from prefixcache.engine.served import Served
from prefixcache.engine.validation import request_refusal
from prefixcache.errors import PublicationError
from prefixcache.index import Namespace, PrefixCache, Published
from prefixcache.types import Failed, FailureKind, Finished

logger = logging.getLogger(__name__)

_GONE = "it was retired before it was read"
_LOST = "it did not stay in the cache: the KV pool has too little room for it now"
_NO_ADAPTER = "its adapter was unloaded before it was read"


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
        self._room = PinnedRoom(cache)
        self._served = served
        self._info = served.info  # which the namespaces of all publications are of
        self._config = config
        self._scheduler = scheduler
        self._answers = answers
        self._deadlines = deadlines
        self._live: dict[str, LivePrompt] = {}  # by prompt id
        self._of: dict[Published, LivePrompt] = {}
        self._due: dict[LivePrompt, None] = {}  # to be read, in this order
        self._reading: dict[Sequence, LivePrompt] = {}
        self._ended: list[Reading] = []
        self._was_idle = True  # after the last step

    @property
    def has_work(self) -> bool:
        """Whether a step would bring anything on."""
        is_behind = bool(self._live) and self._info is not self._served.info
        return bool(self._due or self._reading or is_behind)

    def publish(self, publication: Publication, *, stands: bool) -> None:
        """Register a publication, to be read; `readings` tells how that ended.

        See `EngineControl.publish`.
        """
        self._keep_up()
        if not self._config.prefix_cache:
            raise PublicationError("the prefix cache is switched off (prefix_cache)")
        if publication.prompt_id in self._live:
            raise PublicationError("this prompt id is in use; each publication has its own")
        live = LivePrompt(publication)
        if not (stands and self._is_away(live)):
            self._enter(live, is_checked=not stands)
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

        `is_idle`: nobody is there, so that pinned prompts that gave way can be read again.
        Cost: a look-up for each prompt when that has come to be so.
        """
        for sequence, event in self._answers.readings():
            live = self._reading.pop(sequence, None)
            if live is not None:
                live.sequence = None
                self._take(live, event)
        if is_idle and not self._was_idle:
            self._look()
        self._was_idle = is_idle

    def readings(self) -> list[Reading]:
        """Hand over which publications can be matched, or cannot be read, since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def states(self, tenant: str | None) -> list[PublicationState]:
        """Return how much of each publication is there; of those that a tenant may use, or all."""
        live_prompts = self._live.values()
        return [self._state(live) for live in live_prompts if tenant is None or live.is_for(tenant)]

    def _enter(self, live: LivePrompt, *, is_checked: bool) -> None:
        """Register what is new; raise PublicationError, and have changed nothing, if it cannot be.

        `is_checked`: whether there must be room for it beside what is pinned.
        """
        refusal = request_refusal(
            live.request, self._info, has_tokenizer=False, max_grammar_bytes=0
        )
        if refusal is not None:
            raise PublicationError(refusal[1])
        published = self._register(live)
        try:
            if is_checked:
                self._room.require_for(published)
        except PublicationError:
            self._withdraw(live)
            raise
        self._due[live] = None

    def _register(self, live: LivePrompt) -> Published:
        publication = live.publication
        tenants = publication.tenants
        published = live.published = self._prompts.publish(
            publication.name,
            publication.token_ids,
            tenants=None if tenants is None else frozenset(tenants),
            like=self._namespace(live),
            version=publication.version,
            pin=publication.pin,
        )
        self._of[published] = live
        self._room.add(published)
        return published

    def _begin(self, live: LivePrompt, published: Published) -> Sequence:
        """Queue the sequence that reads a publication."""
        self._due.pop(live, None)
        request = live.request
        sequence = Sequence(
            request=request,
            namespace=published.namespace,
            max_tokens=0,
            sampler=Sampler(request.sampling),
            text=None,
            adapter=self._served.adapter_of(request),
            published=published,
        )
        live.sequence = sequence
        self._reading[sequence] = live
        self._deadlines.note(sequence)
        self._answers.open(sequence)
        self._scheduler.waiting.add(sequence)
        return sequence

    def _take(self, live: LivePrompt, event: Finished | Failed) -> None:
        """Note how a reading has ended."""
        assert live.published is not None
        if self._prompts.is_read(live.published):
            self._tell(live)
        elif isinstance(event, Failed) and event.kind is FailureKind.CANCELLED:
            self._due[live] = None  # by a reload that does not wait
        elif isinstance(event, Failed):
            is_over = event.kind is FailureKind.QUEUE_TIMEOUT
            self._give_up(live, event.message, has_trouble=not is_over)
        else:
            self._give_up(live, _LOST)

    def _give_up(self, live: LivePrompt, reason: str, *, has_trouble: bool = True) -> None:
        """Refuse a publication that somebody waits for; leave any other until something changes.

        `has_trouble`: its next reading would end the same way.
        """
        if live.is_awaited:
            del self._live[live.publication.prompt_id]
            self._withdraw(live)
            self._tell(live, reason)
        else:
            live.has_trouble = has_trouble
            logger.warning("publication %s is not read: %s", live.publication.prompt_id, reason)

    def _tell(self, live: LivePrompt, refusal: str = "") -> None:
        if live.is_awaited:
            live.is_awaited = False
            state = None if refusal else self._state(live)
            self._ended.append(Reading(live.publication.prompt_id, state, refusal))

    def _look(self) -> None:
        """Have pinned prompts read that gave way, the oldest first, as far as all have room."""
        lost = {
            published: live
            for published, live in self._of.items()
            if published.is_pinned and not live.has_trouble and not self._prompts.is_read(published)
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
            is_away, where = self._is_away(live), self._namespace(live)
            if not is_away and live.published is not None and live.published.namespace == where:
                continue
            self._withdraw(live)
            live.has_trouble = False
            if not is_away:
                self._register(live)
                self._due[live] = None
            elif live.is_awaited:
                self._give_up(live, _NO_ADAPTER)

    def _withdraw(self, live: LivePrompt) -> None:
        """Take what was registered off the index."""
        self._stop_reading(live)
        self._due.pop(live, None)
        if live.published is not None:
            self._prompts.retire(live.published)
            del self._of[live.published]
            live.published = None
            self._room.forget()

    def _stop_reading(self, live: LivePrompt) -> None:
        if live.sequence is not None:
            del self._reading[live.sequence]
            if not live.sequence.has_ended:  # it may have, in the step that runs now
                self._answers.fail(live.sequence, FailureKind.CANCELLED, _GONE)
            live.sequence = None

    def _is_away(self, live: LivePrompt) -> bool:
        """Return whether its adapter is not loaded now."""
        names = {adapter.name for adapter in self._served.info.adapters}
        return live.publication.adapter not in (None, *names)

    def _namespace(self, live: LivePrompt) -> Namespace:
        """Return where it is stored: the system's, of what is served now."""
        request = live.request
        return self._served.namespace_of(request, self._served.adapter_of(request))

    def _state(self, live: LivePrompt) -> PublicationState:
        published = live.published
        return PublicationState(
            prompt_id=live.publication.prompt_id,
            n_tokens=n_tokens(live.publication),
            cached_tokens=0 if published is None else self._prompts.cached_tokens(published),
        )
