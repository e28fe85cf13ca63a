"""What a trace says of each request, whatever its format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TracePrompt:
    """What a request really said. It is either a text or messages."""

    tokens: bytes  # packed, as the trace's encoder has them
    text: str | None = None
    messages: Sequence[Mapping[str, object]] = ()
    tools: Sequence[object] | None = None


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace. Fields after the first five are None where a format lacks them."""

    timestamp_seconds: float  # of its arrival, from the trace's start
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...]  # one per block; each stands for the whole prefix up to its end
    block_tokens: int
    conversation: str | None = None  # requests of one conversation or session have it in common
    tenant: str | None = None
    model: str | None = None
    cached_tokens: int | None = None  # what the server that was recorded reused
    prompt: TracePrompt | None = None  # where it is kept: `ReadOptions.keep_prompts`
    duration_seconds: float | None = None  # from its start to its end, as it was measured

    def with_ids(
        self, timestamp_seconds: float, hash_ids: tuple[int, ...], block_tokens: int
    ) -> TraceRequest:
        """Return the same request at another time and in other blocks.

        What `dataclasses.replace` does, in a third of the time.
        """
        return TraceRequest(
            timestamp_seconds,
            self.input_tokens,
            self.output_tokens,
            hash_ids,
            block_tokens,
            self.conversation,
            self.tenant,
            self.model,
            self.cached_tokens,
            self.prompt,
            self.duration_seconds,
        )
