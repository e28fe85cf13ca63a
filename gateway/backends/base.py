"""What the gateway asks of whatever generates text."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Protocol, runtime_checkable

from prefixcache.control import (
    Inspection,
    Invalidation,
    Publication,
    PublicationState,
    TenantQuota,
)
from prefixcache.types import EngineStats, Event, GenerationRequest, ModelInfo


class Backend(Protocol):
    """Loads one model and continues prompts with it.

    The gateway promises to call `start` once and first, `close` once and last, to give every
    request an id of its own, and to close each iterator that it does not read to its end. The
    backend promises that one request's trouble stays with that request, that the events of a
    request come in order and end with exactly one Finished or Failed, that it holds only a
    bounded amount of output for a reader that does not keep up, and that counters in `stats`
    never fall.
    """

    @property
    def is_ready(self) -> bool:
        """Whether a request would be taken now. May change at any time after `start`."""

    async def start(self) -> ModelInfo:
        """Load the model; return once requests may come. Raises StartError when it cannot."""

    def generate(self, request: GenerationRequest) -> AsyncIterator[Event]:
        """Continue one prompt; the iterator gives its events.

        Closing the iterator early (`aclose`, or cancelling the task that reads it) cancels the
        request in the engine. Trouble comes as a Failed event.

        Raises:
            NotReadyError: from the first step of the iterator, when `is_ready` is False.
        """

    def stats(self) -> EngineStats:
        """Return the latest counters and gauges, without waiting."""

    async def close(self) -> None:
        """End the requests in flight with Failed, and give back everything that is held."""


@runtime_checkable
class Control(Protocol):
    """Steers what a backend keeps. Every `Backend` of ours is one as well.

    The gateway promises to say again nothing that it has said: what it published, retired and
    set holds for a worker that is started again, too. The backend promises that a call which
    raises has changed nothing, and that none waits for requests to end.

    All raise NotReadyError when the backend takes none now, ChangeRefusedError when it cannot;
    `retire` and `invalidate` hold at once while a worker is away, for it has stored nothing.
    """

    async def publish(self, publication: Publication) -> PublicationState:
        """Share a prefix and have it read; return once it is matchable."""

    async def retire(self, prompt_id: str) -> None:
        """Share it no more: at once it matches nothing. Unknown ids are ignored."""

    async def invalidate(self, invalidation: Invalidation) -> None:
        """Make what was stored unmatchable; return once that is so."""

    async def set_quotas(self, quotas: Mapping[str, TenantQuota]) -> None:
        """Have these quotas and no others, by tenant; who is not named has the default."""

    async def inspect(self, *, max_nodes: int = 1000, tenant: str | None = None) -> Inspection:
        """Return the index as it is now, `tenant`'s part or all of it."""


@runtime_checkable
class Reloadable(Protocol):
    """A backend whose model can be changed while it serves.

    It promises that a call which raises has changed nothing, and that requests which run go on to
    their ends with what they began with.

    All raise NotReadyError when the backend takes none now, ChangeRefusedError when it cannot.
    """

    async def load_adapter(self, name: str, folder: str) -> ModelInfo:
        """Load an adapter, or load it again; return what is served from now on."""

    async def unload_adapter(self, name: str) -> ModelInfo:
        """Take an adapter away; return what is served from now on."""

    async def reload(self, *, drains: bool = True) -> ModelInfo:
        """Read the model's weights again; return once they serve."""
