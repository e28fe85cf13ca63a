"""What earlier prompts were, as digests: enough to say what changed since, and no more.

Design: prefixcache/design/0027-anthropic-dialect.md.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock

import msgspec

_DIGEST_BYTES = 16
_MAX_TENANTS = 1024
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """One prompt: digests of its parts, and how long it was."""

    model: str
    system: bytes
    tools: bytes
    others: bytes  # whatever else a prompt depends on
    messages: tuple[bytes, int]  # of all of them together, and how many they are
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt whose fingerprint can be taken, and compared with an earlier one."""

    model: str
    system: object
    tools: object
    others: object
    messages: Sequence[Mapping[str, object]]

    def fingerprint(self, prompt_tokens: int) -> Fingerprint:
        """Return the digests. Cost: linear in the prompt."""
        return Fingerprint(
            self.model,
            _digest(self.system),
            _digest(self.tools),
            _digest(self.others),
            (_digest(self.messages), len(self.messages)),
            prompt_tokens,
        )

    def change_since(self, earlier: Fingerprint) -> str | None:
        """Return what differs first of model, system, tools and messages, or `others`.

        Messages that were only added to are no difference; None: nothing differs.
        """
        if self.model != earlier.model:
            return "model"
        if _digest(self.system) != earlier.system:
            return "system"
        if _digest(self.tools) != earlier.tools:
            return "tools"
        digest, n_messages = earlier.messages
        if _digest(self.messages[:n_messages]) != digest:
            return "messages"
        return None if _digest(self.others) == earlier.others else "others"


class Fingerprints:
    """The latest fingerprints of each tenant, by answer. Safe to use from many threads."""

    def __init__(self, *, max_per_tenant: int) -> None:
        self._max_per_tenant = max_per_tenant
        self._tenants: OrderedDict[str, OrderedDict[str, Fingerprint]] = OrderedDict()
        self._lock = Lock()

    def put(self, tenant: str, answer_id: str, fingerprint: Fingerprint) -> None:
        """Remember a prompt; the tenant's oldest, and who asked longest ago, is forgotten."""
        with self._lock:
            own = self._tenants.setdefault(tenant, OrderedDict())
            self._tenants.move_to_end(tenant)
            own[answer_id] = fingerprint
            if len(own) > self._max_per_tenant:
                own.popitem(last=False)
            if len(self._tenants) > _MAX_TENANTS:
                self._tenants.popitem(last=False)

    def get(self, tenant: str, answer_id: str) -> Fingerprint | None:
        """Return the prompt of an answer to the same tenant, if it is still known."""
        with self._lock:
            return self._tenants.get(tenant, OrderedDict()).get(answer_id)


def _digest(value: object) -> bytes:
    return hashlib.blake2b(_encode(value), digest_size=_DIGEST_BYTES).digest()
