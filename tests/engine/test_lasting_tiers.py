"""What outlives the process is found again as it was, or not at all, and nobody fails for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from prefixcache.config import EngineConfig
from prefixcache.control import Invalidation, InvalidationKind
from prefixcache.engine.tiers import open_lasting
from prefixcache.engine.tiers.late import LateTier
from prefixcache.errors import ConfigError
from prefixcache.kv import formats
from prefixcache.tiers import BlockRecord
from prefixcache.tiers.disk import DiskTier, survey
from tests.engine.test_invariant import ScoredBench
from tests.support.architectures import tiny_model
from tests.support.kv import CPU_FORMATS
from tests.support.models import ARCHITECTURES, Bench, oracle, prompt_ids
from tests.support.storm import Storm, poison
from tests.support.tiers import MemoryTier

PROMPT = prompt_ids(41)


class Servers:
    """Engines that come one after the other and share a tier."""

    def __init__(self) -> None:
        self.tier = MemoryTier()
        self.benches: list[Bench] = []

    def new(self, architecture: str = "llama", **settings: Any) -> Bench:
        lasting = {"disk": settings.pop("tier", self.tier)}
        options: dict[str, Any] = {"tier_loading": "always"} | settings
        bench = Bench(architecture, lasting=lasting, **options)
        poison(bench)
        self.benches.append(bench)
        return bench

    def close(self) -> None:
        self.tier.gate.set()
        for bench in self.benches:
            bench.engine.close()


@pytest.fixture
def servers() -> Iterator[Servers]:
    made = Servers()
    yield made
    made.close()


def settled(bench: Bench) -> None:
    """Wait until what was computed is kept."""
    assert bench.engine._tiers.flush(10)


def disk_tokens(bench: Bench) -> int:
    return bench.engine.stats().tiers["disk"].hit_tokens


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_new_engine_finds_what_the_last_one_computed(servers: Servers, architecture: str) -> None:
    """All whole blocks of a prompt, and the answer is the uncached one."""
    old = servers.new(architecture)
    first = old.run(PROMPT)
    settled(old)
    new = servers.new(architecture)
    again = new.run(PROMPT)
    assert again.cached_tokens == 40
    assert disk_tokens(new) == 40
    assert again.token_ids == first.token_ids
    assert oracle(new.reference, PROMPT, 8).is_same(again.token_ids)


@pytest.mark.parametrize("name", CPU_FORMATS)
def test_every_format_is_found_again_bit_for_bit(tmp_path: Path, name: str) -> None:
    """In invariant mode a restart changes neither tokens nor scores; other formats find nothing."""
    told, cached = [], []
    for kept_as in (name, name, "int8" if name != "int8" else "int4"):
        disk = DiskTier(tmp_path, max_bytes=1 << 22)
        bench = ScoredBench(
            invariant=True, kv_format=kept_as, tier_loading="always", lasting={"disk": disk}
        )
        poison(bench)
        bench.submit("r", PROMPT, 8, top_scores=5)
        bench.drain()
        bench.engine.close()
        told.append(bench.told["r"])
        cached.append(bench.answers["r"].cached_tokens)
    assert cached == [0, 40, 0]
    assert told[0] == told[1]


def test_what_was_loaded_is_not_copied_out_again(servers: Servers) -> None:
    """The tier that has it gets what was computed, and the block of the last token."""
    old = servers.new()
    old.run(PROMPT[:40], 1)
    settled(old)
    servers.tier.written.clear()
    new = servers.new()
    assert new.run(PROMPT[:40], 1).cached_tokens == 39
    new.run([*PROMPT[:40], *range(9)], 1)
    settled(new)
    assert servers.tier.written == [1, 2]


def test_what_an_older_version_of_a_format_wrote_is_not_found(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A format whose bytes mean something else now matches none of the old ones."""
    now = formats.kv_format("int4", torch.float32)
    with monkeypatch.context() as before:
        before.setitem(formats._FORMATS, "int4", now._replace(version=now.version - 1))
        old = servers.new(kv_format="int4")
        old.run(PROMPT)
        settled(old)
        assert servers.new(kv_format="int4").run(PROMPT).cached_tokens == 40
    assert servers.new(kv_format="int4").run(PROMPT).cached_tokens == 0


def test_a_disk_keeps_prefixes_over_a_restart(servers: Servers, tmp_path: Path) -> None:
    """The real one, closed with the engine and opened again; the answer of a chat is there too."""
    old = servers.new(tier=DiskTier(tmp_path, max_bytes=1 << 22))
    answer = old.run(PROMPT, 13).token_ids
    old.engine.close()
    new = servers.new(tier=DiskTier(tmp_path, max_bytes=1 << 22))
    turn = [*PROMPT, *answer, 5, 6]
    again = new.run(turn, 4)
    assert again.cached_tokens == (len(PROMPT) + 13 - 1) // 4 * 4
    assert oracle(new.reference, turn, 4).is_same(again.token_ids)


def test_stats_tell_what_a_disk_holds(servers: Servers, tmp_path: Path) -> None:
    """What its files take, and may take; another tier may not know."""
    bench = servers.new(tier=LateTier(lambda: DiskTier(tmp_path, max_bytes=1 << 22)))
    bench.run(PROMPT)
    settled(bench)
    shown = bench.engine.stats().tiers["disk"]
    assert (shown.size_bytes, shown.used_bytes) == (1 << 22, survey(tmp_path, verify=False).n_bytes)
    assert servers.new().engine.stats().tiers["disk"].size_bytes is None


def test_a_start_that_is_refused_lets_go_of_the_folder(tmp_path: Path) -> None:
    """A setting of one tier that cannot work does not leave another one taken."""
    config = EngineConfig(disk=str(tmp_path), disk_bytes=1 << 22, remote="gopher://nowhere")
    with pytest.raises(ConfigError):
        open_lasting(config)
    DiskTier(tmp_path, max_bytes=1 << 22).close()


def test_other_weights_find_nothing(servers: Servers) -> None:
    """What makes the KV another is in its name: weights, and the adapter's."""
    old = servers.new()
    old.run(PROMPT)
    settled(old)
    assert servers.new("qwen3").run(PROMPT).cached_tokens == 0
    assert servers.new(block_size_tokens=8).run(PROMPT).cached_tokens == 0
    assert servers.new().run(PROMPT).cached_tokens == 40


def test_one_other_number_in_the_weights_is_another_model(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever version is named, or none: what is found was computed by the very same weights."""
    old = servers.new()
    old.run(PROMPT)
    settled(old)

    def changed(architecture: str) -> PreTrainedModel:
        model = tiny_model(architecture)
        with torch.no_grad():
            model.get_parameter("model.layers.1.mlp.down_proj.weight")[3, 5] += 0.5
        return model

    with monkeypatch.context() as later:
        later.setattr("tests.support.models.tiny_model", changed)
        new = servers.new()
    assert new.run(PROMPT).cached_tokens == 0
    assert oracle(new.reference, PROMPT, 8).is_same(new.run(PROMPT).token_ids)
    assert servers.new(dtype=torch.bfloat16, weights="auto").run(PROMPT).cached_tokens == 0
    assert servers.new().run(PROMPT).cached_tokens == 40


@pytest.mark.parametrize("kind", [kind for kind in InvalidationKind if kind != "adapter"])
def test_what_was_invalidated_is_found_by_nobody(servers: Servers, kind: InvalidationKind) -> None:
    """Neither by this engine nor by the next; what is computed after that is."""
    old = servers.new()
    old.run(PROMPT)
    settled(old)
    name = "default" if kind is InvalidationKind.TENANT else None
    old.engine.control.invalidate(Invalidation(kind=kind, name=name))
    assert old.run(PROMPT).cached_tokens == 0
    settled(old)
    new = servers.new()
    assert new.run(PROMPT).cached_tokens == 40
    new.engine.control.invalidate(Invalidation(kind=kind, name=name))
    settled(new)
    assert servers.new().run(PROMPT).cached_tokens == 0


def test_what_waits_to_be_written_is_dropped_by_an_invalidation(servers: Servers) -> None:
    """At once: the tier is busy, and what it gets afterwards is not of before."""
    old = servers.new()
    servers.tier.gate.clear()
    old.run(PROMPT)
    old.engine.control.invalidate(Invalidation(kind=InvalidationKind.TENANT, name="default"))
    servers.tier.gate.set()
    settled(old)
    assert not servers.tier.records


def test_who_runs_through_an_invalidation_keeps_nothing(servers: Servers) -> None:
    """Its later blocks are of the old generation, in every tier."""
    bench = servers.new(max_step_tokens=8)
    bench.submit("long", PROMPT, 8)
    bench.step_until(lambda: bench.engine.stats().computed_tokens_total > 20)
    bench.engine.control.invalidate(Invalidation(kind=InvalidationKind.TENANT, name="default"))
    bench.drain()
    settled(bench)
    assert not servers.tier.records
    assert bench.run(PROMPT).cached_tokens == 0


def test_another_tenant_is_served_as_if_nobody_had_been_there(servers: Servers) -> None:
    """It computes as many tokens in as many steps, whether or not another one sent the prompt."""
    found = []
    for sender in ("c", "a"):
        old = servers.new()
        old.run(PROMPT if sender == "a" else prompt_ids(41, seed=9), tenant="a")
        settled(old)
        new = servers.new()
        answer = new.run(PROMPT, tenant="b", store_cache=False)
        stats = new.engine.stats()
        found.append((answer.cached_tokens, stats.computed_tokens_total, stats.steps_total))
    assert found[0] == found[1]
    assert found[0][0] == 0
    assert servers.new().run(PROMPT, tenant="a").cached_tokens == 40


def test_salts_are_apart(servers: Servers) -> None:
    """With another salt, or with none, nothing is found."""
    servers.new().run(PROMPT, salt="x")
    settled(servers.benches[-1])
    new = servers.new()
    assert new.run(PROMPT, salt="y").cached_tokens == 0
    assert new.run(PROMPT).cached_tokens == 0
    assert new.run(PROMPT, salt="x").cached_tokens == 40


def test_a_published_prompt_is_read_from_the_tier_for_all(servers: Servers) -> None:
    """After a restart its reading computes nothing but the rest; tenants go on behind it."""
    old = servers.new()
    old.publish("p", PROMPT[:22])
    for tenant in ("a", "b"):
        old.run(PROMPT, tenant=tenant, salt="s" if tenant == "b" else None)
    settled(old)
    new = servers.new()
    new.publish("p", PROMPT[:22])
    assert new.engine.stats().computed_tokens_total == 2
    for tenant in ("a", "b"):
        salt = "s" if tenant == "b" else None
        again = new.run(PROMPT, tenant=tenant, salt=salt)
        assert again.cached_tokens == 40
        assert oracle(new.reference, PROMPT, 8).is_same(again.token_ids)
    assert new.run(PROMPT, tenant="b").cached_tokens == 22


def test_what_hangs_from_a_retired_prompt_goes_with_it(servers: Servers) -> None:
    """A version that is retired is gone for good, with what tenants computed behind it."""
    old = servers.new()
    old.publish("p", PROMPT[:20])
    old.run(PROMPT, tenant="a")
    settled(old)
    old.engine.control.retire("p")
    settled(old)
    assert not servers.tier.records


def wrong_order(records: list[BlockRecord]) -> list[BlockRecord]:
    return records[::-1]


def too_few(records: list[BlockRecord]) -> list[BlockRecord]:
    return records[:3]


def anothers(records: list[BlockRecord]) -> list[BlockRecord]:
    return [replace(r, namespace=replace_tenant(r)) for r in records]


def cut_short(records: list[BlockRecord]) -> list[BlockRecord]:
    return [replace(r, parts=tuple(part and part[:-1] for part in r.parts)) for r in records]


def replace_tenant(record: BlockRecord) -> Any:
    namespace = record.namespace
    return type(namespace)(namespace.model, namespace.adapter, bytes(16), namespace.salt)


@pytest.mark.parametrize(
    ("spoil", "cached"),
    [(wrong_order, 0), (too_few, 12), (anothers, 0), (cut_short, 0), (lambda records: [], 0)],
)
def test_what_was_not_asked_for_is_not_used(
    servers: Servers, spoil: Callable[[list[BlockRecord]], list[BlockRecord]], cached: int
) -> None:
    """Records of another order, owner or length end what is loaded; the rest is computed."""
    old = servers.new()
    first = old.run(PROMPT)
    settled(old)
    servers.tier.spoil = spoil
    again = servers.new().run(PROMPT)
    assert again.cached_tokens == cached
    assert again.token_ids == first.token_ids


def test_a_tier_that_fails_is_left_out_with_one_warning(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests go on, nothing waits for it, and there is one line in the log."""
    bench = servers.new()
    servers.tier.is_broken = True
    answers = [bench.run(prompt_ids(41, seed=seed), 4) for seed in range(5)]
    bench.engine._tiers.flush(0.2)
    assert all(answer.finished for answer in answers)
    assert sum("left out" in record.message for record in caplog.records) == 1
    stats = bench.engine.stats().tiers["disk"]
    assert stats.is_out
    assert stats.failures == 1
    assert stats.dropped_bytes > 0


def test_a_tier_that_hangs_holds_nobody_up(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request waits for its reading for a bounded time, and is computed then."""
    monkeypatch.setattr("prefixcache.engine.tiers.ahead.LONGEST_WAIT_SECONDS", 0.3)
    old = servers.new()
    first = old.run(PROMPT)
    settled(old)
    new = servers.new()
    servers.tier.gate.clear()
    again = new.run(PROMPT)
    assert (again.cached_tokens, again.token_ids) == (0, first.token_ids)
    assert new.engine._tiers.ahead.late_reads == 1


def test_a_full_queue_drops_what_comes(servers: Servers) -> None:
    """Nobody waits for a tier that is slow to write; what was dropped is kept the next time."""
    bench = servers.new(max_step_tokens=8)
    bench.engine._tiers.lanes[0]._queue_bytes = 1
    servers.tier.gate.clear()
    bench.run(PROMPT)
    assert bench.engine.stats().tiers["disk"].dropped_bytes > 0
    servers.tier.gate.set()
    settled(bench)
    n_kept = len(servers.tier.records)
    for _ in range(9):
        bench.run(PROMPT, 1)
        settled(bench)
    assert len(servers.tier.records) > n_kept


def test_who_stores_nothing_has_nothing_kept(servers: Servers) -> None:
    """Not even what it has found on the device, and the tier lacks; another request has that."""
    bench = servers.new(max_step_tokens=8)
    bench.engine._tiers.lanes[0]._queue_bytes = 1
    servers.tier.gate.clear()
    bench.run(PROMPT)
    servers.tier.gate.set()
    settled(bench)
    n_kept = len(servers.tier.records)
    assert bench.run(PROMPT, 1, store_cache=False).cached_tokens == 40
    settled(bench)
    assert len(servers.tier.records) == n_kept
    bench.run(PROMPT, 1)
    settled(bench)
    assert len(servers.tier.records) > n_kept


def test_those_who_begin_alike_share_one_reading(servers: Servers) -> None:
    """After a restart a shared prefix is read once, however many come with it at once."""
    old = servers.new()
    old.run(PROMPT)
    settled(old)
    new = servers.new()
    servers.tier.reads.clear()
    for number in range(4):
        new.submit(f"r{number}", [*PROMPT[:40], number, number], 3)
    new.drain()
    assert servers.tier.reads == [10]
    assert [answer.cached_tokens for answer in new.answers.values()] == [40] * 4


def test_who_shares_a_reading_takes_of_it_what_is_its_own(servers: Servers) -> None:
    """Two that begin alike and then part are both answered as alone."""
    old = servers.new()
    old.run(PROMPT)
    settled(old)
    new = servers.new()
    prompts = {"long": PROMPT, "parts": [*PROMPT[:22], *prompt_ids(20, seed=5)]}
    for name, prompt in prompts.items():
        new.submit(name, prompt)
    new.drain()
    assert new.answers["long"].cached_tokens == 40
    assert new.answers["parts"].cached_tokens in (20, 22)  # with part of a block, or without
    for name, prompt in prompts.items():
        assert oracle(new.reference, prompt, 8).is_same(new.answers[name].token_ids)


def test_a_request_that_is_cancelled_while_it_is_read_for_leaves_nothing(servers: Servers) -> None:
    """Its reading is dropped, and the engine has nothing left to do."""
    servers.new().run(PROMPT)
    settled(servers.benches[-1])
    new = servers.new()
    servers.tier.gate.clear()
    new.submit("gone", PROMPT)
    new.step()
    new.engine.cancel("gone")  # type: ignore[arg-type]
    new.drain()
    assert not new.engine._tiers.ahead._by_key
    servers.tier.gate.set()
    assert new.run(PROMPT).cached_tokens == 40


def test_no_thread_is_left_behind(servers: Servers) -> None:
    """Closing the engine ends the tier's thread, and closes the tier."""
    bench = servers.new()
    bench.run(PROMPT)
    bench.engine.close()
    assert servers.tier.is_closed
    assert not any(lane._thread.is_alive() for lane in bench.engine._tiers.lanes)
    assert servers.tier.records


@pytest.mark.parametrize("seed", range(5))
def test_no_order_of_events_brings_back_what_was_not_there(seed: int) -> None:
    """Storms on a small pool with host memory and a lasting tier change no answer."""
    tier = MemoryTier(knows=seed % 2 == 0)
    for part in range(2):  # the second one finds what the first one has left
        storm = Storm(
            700 + 10 * seed,
            prefix_cache=True,
            host_memory_bytes=40_000,
            tier_loading="always",
            n_tokens=100,
            lasting={"disk": tier},
        )
        storm.run(25)
        storm.check_end()
        storm.engine.close()
        if part and storm.bench.config.block_size_tokens < 8:
            assert storm.engine.stats().tiers["disk"].hit_tokens > 0
