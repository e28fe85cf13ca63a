"""What every tier keeps to, as tests that a class with a fixture `tier` inherits."""

from __future__ import annotations

from dataclasses import replace

from prefixcache.tiers import BlockTier, StoredNamespace, StoredScope
from tests.tiers.made import SHOP, digest, owner, prompt, records, same, wanted


class TierContract:
    """Inherited by the tests of each tier."""

    def test_what_was_written_comes_back_whole(self, tier: BlockTier) -> None:
        """Records are read as they were written, in order, with their absent parts."""
        stored = records(range(40))
        tier.write(stored)
        assert same(tier.read(wanted(stored)), stored)

    def test_reads_end_at_the_first_gap(self, tier: BlockTier) -> None:
        """Only the leading blocks that are there are returned."""
        stored = records(range(40))
        tier.write(stored[:3] + stored[4:])
        assert same(tier.read(wanted(stored)), stored[:3])
        assert tier.read(wanted(stored)[3:]) == []
        assert tier.likely_length([record.key for record in stored]) in (3, None)

    def test_nothing_is_found_in_an_empty_tier(self, tier: BlockTier) -> None:
        """What was never written is not found."""
        stored = records(range(8))
        assert tier.read(wanted(stored)) == []
        assert tier.read([]) == []
        assert tier.likely_length([stored[0].key]) in (0, None)

    def test_another_block_under_the_key_is_not_returned(self, tier: BlockTier) -> None:
        """Token ids, the block before and the owner are compared, not the key alone."""
        (stored,) = records(range(4))
        (asked,) = wanted([stored])
        others = [
            asked._replace(token_ids=b"\1" * 16),
            asked._replace(parent_key=b"\1" * 16),
            asked._replace(namespace=owner("rival")),
        ]
        for other in others:
            tier.write([stored])
            assert tier.read([other]) == []

    def test_a_block_is_kept_once(self, tier: BlockTier) -> None:
        """What is written again is skipped, within a call and between calls."""
        stored = records(range(8))
        tier.write([*stored, *stored])
        again = [replace(record, parts=(b"other",)) for record in stored]
        tier.write(again)
        assert same(tier.read(wanted(stored)), stored)

    def test_a_window_may_have_passed_all(self, tier: BlockTier) -> None:
        """A record need not have a single byte of KV."""
        (stored,) = (replace(record, parts=(None, None)) for record in records(range(4)))
        tier.write([stored])
        assert same(tier.read(wanted([stored])), [stored])

    def test_parts_may_be_views(self, tier: BlockTier) -> None:
        """KV is written from wherever it lies, without a copy of the caller's."""
        (stored,) = records(range(4))
        views = tuple(None if part is None else memoryview(part) for part in stored.parts)
        tier.write([replace(stored, parts=views)])
        assert same(tier.read(wanted([stored])), [stored])

    def test_invalidated_records_are_gone_at_once(self, tier: BlockTier) -> None:
        """A scope's records are not returned any more; others are, and so is what comes later."""
        ours, theirs = records(range(8)), records(range(8), owner("rival"))
        tier.write(ours + theirs)
        tier.invalidate(StoredScope(tenant=SHOP.tenant))
        assert tier.read(wanted(ours)) == []
        assert tier.likely_length([ours[0].key]) in (0, None)
        assert same(tier.read(wanted(theirs)), theirs)
        tier.write(ours)
        assert same(tier.read(wanted(ours)), ours)

    def test_every_kind_of_scope_is_kept_apart(self, tier: BlockTier) -> None:
        """Model, adapter, salt, tenant, two of them, or all: what lies in it is dead."""
        spaces = [owner(), owner("rival"), owner(model="large"), owner(adapter="formal")]
        spaces.append(SALTED)
        scopes = [
            StoredScope(),
            StoredScope(model=digest("large")),
            StoredScope(adapter=digest("formal")),
            StoredScope(salt=digest("salt")),
            StoredScope(tenant=digest("shop"), model=digest("small")),
        ]
        for scope in scopes:
            stored = [record for space in spaces for record in records(prompt(1, 2), space)]
            tier.write(stored)
            tier.invalidate(scope)
            for record in stored:
                is_found = bool(tier.read(wanted([record])))
                assert is_found is not scope.holds(record.namespace)

    def test_large_parts_come_back_whole(self, tier: BlockTier) -> None:
        """A record of several hundred thousand bytes is one record."""
        stored = records(prompt(1, 2), part_bytes=300_000)
        tier.write(stored)
        assert same(tier.read(wanted(stored)), stored)


SALTED = StoredNamespace(SHOP.model, None, SHOP.tenant, digest("salt"))
