"""Files that are not as they were written: nothing wrong is returned, all is counted."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from prefixcache.errors import ConfigError, TierError
from prefixcache.tiers import BlockRecord, StoredScope
from prefixcache.tiers.disk import DiskTier
from prefixcache.tiers.frames import framed, read_frame, read_record
from prefixcache.tiers.refusals import RefusedError
from tests.tiers.made import owner, prompt, records, same, wanted

MAX_BYTES = 1 << 20
STORED = records(prompt(1, 4))
GONE = records(prompt(1, 2), owner("gone"))
TOP_BYTES = 44


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a few records, some of them invalidated, that nobody has open."""
    folder = tmp_path_factory.mktemp("written") / "kv"
    tier = DiskTier(folder, max_bytes=MAX_BYTES)
    tier.write(GONE)
    tier.invalidate(StoredScope(tenant=owner("gone").tenant))
    tier.write(STORED)
    tier.close()
    return folder


def found_in(folder: Path, stored: list[BlockRecord]) -> tuple[list[BlockRecord], int]:
    """Return the records that a tier returns one by one, and how much it refused."""
    tier = DiskTier(folder, max_bytes=MAX_BYTES)
    found = [record for block in wanted(stored) for record in tier.read([block])]
    assert not [record for block in wanted(GONE) for record in tier.read([block])]
    tier.write(records(prompt(9)))  # it goes on working
    assert tier.read(wanted(records(prompt(9))))
    tier.close()
    return found, tier.refusals.total


def is_honest(found: list[BlockRecord]) -> bool:
    """Whether each is, bit for bit, one that was written."""
    return all(any(same([record], [known]) for known in STORED) for record in found)


def decode(data: bytearray) -> BlockRecord:
    frame = read_frame(memoryview(data))
    return read_record(frame, memoryview(data)[frame.head_bytes :])


def test_every_flipped_byte_of_a_record_is_refused() -> None:
    """Whichever byte of a record is another one, the record is not used."""
    data = b"".join(map(bytes, framed(STORED[0], 7)))
    for place in range(len(data)):
        for flip in (0x01, 0xFF):
            harmed = bytearray(data)
            harmed[place] ^= flip
            with pytest.raises(RefusedError):
                decode(harmed)


def test_every_flipped_byte_of_a_segment_is_seen(written: Path, tmp_path: Path) -> None:
    """At most the records that it stands in are lost; none is wrong, with a sidecar or without."""
    (segment,) = written.glob("*.segment")
    data = segment.read_bytes()
    live_from = TOP_BYTES + (len(data) - TOP_BYTES) * 2 // 6  # two of six are invalidated
    for has_sidecar in (True, False):
        for place in range(0, len(data), 7 if has_sidecar else 17):
            folder = tmp_path / "kv"
            shutil.copytree(written, folder)
            harmed = bytearray(data)
            harmed[place] ^= 0x55
            (folder / segment.name).write_bytes(harmed)
            if not has_sidecar:
                next(folder.glob("*.index")).unlink()
            found, n_refused = found_in(folder, STORED)
            assert is_honest(found)
            assert len(found) >= (3 if place >= TOP_BYTES else 0)
            assert n_refused >= (0 if TOP_BYTES <= place < live_from else 1)
            shutil.rmtree(folder)


@pytest.mark.parametrize("name", ["scopes", "0000000001.index"])
def test_every_flipped_byte_beside_segments_is_seen(
    written: Path, tmp_path: Path, name: str
) -> None:
    """What was invalidated stays dead, and nothing wrong is returned."""
    data = (written / name).read_bytes()
    for place in range(0, len(data), 2):
        folder = tmp_path / "kv"
        shutil.copytree(written, folder)
        harmed = bytearray(data)
        harmed[place] ^= 0x55
        (folder / name).write_bytes(harmed)
        found, n_refused = found_in(folder, STORED)
        assert n_refused >= 1
        assert is_honest(found)
        assert len(found) == (0 if name == "scopes" else 4)
        shutil.rmtree(folder)


@pytest.mark.parametrize("pattern", ["scopes", "*.index", "*.segment"])
def test_files_cut_anywhere_give_nothing_wrong(written: Path, tmp_path: Path, pattern: str) -> None:
    """Each file is cut at each length, or gone, and what was invalidated stays dead."""
    (name,) = (path.name for path in written.glob(pattern))
    data = (written / name).read_bytes()
    for length in [None, *range(0, len(data), 3 if len(data) < 1000 else 19)]:
        folder = tmp_path / "kv"
        shutil.copytree(written, folder)
        if length is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(data[:length])
        found, n_refused = found_in(folder, STORED)
        assert is_honest(found)
        assert n_refused >= (0 if length is None and name != "scopes" else 1)
        shutil.rmtree(folder)


def test_a_damaged_record_is_counted_logged_and_replaced(
    written: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says where; a later write puts the block right again."""
    shutil.copytree(written, tmp_path / "kv")
    (segment,) = (tmp_path / "kv").glob("*.segment")
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)
    tier = DiskTier(tmp_path / "kv", max_bytes=MAX_BYTES)
    with caplog.at_level(logging.WARNING):
        assert same(tier.read(wanted(STORED)), STORED[:3])
    assert tier.refusals.counts == {"checksum": 1}
    assert "record 1:" in caplog.text
    assert STORED[3].key.hex() not in caplog.text
    tier.write(STORED)
    assert same(tier.read(wanted(STORED)), STORED)
    tier.close()


def test_a_file_cut_under_an_open_tier_is_seen(written: Path, tmp_path: Path) -> None:
    """A segment that loses its end while it is open costs those records alone."""
    shutil.copytree(written, tmp_path / "kv")
    tier = DiskTier(tmp_path / "kv", max_bytes=MAX_BYTES)
    (segment,) = (tmp_path / "kv").glob("*.segment")
    with segment.open("r+b") as file:
        file.truncate(segment.stat().st_size - 10)
    assert same(tier.read(wanted(STORED)), STORED[:3])
    assert tier.refusals.counts == {"cut_short": 1}
    tier.close()


def renumbered(data: bytes, digest: Callable[[bytes], bytes]) -> bytes:
    """Return the top of a segment as version 2 would write it."""
    top = data[:8] + (2).to_bytes(2, "little") + data[10:36]
    return top + digest(top) + data[44:]


def test_segments_of_another_version_are_left_alone(written: Path, tmp_path: Path) -> None:
    """They are counted, not read, and not removed, however much room is needed."""
    xxhash = pytest.importorskip("xxhash")
    shutil.copytree(written, tmp_path / "kv")
    (segment,) = (tmp_path / "kv").glob("*.segment")
    other = renumbered(
        segment.read_bytes(), lambda top: xxhash.xxh3_64_intdigest(top).to_bytes(8, "little")
    )
    segment.write_bytes(other)
    tier = DiskTier(tmp_path / "kv", max_bytes=1 << 16)
    assert tier.refusals.counts == {"version": 1}
    for number in range(200):
        tier.write(records(prompt(number, 4)))
    assert tier.n_records > 50
    tier.close()
    assert segment.read_bytes() == other


def test_a_folder_of_another_version_is_refused(tmp_path: Path) -> None:
    """Its invalidations could not be read, so none of it may be used or changed."""
    xxhash = pytest.importorskip("xxhash")
    body = (2).to_bytes(2, "little") + b"whatever"
    check = xxhash.xxh3_64_intdigest(body).to_bytes(8, "little")
    (tmp_path / "scopes").write_bytes(b"PCscopes" + check + body)
    with pytest.raises(ConfigError, match="of another format"):
        DiskTier(tmp_path, max_bytes=MAX_BYTES)


def test_another_folders_segments_are_not_believed(written: Path, tmp_path: Path) -> None:
    """What was invalidated in this folder may not have been in that one."""
    DiskTier(tmp_path / "kv", max_bytes=MAX_BYTES).close()
    (segment,) = written.glob("*.segment")
    shutil.copy(segment, tmp_path / "kv")
    assert found_in(tmp_path / "kv", STORED) == ([], 1)


def test_other_peoples_files_are_left_alone(tmp_path: Path) -> None:
    """A file that is none of ours is neither read nor removed, whatever its name."""
    names = ["notes.txt", "0000000001.segment", "x.segment", "7.index"]
    for name in names:
        (tmp_path / name).write_text("something else, " * 10)
    tier = DiskTier(tmp_path, max_bytes=MAX_BYTES)
    tier.write(STORED)
    assert same(tier.read(wanted(STORED)), STORED)
    tier.close()
    for name in names:
        assert (tmp_path / name).read_text() == "something else, " * 10


def test_another_models_records_are_left_alone(written: Path, tmp_path: Path) -> None:
    """A folder may serve several models; none reads what another has written."""
    shutil.copytree(written, tmp_path / "kv")
    tier = DiskTier(tmp_path / "kv", max_bytes=MAX_BYTES)
    other = records(prompt(1, 4), owner(model="large"))
    assert tier.read(wanted(other)) == []
    tier.write(other)
    assert same(tier.read(wanted(other)), other)
    assert same(tier.read(wanted(STORED)), STORED)
    assert tier.refusals.total == 0
    tier.close()


FULL_DISK = """
import resource, sys
from pathlib import Path
from prefixcache.errors import TierError
from prefixcache.tiers import StoredScope
from prefixcache.tiers.disk import DiskTier
from tests.tiers.made import SHOP, prompt, records, same, wanted

tier = DiskTier(Path(sys.argv[1]), max_bytes=1 << 20)
first = records(prompt(1, 10))
tier.write(first)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (8000, hard))
second = records(prompt(2, 10), part_bytes=1000)
for _ in range(3):
    try:
        tier.write(second)
    except TierError as error:
        assert "room" in str(error)
    else:
        raise AssertionError("the disk is full")
assert tier.read(wanted(second)) == []
assert same(tier.read(wanted(first)), first)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
tier.invalidate(StoredScope(tenant=SHOP.tenant))
assert tier.read(wanted(first)) == []
if sys.argv[2] == "recover":
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    tier.write(second)
    assert same(tier.read(wanted(second)), second)
    tier.close()
"""


@pytest.mark.parametrize("then", ["recover", "die"])
def test_a_full_disk_is_told_and_got_over(tmp_path: Path, then: str) -> None:
    """Writes fail whole, reads go on, invalidations hold, and all goes on when there is room."""
    subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path), then], check=True)
    tier = DiskTier(tmp_path, max_bytes=MAX_BYTES)
    assert tier.read(wanted(records(prompt(1, 10)))) == []
    tier.close()


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    """New files cannot be made there: the tier cannot be used for now."""
    tier = DiskTier(tmp_path / "kv", max_bytes=MAX_BYTES)
    shutil.rmtree(tmp_path / "kv")
    with pytest.raises(TierError, match="See that there is room"):
        tier.write(STORED)
    (tmp_path / "kv").mkdir()
    tier.write(STORED)
    assert same(tier.read(wanted(STORED)), STORED)
    tier.close()


def test_it_needs_no_torch() -> None:
    """A tier's process may be small."""
    code = "import prefixcache.tiers.disk, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
