"""Makes a folder smaller that no server uses at the time."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from prefixcache.tiers.disk.folder import DiskFolder, disk_errors, used_bytes
from prefixcache.tiers.disk.survey import Survey
from prefixcache.tiers.disk.tier import MIN_BYTES, DiskTier
from prefixcache.tiers.keys import StoredScope


def prune(
    found: Survey,
    folder: Path,
    *,
    models: Iterable[bytes] = (),
    max_bytes: int | None = None,
    others: bool = False,
) -> int:
    """Remove what is dead, damaged, or not wanted any more; returns the bytes that are left.

    Args:
        found: by `survey`, just before.
        folder: where.
        models: digests of models whose blocks go.
        max_bytes: the oldest blocks go until all files take no more; None: they stay.
        others: files of another version go, too.

    Raises:
        ConfigError: `max_bytes` is too small, or the folder is another version's.
        TierError: a server uses it, or the system refuses it.
    """
    if others:
        _remove(folder, [trouble.place for trouble in found.left_alone])
    roomy = 2 * found.n_bytes + MIN_BYTES
    with closing(DiskTier(folder, max_bytes=roomy)) as tier:
        for model in models:
            tier.invalidate(StoredScope(model=model))
        tier.compact()
    if max_bytes is not None:
        DiskTier(folder, max_bytes=max_bytes).close()
    with disk_errors(folder):
        return used_bytes(folder)


def _remove(folder: Path, names: Iterable[str]) -> None:
    with closing(DiskFolder(folder)) as claimed, disk_errors(folder):
        for name in names:
            claimed.remove(name)
