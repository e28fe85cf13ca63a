"""A segment, with what is known of its records."""

from __future__ import annotations

from prefixcache.tiers.disk.folder import DiskFolder, sidecar_name
from prefixcache.tiers.disk.scopes import Scopes
from prefixcache.tiers.disk.segment import TOP_BYTES, Segment
from prefixcache.tiers.disk.sidecar import Entry, most_bytes, read_back
from prefixcache.tiers.keys import StoredNamespace
from prefixcache.tiers.refusals import Refusals, RefusedError


class KeptSegment:
    """The file and its entries, in the order that they stand in it."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.sidecar_bytes = 0  # of its file; 0: it has none
        self.entries: list[Entry] = []
        self._latest: dict[StoredNamespace, int] = {}  # stamp

    def add(self, entry: Entry) -> None:
        """Have one more."""
        self.entries.append(entry)
        latest = self._latest.get(entry.namespace, entry.stamp)
        self._latest[entry.namespace] = max(latest, entry.stamp)

    @property
    def files_bytes(self) -> int:
        """Of the files that there are."""
        return self.segment.n_bytes + self.sidecar_bytes

    @property
    def n_bytes(self) -> int:
        """Of the segment, and at most of the file that comes beside it."""
        room = most_bytes(len(self.entries), len(self._latest))
        return self.segment.n_bytes + (self.sidecar_bytes or room)

    def is_dead(self, scopes: Scopes) -> bool:
        """Whether all that it holds has been invalidated."""
        return all(stamp < scopes.floor(space) for space, stamp in self._latest.items())


def load_entries(folder: DiskFolder, segment: Segment, refusals: Refusals) -> KeptSegment:
    """Return what a segment holds: by the file beside it, or else by looking at each record.

    A torn end is cut off. Raises OSError.
    """
    kept = KeptSegment(segment)
    path = folder.path / sidecar_name(segment.number)
    try:
        data = path.read_bytes()
        entries = read_back(data, segment.number, segment.n_bytes)
        kept.sidecar_bytes = len(data)
    except FileNotFoundError:
        entries = _scanned(segment, refusals)
    except RefusedError as error:
        refusals.note(error.reason, path.name)
        folder.remove(path.name)
        entries = _scanned(segment, refusals)
    for entry in entries:
        kept.add(entry)
    return kept


def _scanned(segment: Segment, refusals: Refusals) -> list[Entry]:
    entries = []
    end = TOP_BYTES
    for found in segment.scan():
        if isinstance(found, RefusedError):
            refusals.note(found.reason, f"a stretch of segment {segment.number}")
            continue
        head, size = found.frame.head, found.frame.n_bytes
        entries.append(
            Entry(head.key, head.namespace, found.frame.stamp, segment.number, found.offset, size)
        )
        end = found.offset + size
    if end < segment.n_bytes:
        segment.cut(end)
    return entries
