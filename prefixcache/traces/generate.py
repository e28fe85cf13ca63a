"""Made-up workloads, as requests of a trace: the same ones for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from heapq import heappop, heappush
from itertools import islice
from typing import Protocol

from prefixcache.errors import ConfigError
from prefixcache.traces.arrivals import Arrivals
from prefixcache.traces.made_prompts import Segment, block_ids
from prefixcache.traces.records import TraceRequest

DEFAULT_BLOCK_TOKENS = 512  # as Mooncake's traces have it
_MAY_BE_0 = frozenset({"system_tokens", "shared_tokens", "think_seconds", "tool_seconds", "skew"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Common:
    """What all workloads have."""

    requests: int
    seed: int = 0
    block_tokens: int = DEFAULT_BLOCK_TOKENS
    arrivals: Arrivals = field(default_factory=Arrivals)
    spread: float = 0.0  # lengths vary evenly by this share, up and down; 0: all the same

    def __post_init__(self) -> None:
        if not 0 <= self.spread < 1:
            raise ConfigError("spread", self.spread, "must be at least 0 and below 1")
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name in {"seed", "spread"} or not isinstance(value, int | float):
                continue
            least = 0 if each.name in _MAY_BE_0 else 1
            if not least <= value < float("inf"):
                raise ConfigError(each.name, value, f"must be at least {least}")

    def drawn(self, tokens: int, rng: random.Random) -> int:
        """Return a length of `tokens` on average."""
        if not self.spread:
            return tokens
        return max(round(tokens * rng.uniform(1 - self.spread, 1 + self.spread)), 1)

    def request(
        self, seconds: float, prompt: list[Segment], output_tokens: int, conversation: str
    ) -> TraceRequest:
        """Return the request of a prompt."""
        ids = block_ids(prompt, self.block_tokens, seed=self.seed)
        n_tokens = sum(part.tokens for part in prompt)
        return TraceRequest(
            seconds, n_tokens, output_tokens, ids, self.block_tokens, conversation=conversation
        )


class Workload(Protocol):
    """Makes requests in the order of their arrival.

    Each call of `generate` gives the same ones, and holds no more than the conversations that are
    going on.
    """

    @property
    def requests(self) -> int:
        """How many there are."""

    @property
    def block_tokens(self) -> int:
        """What an id stands for."""

    def generate(self) -> Iterator[TraceRequest]:
        """Yield the requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix(_Common):
    """Requests that begin with one of some prefixes, each followed by tokens of its own.

    Args:
        prefixes: how many there are.
        prefix_tokens, own_tokens, output_tokens: lengths; the prefixes' are always exact.
        skew: prefix n of them is chosen in proportion to 1 / n ** skew; 0: all alike.
    """

    prefixes: int = 10
    prefix_tokens: int = 2048
    own_tokens: int = 256
    output_tokens: int = 128
    skew: float = 0.0

    def generate(self) -> Iterator[TraceRequest]:
        """Yield the requests. See `Workload`."""
        rng = _rng(self.seed)
        weights = [rank**-self.skew for rank in range(1, self.prefixes + 1)]
        arrivals = self.arrivals.seconds(_rng(self.seed, "arrivals"))
        for number, seconds in enumerate(islice(arrivals, self.requests)):
            (chosen,) = rng.choices(range(self.prefixes), weights)
            own = Segment(f"own {number}", self.drawn(self.own_tokens, rng))
            prompt = [Segment(f"prefix {chosen}", self.prefix_tokens), own]
            yield self.request(seconds, prompt, self.drawn(self.output_tokens, rng), str(number))


@dataclass(slots=True)
class _Conversation:
    """One that is going on: what the next prompt begins with."""

    number: int
    rng: random.Random
    prompt: list[Segment]
    turn: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiTurn(_Common):
    """Conversations that begin as `arrivals` says: each turn has all that was said before.

    Args:
        turns: of a conversation.
        system_tokens: what all conversations begin with; 0: nothing.
        user_tokens, output_tokens: lengths of a message and of an answer.
        think_seconds: on average (exponential) from a turn to the next.
    """

    turns: int = 5
    system_tokens: int = 1024
    user_tokens: int = 128
    output_tokens: int = 256
    think_seconds: float = 20.0

    def generate(self) -> Iterator[TraceRequest]:
        """Yield the requests. See `Workload`."""
        return islice(_interleaved(self, "conversation", self._turn), self.requests)

    def opening(self, _: int) -> list[Segment]:
        """Return what a conversation begins with."""
        return _unless_empty(Segment("system", self.system_tokens))

    def _turn(self, seconds: float, talk: _Conversation) -> tuple[list[TraceRequest], float | None]:
        rng, place = talk.rng, f"{talk.number}/{talk.turn}"
        talk.prompt.append(Segment(f"user {place}", self.drawn(self.user_tokens, rng)))
        answer = self.drawn(self.output_tokens, rng)
        request = self.request(seconds, talk.prompt, answer, str(talk.number))
        talk.prompt.append(Segment(f"answer {place}", answer))
        pause = _exponential(self.think_seconds, rng)
        return [request], pause if talk.turn + 1 < self.turns else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Agentic(_Common):
    """Agents that begin as `arrivals` says: one set of instructions, a task each, then tool calls.

    Each step's prompt is the step before with its answer and a tool's result. With `branches`
    above 1 a step asks so many times at one moment, each time with an instruction of its own
    after what they share; the agent goes on from the first one.

    Args:
        steps: of an agent.
        shared_tokens: instructions and tools, which all agents begin with; 0: none.
        task_tokens, output_tokens, result_tokens: lengths of a task, an answer, a tool's result.
        branches: requests of a step.
        branch_tokens: of the instruction that tells a step's requests apart.
        tool_seconds: on average (exponential) from a step to the next.
    """

    steps: int = 12
    shared_tokens: int = 4096
    task_tokens: int = 512
    output_tokens: int = 128
    result_tokens: int = 1024
    branches: int = 1
    branch_tokens: int = 64
    tool_seconds: float = 3.0

    def generate(self) -> Iterator[TraceRequest]:
        """Yield the requests. See `Workload`."""
        return islice(_interleaved(self, "agent", self._step), self.requests)

    def opening(self, number: int) -> list[Segment]:
        """Return what an agent begins with."""
        task = self.drawn(self.task_tokens, _rng(self.seed, f"task {number}"))
        shared = _unless_empty(Segment("shared", self.shared_tokens))
        return [*shared, Segment(f"task {number}", task)]

    def _step(self, seconds: float, talk: _Conversation) -> tuple[list[TraceRequest], float | None]:
        rng, place, name = talk.rng, f"{talk.number}/{talk.turn}", str(talk.number)
        answer = self.drawn(self.output_tokens, rng)
        if self.branches == 1:
            requests = [self.request(seconds, talk.prompt, answer, name)]
        else:
            own = [Segment(f"branch {place}/{n}", self.branch_tokens) for n in range(self.branches)]
            requests = [
                self.request(seconds, [*talk.prompt, branch], answer, name) for branch in own
            ]
            talk.prompt.append(own[0])
        talk.prompt.append(Segment(f"answer {place}", answer))
        talk.prompt.append(Segment(f"result {place}", self.drawn(self.result_tokens, rng)))
        pause = _exponential(self.tool_seconds, rng)
        return requests, pause if talk.turn + 1 < self.steps else None


class _Turn(Protocol):
    def __call__(
        self, seconds: float, talk: _Conversation
    ) -> tuple[list[TraceRequest], float | None]:
        """Return the requests of a moment and the seconds to the next; None: that was the last."""


def _interleaved(work: MultiTurn | Agentic, kind: str, turn: _Turn) -> Iterator[TraceRequest]:
    """Yield the turns of conversations, which begin one after another, without end."""
    arrivals = work.arrivals.seconds(_rng(work.seed, "arrivals"))
    going_on: list[tuple[float, int, _Conversation]] = []  # a heap by the moment of the next turn
    for number, seconds in enumerate(arrivals):
        while going_on and going_on[0][0] <= seconds:
            yield from _next(going_on, turn)
        rng = _rng(work.seed, f"{kind} {number}")
        heappush(going_on, (seconds, number, _Conversation(number, rng, work.opening(number))))


def _next(going_on: list[tuple[float, int, _Conversation]], turn: _Turn) -> Iterator[TraceRequest]:
    seconds, number, talk = heappop(going_on)
    requests, pause = turn(seconds, talk)
    talk.turn += 1
    if pause is not None:
        heappush(going_on, (seconds + pause, number, talk))
    yield from requests


def _exponential(mean: float, rng: random.Random) -> float:
    return rng.expovariate(1 / mean) if mean else 0.0


def _unless_empty(segment: Segment) -> list[Segment]:
    return [segment] if segment.tokens else []


def _rng(seed: int, name: str = "") -> random.Random:
    return random.Random(f"{seed}/{name}")  # noqa: S311 (workloads, not secrets)
