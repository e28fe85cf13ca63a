"""The disk tier: what it keeps, through restarts and within its size."""

from __future__ import annotations

import mmap
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from prefixcache.errors import ConfigError, TierError
from prefixcache.tiers import StoredScope
from prefixcache.tiers.disk import DiskTier
from tests.tiers.contract import TierContract
from tests.tiers.made import SHOP, owner, prompt, records, same, wanted

MAX_BYTES = 1 << 23
SMALL_BYTES = 1 << 16


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[DiskTier]:
    """An empty one."""
    tier = DiskTier(tmp_path / "kv", max_bytes=MAX_BYTES)
    yield tier
    tier.close()


def files_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


class TestDiskTier(TierContract):
    """What every tier keeps to."""


def test_a_restart_finds_all_again(tmp_path: Path) -> None:
    """After a stop in order, the files beside the segments are enough to know all records."""
    stored = records(range(400))
    for first in range(0, 100, 10):
        tier = DiskTier(tmp_path, max_bytes=MAX_BYTES, segment_bytes=1 << 13)
        assert tier.n_records == first
        tier.write(stored[: first + 10])
        tier.close()
    tier = DiskTier(tmp_path, max_bytes=MAX_BYTES)
    assert tier.likely_length([record.key for record in stored]) == 100
    assert same(tier.read(wanted(stored)), stored)
    assert tier.refusals.total == 0
    tier.close()


def test_lost_sidecars_are_made_up_for(tmp_path: Path) -> None:
    """Without the files beside segments, or with damaged ones, the records themselves are read."""
    stored = records(range(400))
    for harm in (Path.unlink, lambda path: path.write_bytes(b"\0" * 100)):
        tier = DiskTier(tmp_path, max_bytes=MAX_BYTES, segment_bytes=1 << 13)
        tier.write(stored)
        tier.close()
        for path in tmp_path.glob("*.index"):
            harm(path)
        tier = DiskTier(tmp_path, max_bytes=MAX_BYTES, segment_bytes=1 << 13)
        assert same(tier.read(wanted(stored)), stored)
        tier.close()


def test_invalidations_outlive_the_process(tmp_path: Path) -> None:
    """What was invalidated stays dead after a restart, and what was not stays."""
    ours, theirs = records(range(8)), records(range(8), owner("rival"))
    tier = DiskTier(tmp_path, max_bytes=MAX_BYTES)
    tier.write(ours + theirs)
    tier.invalidate(StoredScope(tenant=SHOP.tenant))
    tier.close()
    for _ in range(2):
        tier = DiskTier(tmp_path, max_bytes=MAX_BYTES)
        assert tier.read(wanted(ours)) == []
        assert same(tier.read(wanted(theirs)), theirs)
        tier.close()


def test_files_are_this_users_alone(tmp_path: Path) -> None:
    """Nobody else may read the folder or a file in it."""
    tier = DiskTier(tmp_path / "a" / "kv", max_bytes=SMALL_BYTES, segment_bytes=1 << 12)
    tier.write(records(range(400)))
    tier.invalidate(StoredScope(tenant=SHOP.tenant))
    tier.close()
    assert stat.S_IMODE((tmp_path / "a" / "kv").stat().st_mode) == 0o700
    for path in (tmp_path / "a" / "kv").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    """Who may write there could forge KV."""
    (tmp_path / "kv").mkdir()
    (tmp_path / "kv").chmod(0o777)
    with pytest.raises(ConfigError, match="chmod go-w"):
        DiskTier(tmp_path / "kv", max_bytes=MAX_BYTES)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    """A name that is taken by something else is a mistake of the caller's."""
    (tmp_path / "kv").write_text("mine")
    with pytest.raises(ConfigError, match="no folder"):
        DiskTier(tmp_path / "kv", max_bytes=MAX_BYTES)


def test_one_process_has_the_folder(tmp_path: Path) -> None:
    """The second is told so, and may have it when the first has ended."""
    first = DiskTier(tmp_path, max_bytes=MAX_BYTES)
    with pytest.raises(TierError, match="in use by another process"):
        DiskTier(tmp_path, max_bytes=MAX_BYTES)
    first.close()
    first.close()
    DiskTier(tmp_path, max_bytes=MAX_BYTES).close()


def test_a_closed_tier_says_so(tmp_path: Path) -> None:
    """Nothing can be read or written after the end."""
    tier = DiskTier(tmp_path, max_bytes=MAX_BYTES)
    tier.close()
    with pytest.raises(TierError, match="closed"):
        tier.write(records(range(4)))


def test_a_tiny_limit_is_refused(tmp_path: Path) -> None:
    """A limit that holds next to nothing is a mistake of units."""
    with pytest.raises(ConfigError, match="disk_size"):
        DiskTier(tmp_path, max_bytes=100)


def test_the_size_is_never_above_the_limit(tmp_path: Path) -> None:
    """However much is written, the files together stay within the limit, after the end too."""
    tier = DiskTier(tmp_path, max_bytes=SMALL_BYTES)
    for number in range(200):
        tier.write(records(prompt(number, 5), owner(str(number % 7))))
        if number % 10 == 0:
            tier.invalidate(StoredScope(tenant=owner(str(number % 7)).tenant))
            assert tier.read(wanted(records(prompt(number)))) == []
        assert files_bytes(tmp_path) <= tier.n_bytes <= SMALL_BYTES
    assert tier.n_records > 50
    tier.close()
    assert files_bytes(tmp_path) <= SMALL_BYTES


def test_what_is_asked_for_stays(tmp_path: Path) -> None:
    """Of many prompts that come once, the one that comes again and again is not given up."""
    tier = DiskTier(tmp_path, max_bytes=SMALL_BYTES)
    hot, cold = records(prompt(0, 5)), records(prompt(1, 5))
    tier.write(hot + cold)
    for number in range(2, 200):
        tier.write(records(prompt(number, 5)))
        if number % 10 == 0:
            assert same(tier.read(wanted(hot)), hot)
    assert tier.read(wanted(cold)) == []
    tier.close()


def test_what_is_dead_goes_first(tmp_path: Path) -> None:
    """Room is taken from invalidated records before it is taken from living ones."""
    tier = DiskTier(tmp_path, max_bytes=SMALL_BYTES)
    old = records(prompt(0, 5))
    tier.write(old)
    for number in range(1, 30):
        tier.write(records(prompt(number, 5), owner("gone")))
    tier.invalidate(StoredScope(tenant=owner("gone").tenant))
    for number in range(30):
        tier.write(records(prompt(number, 1), owner("new")))
    assert same(tier.read(wanted(old)), old)
    tier.close()


def test_a_record_that_is_too_large_is_left_out(tmp_path: Path) -> None:
    """It is counted, and the others of the call are kept."""
    tier = DiskTier(tmp_path, max_bytes=SMALL_BYTES)
    (large,) = records(prompt(1), part_bytes=SMALL_BYTES)
    (small,) = records(prompt(2))
    tier.write([large, small])
    assert tier.read(wanted([large])) == []
    assert same(tier.read(wanted([small])), [small])
    assert tier.refusals.counts == {"too_large": 1}
    tier.close()


def test_a_smaller_limit_makes_room_at_the_start(tmp_path: Path) -> None:
    """A folder that is larger than it may be is so no more once it is open."""
    tier = DiskTier(tmp_path, max_bytes=MAX_BYTES, segment_bytes=1 << 13)
    tier.write(records(prompt(1, 1000)))
    tier.close()
    assert files_bytes(tmp_path) > SMALL_BYTES
    tier = DiskTier(tmp_path, max_bytes=SMALL_BYTES)
    assert files_bytes(tmp_path) <= SMALL_BYTES
    assert tier.n_records > 10
    tier.close()


def test_dead_records_give_their_room_back(tmp_path: Path) -> None:
    """Compacting leaves the living and nothing else."""
    tier = DiskTier(tmp_path, max_bytes=MAX_BYTES)
    ours, theirs = records(prompt(1, 100)), records(prompt(1, 50), owner("rival"))
    for mine, other in zip(ours, [*theirs, *theirs], strict=True):
        tier.write([mine, other])
    tier.invalidate(StoredScope(tenant=SHOP.tenant))
    before = files_bytes(tmp_path)
    tier.compact()
    assert files_bytes(tmp_path) < before / 2
    assert same(tier.read(wanted(theirs)), theirs)
    tier.close()


def test_the_room_is_what_the_files_take(tmp_path: Path) -> None:
    """After writes, invalidations and a start: as whoever looks at the folder counts it."""
    for first in (0, 40):
        tier = DiskTier(tmp_path, max_bytes=MAX_BYTES, segment_bytes=1 << 13)
        assert tier.room() == (MAX_BYTES, files_bytes(tmp_path))
        tier.write(records(range(first, first + 120)))
        assert tier.room() == (MAX_BYTES, files_bytes(tmp_path))
        tier.invalidate(StoredScope(tenant=bytes(16)))
        assert tier.room() == (MAX_BYTES, files_bytes(tmp_path))
        tier.close()


def test_neighbours_are_read_in_one(tmp_path: Path) -> None:
    """Their parts lie at one distance in one buffer, so that they can be written as they lie."""
    tier = DiskTier(tmp_path, max_bytes=MAX_BYTES)
    stored = records(range(40))
    tier.write(stored)
    parts = [record.parts[0] for record in tier.read(wanted(stored))]
    assert len({id(part.obj) for part in parts if isinstance(part, memoryview)}) == 1
    assert len(parts) == len(stored)
    tier.close()


def test_other_threads_may_ask_for_lengths(tmp_path: Path) -> None:
    """While one thread writes, gives up and invalidates, another gets honest answers."""
    tier = DiskTier(tmp_path, max_bytes=SMALL_BYTES)
    keys = [record.key for record in records(prompt(1, 20))]
    ends, failures = threading.Event(), []

    def ask() -> None:
        while not ends.is_set():
            try:
                assert 0 <= tier.likely_length(keys) <= 20
            except Exception as error:
                failures.append(error)
                return

    asking = threading.Thread(target=ask)
    asking.start()
    for number in range(1, 60):
        tier.write(records(prompt(number % 3, 20), owner(str(number))))
        tier.write(records(prompt(1, 20)))
        tier.invalidate(StoredScope(tenant=owner(str(number)).tenant))
    ends.set()
    asking.join()
    tier.close()
    assert failures == []


def test_what_is_read_lies_in_its_page_as_in_the_file(tmp_path: Path) -> None:
    """Wherever a record begins: the system copies fastest then."""
    tier = DiskTier(tmp_path, max_bytes=MAX_BYTES)
    tier.write(records(range(40)))
    for entry in tier._shelf.entries.values():
        (data,) = tier._shelf.segment(entry).read(entry.offset, [entry.n_bytes])
        address = np.frombuffer(data, dtype=np.uint8).ctypes.data
        assert (address - entry.offset) % mmap.PAGESIZE == 0
    tier.close()
