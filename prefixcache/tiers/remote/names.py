"""Keys on the server. They hold digests and numbers, nothing that a person wrote."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from itertools import product
from urllib.parse import urlsplit

import msgspec

from prefixcache.tiers.frames import FORMAT_VERSION
from prefixcache.tiers.keys import StoredNamespace, StoredScope

SCOPES_KEY = f"prefixcache:{FORMAT_VERSION}:scopes"
BORN = "born"  # a field of it
_SCOPE_BYTES = 16
_N_NAMESPACES = 4096  # whose scopes are at hand


def block_key(namespace: StoredNamespace, key: bytes) -> str:
    """Return where a block's head is."""
    tenant, space = namespace.tenant.hex(), namespace.root_key().hex()
    return f"prefixcache:{FORMAT_VERSION}:{tenant}:{space}:{key.hex()}"


def chunk_key(block: str, payload_sum: int, index: int) -> str:
    """Return where a piece of its payload is. Two writers' pieces are never mixed up."""
    return f"{block}:{payload_sum:016x}:{index}"


def scope_field(scope: StoredScope) -> str:
    """Return the field that counts how often a scope was invalidated."""
    return blake2b(msgspec.msgpack.encode(scope), digest_size=_SCOPE_BYTES).hexdigest()


@lru_cache(_N_NAMESPACES)
def scope_fields(namespace: StoredNamespace) -> tuple[str, ...]:
    """Return the fields of all scopes that a namespace lies in, in one order."""
    values = [getattr(namespace, field) for field in StoredScope.__struct_fields__]
    choices = [(None,) if value is None else (None, value) for value in values]
    return tuple(scope_field(StoredScope(*chosen)) for chosen in product(*choices))


def safe_address(url: str) -> str:
    """Return a server's URL without user, password and options."""
    try:
        parts = urlsplit(url)
        if "@" in parts.path or ("@" in url and "@" not in parts.netloc):
            raise ValueError  # a password that is not quoted: no telling where it ends
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError:
        return "(a URL that cannot be read)"
    return f"{parts.scheme or '(no scheme)'}://{parts.hostname or ''}{port}{parts.path}"
