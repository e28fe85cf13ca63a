"""Having a process keep the memory that it frees, since a step needs the same again.

A step over a long prompt makes and frees tensors of some megabytes, layer after layer. glibc often
gives such memory back to the system and takes it anew, page by page, each of them cleared.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

MMAP_BYTES = 32 * 2**20  # a larger tensor is still mapped by itself; glibc takes no more
KEPT_BYTES = 128 * 2**20  # of freed memory at the end of the heap; what is beyond goes back

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_OWN_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
_TUNABLES, _OF_MALLOC = "GLIBC_TUNABLES", "glibc.malloc."


def keep_freed_memory(env: Mapping[str, str]) -> bool:
    """Have this process keep up to `KEPT_BYTES` of freed memory; return whether it will.

    It is for processes that do nothing but run a model: the setting is the whole process's.
    Where `env` sets malloc already, or malloc is not glibc's, nothing changes.
    Source: prefixcache/design/0022-fewer-fixed-costs.md.
    """
    if any(name in env for name in _OWN_SETTINGS) or _OF_MALLOC in env.get(_TUNABLES, ""):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # no such library, function or way to ask
        return False
    kept = mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
    return bool(kept and mallopt(_M_MMAP_THRESHOLD, MMAP_BYTES))
