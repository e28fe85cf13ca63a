"""What the backend is told of published prompts: each as it should be now.

Design: prefixcache/design/0029-published-prompts-of-the-gateway.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gateway.backends.base import Control
from gateway.errors import ChangeRefusedError
from gateway.published import PublishedPrompt
from prefixcache.control import Publication, PublicationState

GONE = "it was retired before it was read"


@dataclass(slots=True, eq=False)
class Entry:
    """A version that is published or about to be."""

    prompt: PublishedPrompt
    publication: Publication | None = None  # what the backend was told last; None: nothing
    state: PublicationState | None = None  # as it was when it had been read
    trouble: str = ""  # why it cannot be had now
    is_due: bool = True  # the backend is to be told what holds now
    is_retired: bool = False


class Publisher:
    """Brings the backend in line with what is to be shared, one entry at a time."""

    def __init__(
        self,
        control: Callable[[], Control],
        *,
        encode: Callable[[PublishedPrompt], Awaitable[bytes]],
        audience: Callable[[PublishedPrompt], tuple[str, ...] | None],
        new_id: Callable[[], str],
    ) -> None:
        """Make it. The arguments are those of `Prompts`."""
        self._control = control
        self._encode = encode
        self._audience = audience
        self._new_id = new_id

    async def tell(self, entry: Entry) -> None:
        """Publish an entry as it should be now, unless it is.

        Raises:
            ChangeRefusedError, NotReadyError: the backend cannot have it.
        """
        token_ids = await self._encode(entry.prompt)
        if entry.is_retired:
            raise ChangeRefusedError(GONE)
        wanted = self._publication(entry.prompt, token_ids)
        if entry.publication is not None and _is_same(entry.publication, wanted):
            return
        await self.take_back(entry)
        entry.publication = wanted
        try:
            entry.state = await self._control().publish(wanted)
        except BaseException:
            if entry.publication is wanted:
                entry.publication = None
            raise
        if entry.publication is not wanted:  # it was taken back while it was read
            await self._control().retire(wanted.prompt_id)
            entry.state = None
            raise ChangeRefusedError(GONE)
        entry.trouble = ""

    async def take_back(self, entry: Entry) -> None:
        """Have the backend share an entry no more."""
        told, entry.publication, entry.state = entry.publication, None, None
        if told is not None:
            await self._control().retire(told.prompt_id)

    def has_its_audience(self, entry: Entry) -> bool:
        """Whether an entry is shared with those that it is for now, or with nobody."""
        told = entry.publication
        return told is None or told.tenants == self._audience(entry.prompt)

    def _publication(self, prompt: PublishedPrompt, token_ids: bytes) -> Publication:
        return Publication(
            prompt_id=self._new_id(),
            name=prompt.name,
            version=prompt.version,
            token_ids=token_ids,
            tenants=self._audience(prompt),
            adapter=prompt.adapter,
            pin=prompt.pin,
        )


def _is_same(told: Publication, wanted: Publication) -> bool:
    return (told.token_ids, told.tenants) == (wanted.token_ids, wanted.tenants)
