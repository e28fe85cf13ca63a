"""What the system shares with tenants."""

from __future__ import annotations

from prefixcache.index.namespaces import Namespace


class Published:
    """One version of a named prefix that chosen tenants, or all, may reuse.

    Compared by identity: every publication is a version of its own.
    """

    __slots__ = ("is_live", "name", "namespace", "tenants", "tokens", "version")

    def __init__(
        self,
        name: str,
        version: int,
        namespace: Namespace,
        tokens: bytes,
        tenants: frozenset[str] | None,
    ) -> None:
        self.name = name
        self.version = version  # of this name, from 1
        self.namespace = namespace  # the system's, of one model, adapter and KV format
        self.tokens = tokens  # packed
        self.tenants = tenants  # None: all
        self.is_live = True  # False: retired, and never matched again
