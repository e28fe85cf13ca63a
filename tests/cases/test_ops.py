"""Field cases as scripts, and the runner that plays them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cases import run_ops
from tests.cases.run_ops import ScriptError, ScriptRunner, main, namespace_of

Op = Mapping[str, Any]

P = [7, 7, 3, 9, 4, 1, 8, 2]  # two blocks of four


def run(name: str, tokens: list[int], out: list[int] | None = None, **more: Any) -> Op:
    return {"op": "run", "id": name, "tokens": tokens, "out": out or [90], **more}


def hold(name: str, tokens: list[int], **more: Any) -> Op:
    return {"op": "hold", "id": name, "tokens": tokens, **more}


def finish(name: str, out: list[int] | None = None, **more: Any) -> Op:
    return {"op": "finish", "id": name, "out": out or [90], **more}


def abort(name: str, **more: Any) -> Op:
    return {"op": "abort", "id": name, **more}


def evict(blocks: int) -> Op:
    return {"op": "evict", "blocks": blocks}


def cached(name: str, low: int, high: int | None = None) -> Op:
    return {"op": "expect", "id": name, "cached_tokens": [low, low if high is None else high]}


def matched(tokens: list[int], low: int, high: int | None = None, **more: Any) -> Op:
    high = low if high is None else high
    return {"op": "expect_match", "tokens": tokens, "cached_tokens": [low, high], **more}


def pool(**counts: int) -> Op:
    return {"op": "expect_pool", **counts}


def play(*ops: Op, block_size: int = 4, pool_blocks: int = 8) -> list[str]:
    script = {
        "format": "cache-ops/1",
        "block_size": block_size,
        "pool_blocks": pool_blocks,
        "ops": list(ops),
    }
    return ScriptRunner(json.loads(json.dumps(script))).differences()


def test_c01_a_prompt_that_is_all_cached_leaves_a_token_to_compute() -> None:
    """The second of two equal prompts of whole blocks is admitted."""
    assert not play(run("a", P), run("b", P), cached("a", 0), cached("b", 4, 7))


@pytest.mark.parametrize(("first", "second", "hit"), [(8, 9, 8), (7, 8, 4), (9, 9, 8)])
def test_c03_an_exact_edge_does_not_lose_the_hit(first: int, second: int, hit: int) -> None:
    """Producers of exactly, just under and just over whole blocks can be hit."""
    prompt = [*P, 5]
    assert not play(run("a", prompt[:first]), run("b", prompt[:second]), cached("b", hit))


def test_c05_a_waiting_request_is_matched_anew_when_it_is_admitted() -> None:
    """What was evicted while it waited does not count as cached."""
    assert not play(
        run("p", P),
        hold("x", [*range(20, 36)]),
        {"op": "queue", "id": "q", "tokens": [*P, 1, 1]},
        evict(2),
        abort("x"),
        hold("q", [*P, 1, 1]),
        cached("q", 0),
        pool(free=3, held=3),
        pool_blocks=6,
    )


def test_c19_the_last_sampled_token_has_no_kv() -> None:
    """Twelve tokens of which eleven were fed are two whole blocks."""
    assert not play(
        run("a", P, [60, 61, 62, 63]),
        matched([*P, 60, 61, 62, 63, 1, 1], 8),
        run("b", P, [60, 61, 62, 63, 64]),
        matched([*P, 60, 61, 62, 63, 1, 1], 12),
    )


def test_c22_less_than_a_block_makes_no_node() -> None:
    """Empty and short prompts match nothing, store nothing and break nothing."""
    assert not play(
        matched([], 0),
        matched([4, 4, 4], 0),
        run("s", [4, 4], [4]),
        matched([4, 4, 4], 0),
        hold("e", [], expect="reject"),
        pool(free=8, cached=0, held=0),
        evict(5),
        pool(free=8, cached=0, held=0),
    )


def test_r01_what_a_request_holds_is_not_evicted() -> None:
    """The matched node itself is safe, not only what is above it."""
    assert not play(
        run("a", P[:5]),
        run("b", [*P, 5]),
        hold("h", [*P, 5]),
        evict(8),
        matched([*P, 5], 8),
        pool(free=5, cached=0, held=3),
    )


def test_r02_released_blocks_can_be_evicted_at_once() -> None:
    """A count that falls to zero is the normal end of a request."""
    assert not play(
        hold("h", [*P, 5]),
        finish("h"),
        pool(free=6, cached=2, held=0),
        evict(2),
        pool(free=8, cached=0, held=0),
    )


def test_r06_only_the_matched_part_of_an_edge_is_held() -> None:
    """A long edge is split where a request leaves it, and nothing stays locked."""
    assert not play(
        run("a", [*P, 1, 1, 1, 1, 1]),
        hold("h", [*P, 2]),
        pool(free=4, cached=1, held=3),
        run("b", [*P, 3, 3, 3, 3, 3]),
        finish("h"),
        evict(8),
        pool(free=8, cached=0, held=0),
    )


def test_r07_a_failed_admission_holds_nothing() -> None:
    """However often it is tried and aborted."""
    tries = [
        op
        for n in range(100)
        for op in (
            hold(f"w{n}", [*P, *range(12)], expect="wait_or_reject"),
            abort(f"w{n}"),
            pool(free=3, cached=1, held=0),
        )
    ]
    assert not play(run("a", P[:5]), *tries, pool_blocks=4)


def test_r10_ending_what_has_ended_does_nothing() -> None:
    """Unknown and finished ids are no work and no error, where the script says so."""
    assert not play(
        run("a", P),
        abort("a", expect="noop"),
        finish("a", expect="noop"),
        abort("never", expect="noop"),
        finish("never", expect="noop"),
        hold("b", P),
        abort("b"),
        abort("b"),
        pool(free=6, cached=2, held=0),
    )


def test_r14_a_deep_chain_is_walked_without_recursion() -> None:
    """Each request extends the last by one block; half of it evicted is its second half."""
    depth = 400
    tokens = list(range(depth))
    assert not play(
        *(run(f"r{n}", tokens[:n]) for n in range(1, depth + 1)),
        matched(tokens, depth - 1),
        pool(free=0, cached=depth),
        evict(depth // 2),
        matched(tokens, depth // 2),
        block_size=1,
        pool_blocks=depth,
    )


def test_r18_a_request_that_ends_inside_a_block_frees_it_once() -> None:
    """What is kept and what is freed meet inside a block."""
    assert not play(
        run("a", [*P[:6]]),
        hold("h", [*P, 5, 5]),
        finish("h", [6, 6]),
        pool(free=6, cached=2, held=0),
        hold("i", [*P, 5, 5]),
        abort("i"),
        pool(free=6, cached=2, held=0),
    )


def test_s03_a_request_of_the_old_epoch_stores_nothing_in_the_new() -> None:
    """Neither what it computes later nor what it had matched."""
    assert not play(
        run("a", P),
        hold("r", [*P, 5]),
        {"op": "bump"},
        pool(free=5, cached=0, held=3),
        finish("r", [1, 2, 3, 4, 5]),
        matched([*P, 5], 0),
        pool(free=8, cached=0, held=0),
    )


@pytest.mark.parametrize("other", ["adapter:load-2", {"adapter": "load-2"}, {"salt": "s"}])
def test_s06_s07_equal_tokens_of_other_weights_share_nothing(other: object) -> None:
    """Nor does the other's run harm what is stored."""
    assert not play(
        run("a", [*P, 5], ns="adapter:load-1"),
        run("b", [*P, 5], ns=other),
        run("c", [*P, 5]),
        run("d", [*P, 5], ns="adapter:load-1"),
        *(cached(name, 0) for name in "abc"),
        cached("d", 8),
    )


def test_k06_the_parts_of_a_namespace_are_typed() -> None:
    """A salt spelled like an adapter is not that adapter, nor is text or a field of ours."""
    names = [
        {field: "blue"} for field in ("adapter", "salt", "model", "tenant", "kv_format", "colour")
    ]
    for stored in [*names, "blue", '{"colour": "blue"}', {"colour": 5}, {"colour": "5"}]:
        others = [ns for ns in [*names, "blue", None] if ns != stored]
        assert not play(run("a", P, ns=stored), *(matched(P, 0, ns=ns) for ns in others))


def test_namespaces_that_are_spelled_alike_are_one() -> None:
    """Field order, nulls and the default's spellings make no difference."""
    assert namespace_of(None) == namespace_of("default") == namespace_of({"salt": None})
    assert namespace_of({"a": 1, "b": 2}) == namespace_of({"b": 2, "a": 1})


def test_p01_what_can_never_fit_is_refused_and_blocks_nobody() -> None:
    """The next request is admitted."""
    assert not play(
        hold("big", list(range(40)), expect="reject"),
        run("small", P),
        cached("small", 0),
        pool_blocks=4,
    )


def test_t06_tokens_that_spell_the_same_text_are_not_the_same() -> None:
    """The match runs up to the first different id."""
    assert not play(
        run("a", [1, 2, 3], [40, 98, 98, 41]),
        matched([1, 2, 3, 40, 97, 41, 42], 4),
        matched([1, 2, 3, 40, 98, 98, 42], 6),
        block_size=1,
        pool_blocks=16,
    )


def test_a_request_waits_while_others_hold_the_pool() -> None:
    """It is admitted when they end; cached blocks are in nobody's way."""
    assert not play(
        run("a", P),
        hold("x", [*range(20, 30)]),
        hold("y", [*range(40, 50)], expect="wait"),
        finish("x", expect="ok"),
        hold("y", [*range(40, 50)]),
        pool(held=3),
        pool_blocks=5,
    )


def test_output_beyond_the_pool_keeps_what_fits() -> None:
    """A request that grows to the end of the pool still stores what was written."""
    assert not play(
        hold("other", [1, 1]),
        run("a", P, list(range(50, 70))),
        matched([*P, *range(50, 70)], 8),
        pool(held=1),
        pool_blocks=4,
    )
    missing: Op = {"op": "finish", "id": "h"}
    assert not play(hold("h", P), missing, matched([*P, 5], 8))


@pytest.mark.parametrize(
    "wrong",
    [
        cached("a", 1, 9),
        cached("nobody", 0, 9),
        matched(P, 0, 3),
        matched(P, 5, 9),
        matched(P, 4, ns="other"),
        pool(free=6),
        pool(free=5, cached=1),
        pool(held=2),
        hold("h", P, expect="wait"),
        hold("h", P, expect="reject"),
        hold("h", list(range(99))),
        hold("h", list(range(99)), expect="wait"),
        hold("live", P),
        run("live", P),
        {"op": "queue", "id": "live", "tokens": P},
        finish("nobody"),
        abort("nobody"),
        abort("live", expect="noop"),
    ],
    ids=json.dumps,
)
def test_the_runner_tells_a_difference(wrong: Op) -> None:
    """Each kind of expectation can fail, and the line names the step."""
    told = play(run("a", P), hold("live", [5]), wrong)
    assert len(told) == 1
    assert told[0].startswith("step 3 ")


@pytest.mark.parametrize(
    "malformed",
    [
        {"op": "dance"},
        {"tokens": P},
        {"op": "run", "tokens": P},
        {"op": "run", "id": "a"},
        {"op": "run", "id": "a", "tokens": [-1]},
        {"op": "run", "id": "a", "tokens": P, "out": 5},
        {"op": "hold", "id": "a", "tokens": P, "expect": "luck"},
        {"op": "hold", "id": "a", "tokens": P, "ns": 5},
        {"op": "evict"},
        {"op": "evict", "blocks": True},
        {"op": "expect", "id": "a"},
        {"op": "expect_match", "tokens": P, "cached_tokens": [1]},
        {"op": "expect_pool", "free": "many"},
    ],
    ids=json.dumps,
)
def test_a_malformed_step_is_not_taken_for_a_difference(malformed: Op) -> None:
    """The runner refuses what it does not understand."""
    with pytest.raises(ScriptError):
        play(malformed)


def write(folder: Path, name: str, script: object) -> str:
    file = folder / name
    file.write_text(json.dumps(script), "utf-8")
    return str(file)


def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """0 as expected, 1 with the steps that differ, 2 for what cannot be played."""
    base = {"format": "cache-ops/1", "block_size": 4, "pool_blocks": 8}
    good = write(tmp_path, "good.ops.json", {**base, "ops": [pool(free=8)]})
    bad = write(tmp_path, "bad.ops.json", {**base, "ops": [pool(free=7), pool(free=8)]})
    assert main([good]) == 0
    assert main([good, bad]) == 1
    assert capsys.readouterr().out == f"{bad}: step 1 expect_pool: expected 7 free, found 8\n"
    other = {**base, "format": "cache-ops/2", "ops": []}
    for broken in (other, {**base, "block_size": 0, "ops": []}, base, [other]):
        assert main([write(tmp_path, "broken.ops.json", broken), good]) == 2
    (tmp_path / "text.ops.json").write_text("{", "utf-8")
    assert main([str(tmp_path / "text.ops.json")]) == 2
    assert main([str(tmp_path / "missing.ops.json")]) == 2
    assert main([]) == 2


def test_the_runner_is_a_command_of_its_own(tmp_path: Path) -> None:
    """It runs from any folder, installed or not."""
    script = {"block_size": 4, "pool_blocks": 8, "ops": [pool(free=7)]}
    command = [sys.executable, run_ops.__file__, write(tmp_path, "a.ops.json", script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert "expected 7 free, found 8" in done.stdout


CASES = os.environ.get("PREFIXCACHE_CASES", "")
HANDED = sorted(Path(CASES).rglob("*.ops.json")) if CASES else []


@pytest.mark.skipif(not CASES, reason="PREFIXCACHE_CASES names no folder of scripts")
def test_handed_scripts_are_found() -> None:
    """A folder that is named has scripts in it."""
    assert HANDED


@pytest.mark.parametrize("file", HANDED, ids=lambda file: file.name)
def test_handed_script(file: Path) -> None:
    """Every step of a script from outside is as it expects."""
    assert ScriptRunner(json.loads(file.read_text("utf-8"))).differences() == []
