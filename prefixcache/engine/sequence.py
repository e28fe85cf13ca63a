"""One request on its way through the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from prefixcache.config import EngineConfig
from prefixcache.engine.adapters import LoadedAdapter
from prefixcache.engine.drafting import Drafter
from prefixcache.engine.sampling import Sampler
from prefixcache.index import Lease, Namespace, Published, Waiter, pack, unpack
from prefixcache.text import OutputText
from prefixcache.types import GenerationRequest, Usage

MAX_SCORED_ROWS = 256  # 50 MB of logits with a vocabulary of 50 thousand


@dataclass(slots=True, eq=False)
class Sequence:
    """Its tokens, how far their KV is written, and what holds that KV."""

    request: GenerationRequest
    namespace: Namespace
    max_tokens: int  # of output; what fits the model already taken into account
    sampler: Sampler
    text: OutputText | None  # None: the engine has no tokenizer
    adapter: LoadedAdapter | None = None  # what it began with, whatever its name means later
    published: Published | None = None  # what it reads for the system, and says nothing
    prompt: list[int] = field(init=False)
    output: list[int] = field(default_factory=list)
    lease: Lease | None = None  # None: waiting
    waiter: Waiter | None = None  # waits for what another one is computing
    serial: int = 0  # in order of arrival
    n_overtaken: int = 0  # how many that came later, or had their turn later, were admitted before
    is_at_quota: bool = False  # its tenant alone stood in its way at its last turn
    n_waits: int = 0  # how often it has waited for a twin
    n_admitted: int = 0  # tokens known when it was admitted last: those it reads
    n_computed: int = 0  # positions whose KV is written, from 0
    cached_tokens: int | None = None  # as of the first admission
    written_tokens: int = 0  # of the prompt, that others find because of it
    written_before: int = 0  # of these, when it was preempted last
    has_stored_prompt: bool = False
    tier_tokens: dict[str, int] = field(default_factory=dict)  # loaded at its last admission
    awaits_tier: bool = False  # what it begins with is being read from a tier
    reading: Sequence | None = None  # who is to read, for the system, what it begins with
    drafter: Drafter | None = None  # what guesses its next tokens, once it has said one
    n_scored: int = 0  # prompt tokens whose score is known, or not wanted
    has_ended: bool = False

    def __post_init__(self) -> None:
        self.prompt = unpack(self.request.token_ids)
        wants_scores = self.request.sampling.prompt_scores is not None
        self.n_scored = 1 if wants_scores else len(self.prompt)  # the first one has none

    @property
    def n_tokens(self) -> int:
        """Tokens known: prompt and output."""
        return len(self.prompt) + len(self.output)

    @property
    def most_tokens(self) -> int:
        """Positions whose KV it can ever need; the last token is never fed."""
        return len(self.prompt) + self.max_tokens - 1

    @property
    def n_pending(self) -> int:
        """Tokens known that were not fed to the model yet."""
        return self.n_tokens - self.n_computed

    @property
    def n_feedable(self) -> int:
        """How many of `n_pending` one step may take: logits of many rows need much memory."""
        is_scored = self.n_scored < len(self.prompt)
        return min(self.n_pending, MAX_SCORED_ROWS) if is_scored else self.n_pending

    def n_logits(self, stop: int) -> int:
        """Return how many of the last positions before `stop` need logits when they are fed.

        Those before a prompt token without a score, and the last of all that is known.
        """
        if self.n_scored < len(self.prompt):
            return max(0, stop - self.n_scored + 1)
        return int(stop == self.n_tokens)

    @property
    def is_behind_twin(self) -> bool:
        """Whether somebody is reading, or about to read, what it begins with: it better waits."""
        if self.reading is not None and not (self.reading.has_begun or self.reading.has_ended):
            return True
        return self.waiter is not None and self.waiter.leader is not None

    @property
    def has_begun(self) -> bool:
        """Whether it was ever admitted."""
        return self.cached_tokens is not None

    @property
    def is_spared(self) -> bool:
        """Whether it waits without making the queue longer: for a twin, or as one who ran."""
        return self.is_behind_twin or self.cached_tokens is not None

    def is_before(self, other: Sequence) -> bool:
        """Whether it came first, of the same tenant and priority, and waits for its own turn."""
        mine, its = self.request, other.request
        return (
            self.serial < other.serial
            and (mine.priority, mine.tenant) == (its.priority, its.tenant)
            and not (self.is_behind_twin or self.awaits_tier)
        )

    @property
    def usage(self) -> Usage:
        """What the request has used until now."""
        cached = self.cached_tokens or 0
        return Usage(len(self.prompt), cached, len(self.output), self.written_tokens)

    def tokens(self, start: int, stop: int) -> list[int]:
        """Return token ids of positions start..stop-1."""
        n_prompt = len(self.prompt)
        if stop <= n_prompt:
            return self.prompt[start:stop]
        if start >= n_prompt:
            return self.output[start - n_prompt : stop - n_prompt]
        return self.prompt[start:] + self.output[: stop - n_prompt]

    def packed(self, stop: int) -> bytes:
        """Return positions 0..stop-1 as the index takes them."""
        n_prompt = len(self.prompt)
        if stop <= n_prompt:
            return self.request.token_ids[: stop * 4]
        return self.request.token_ids + pack(self.output[: stop - n_prompt])


def reads_cache(config: EngineConfig, sequence: Sequence) -> bool:
    """Return whether what is cached counts for a sequence."""
    return config.prefix_cache and sequence.request.read_cache
