"""What fits, what sharing spares, and the command."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from msgspec import structs, to_builtins

from gateway.cli import main
from gateway.plan_text import amount
from prefixcache.errors import ConfigError, TraceError
from prefixcache.kv import LayerGroup
from prefixcache.plan import (
    Device,
    Load,
    ReplayRow,
    Room,
    fit,
    known_devices,
    kv_format,
    load_bytes,
    mean_reading,
    read_devices,
    read_replay,
    read_shape,
    reading,
)

LLAMA = read_shape("Llama-3.1-8B")
KEPT = kv_format("bfloat16")
TOKEN_BYTES = 2**17  # of Llama 3.1 8B in 16 bits
WEIGHTS = 16 * 10**9


def test_a_shared_prefix_is_paid_once() -> None:
    """Ten requests with 1,024 tokens in common keep these once and the rest ten times."""
    load = Load(context_tokens=1536, requests=10, shared_tokens=1024)
    assert load_bytes(LLAMA, KEPT, load) == (1024 + 10 * 512) * TOKEN_BYTES


def test_only_whole_blocks_are_shared() -> None:
    """The tokens of a block that requests leave midway are kept by each."""
    load = Load(context_tokens=64, requests=2, shared_tokens=47)
    assert load_bytes(LLAMA, KEPT, load) == (32 + 2 * 32) * TOKEN_BYTES


def test_what_a_window_has_left_behind_is_shared_by_nobody() -> None:
    """Of a prefix that lies outside the window nothing is kept there, shared or not."""
    shape = read_shape("gpt-oss-20b")
    apart = load_bytes(shape, KEPT, Load(context_tokens=4096, requests=2))
    shared = load_bytes(shape, KEPT, Load(context_tokens=4096, requests=2, shared_tokens=1024))
    assert apart - shared == 12 * 1024 * 2 * 8 * 64 * 2  # of the full layers alone


@pytest.mark.parametrize("shared", [-1, 101])
def test_more_than_all_cannot_be_shared(shared: int) -> None:
    """A shared prefix lies within the context."""
    with pytest.raises(ConfigError, match="shared_tokens"):
        Load(context_tokens=100, shared_tokens=shared)


def test_as_many_requests_fit_as_the_room_holds() -> None:
    """The room is filled to the last request and not beyond it."""
    load = Load(context_tokens=8192, shared_tokens=4096)
    found = fit("h100", known_devices()["h100"], LLAMA, WEIGHTS, KEPT, load, Room())
    assert found is not None
    assert found.n_devices == 1
    need = [
        load_bytes(
            LLAMA,
            KEPT,
            Load(context_tokens=8192, requests=found.requests + more, shared_tokens=4096),
        )
        for more in (0, 1)
    ]
    assert need[0] <= found.kv_bytes < need[1]


def test_a_model_that_is_too_large_for_one_goes_on_several() -> None:
    """The fewest devices are taken that hold the weights and a request; too few hold none."""
    device = Device(label="small", memory_bytes=12e9, bytes_per_second=1e12, flops=1e14)
    found = fit("small", device, LLAMA, WEIGHTS, KEPT, Load(context_tokens=8192), Room())
    assert found is not None
    assert found.n_devices == 2
    assert found.weight_bytes == WEIGHTS // 2
    tiny = Device(label="tiny", memory_bytes=1e9, bytes_per_second=1e12, flops=1e14)
    assert fit("tiny", tiny, LLAMA, WEIGHTS, KEPT, Load(context_tokens=8192), Room()) is None


def test_heads_do_not_split_further_than_there_are() -> None:
    """A latent is kept whole on each device, so more devices give no request more room for it."""
    shape = read_shape("DeepSeek-V3")
    device = Device(label="d", memory_bytes=200e9, bytes_per_second=1e12, flops=1e14)
    found = fit("d", device, shape, 10**12, KEPT, Load(context_tokens=8192), Room())
    assert found is not None
    assert found.n_devices == 8
    alone = load_bytes(shape, KEPT, Load(context_tokens=8192))
    assert found.requests == found.kv_bytes // alone


def test_reading_counts_weights_and_pairs() -> None:
    """Work is 2 a weight and token and 4 a head's number and pair, less what is cached."""
    whole = reading(LLAMA, 10, 3, 2)
    pair = 4 * 32 * 128 * 32
    assert whole.flops == 2 * 10 * 3 + pair * 6
    assert whole.flops_with_cache == 2 * 10 + pair * 3


@pytest.mark.parametrize(("lead", "window"), [(4, 1024), (40, 16), (16, 48)])
def test_a_pruned_request_keeps_what_the_store_does(lead: int, window: int) -> None:
    """However long it is, as many blocks as the store counts for one token, and never more."""
    shape = LLAMA.pruned(f"{lead}+{window}")
    seen = LayerGroup((0,), 8, 128, 128, window, lead).blocks_seen(16)
    assert seen is not None
    for n_tokens in (1, lead, lead + window, lead + window + 1, 8192, 131_072):
        n_blocks = min(seen, -(-n_tokens // 16))
        assert load_bytes(shape, KEPT, Load(context_tokens=n_tokens)) == n_blocks * 16 * TOKEN_BYTES


def test_pruned_requests_share_what_they_still_see() -> None:
    """First tokens always, and later ones as long as they lie in the window."""
    shape = LLAMA.pruned("32+64")
    for n_shared, n_common in ((16, 16), (1024, 32), (4096 - 48, 32 + 16)):
        load = Load(context_tokens=4096, requests=2, shared_tokens=n_shared)
        one = load_bytes(shape, KEPT, Load(context_tokens=4096))
        assert load_bytes(shape, KEPT, load) == 2 * one - n_common * TOKEN_BYTES


def test_reading_pruned_counts_the_pairs_that_are_seen() -> None:
    """Each token's first and recent ones, itself among them, once."""
    found = reading(LLAMA.pruned("2+3"), 0, 20, 7)
    seen = [len({*range(2), *range(at - 2, at + 1)} & set(range(at + 1))) for at in range(20)]
    pair = 4 * 32 * 128 * 32
    assert (found.flops, found.flops_with_cache) == (pair * sum(seen), pair * sum(seen[7:]))


def test_windows_of_a_models_own_are_not_pruned() -> None:
    """Only layers that keep every token change, and a model without one is refused."""
    whole = read_shape("gpt-oss-20b")
    pruned = whole.pruned("4+64")
    changed = [a.window_tokens for a, b in zip(whole.layers, pruned.layers, strict=True) if a != b]
    assert changed == [None] * 12
    with pytest.raises(ConfigError, match="keeps every token"):
        pruned.pruned("4+64")
    with pytest.raises(ConfigError, match="two numbers"):
        whole.pruned("4")


def replayed(**changed: int) -> ReplayRow:
    """Return a replay of two prompts of 500 tokens each, of which one has 250 cached."""
    row = ReplayRow(
        trace="t",
        policy="lru",
        capacity_blocks=100,
        block_tokens=512,
        requests=2,
        tokens=1000,
        hit_tokens=250,
        attention_pairs=2 * 500 * 501 // 2,
        hit_attention_pairs=250 * 251 // 2,
    )
    return structs.replace(row, **changed)


def test_the_work_of_a_replay_is_that_of_its_prompts() -> None:
    """The mean of what two prompts take is what `reading` has for each."""
    found = mean_reading(LLAMA, 10, replayed())
    one, other = reading(LLAMA, 10, 500, 250), reading(LLAMA, 10, 500, 0)
    assert found is not None
    assert found.flops == (one.flops + other.flops) / 2
    assert found.flops_with_cache == (one.flops_with_cache + other.flops_with_cache) / 2
    assert mean_reading(LLAMA, 10, replayed(requests=0, tokens=0)) is None


def test_in_a_window_no_token_sees_more_than_that() -> None:
    """A layer's pairs are then at most the window for each token."""
    layers = tuple(dataclasses.replace(layer, window_tokens=100) for layer in LLAMA.layers)
    found = mean_reading(dataclasses.replace(LLAMA, layers=layers), 0, replayed())
    assert found is not None
    pair = 4 * 32 * 128 * 32
    assert (found.flops, found.flops_with_cache) == (pair * 100 * 500, pair * 100 * 375)


def test_devices_of_ones_own_are_read_and_checked(tmp_path: Path) -> None:
    """A file of devices has the form of ours; what is wrong in it is named."""
    file = tmp_path / "devices.toml"
    figures = "memory_bytes = 1e9\nbytes_per_second = 1e9\nflops = 1e12\n"
    file.write_text(f'[mine]\nlabel = "Mine"\n{figures}')
    assert read_devices(file)["mine"].label == "Mine"
    for broken in ("[mine", '[mine]\nlabel = "x"\n', f'[m]\nlabel = "x"\ncores = 3\n{figures}'):
        file.write_text(broken)
        with pytest.raises(ConfigError, match="devices"):
            read_devices(file)
    with pytest.raises(ConfigError, match="No such file"):
        read_devices(tmp_path / "none.toml")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["plan", *arguments])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_the_command_shows_the_common_mistake(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The plan of Llama 3.1 8B names both sizes, in its text and, in bytes, in its JSON."""
    file = tmp_path / "plan.json"
    code, out, _ = run(
        capsys, "Llama-3.1-8B", "--context", "8192,131072", "--device", "h100", "--json", str(file)
    )
    assert code == 0
    for text in ("4.29 GB", "1.07 GB", "17.18 GB", "NVIDIA H100"):
        assert text in out
    rows = json.loads(file.read_text())["kv"]
    assert [(row["request"], row["mistaken"]) for row in rows] == [
        (2**30, 2**32),
        (2**34, 2**36),
    ]


def test_the_command_plans_for_a_pruned_server(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A request is as large at any length, more of them fit, and the JSON tells the setting."""
    file, found = tmp_path / "plan.json", []
    for options in ((), ("--kv-prune", "4+1024")):
        context = ("--context", "8192,131072", "--device", "h100", "--json", str(file))
        code, out, _ = run(capsys, "Llama-3.1-8B", *context, *options)
        assert code == 0
        found.append(json.loads(file.read_text()))
    assert "Pruned to 4+1024" in out
    assert [each["kv_prune"] for each in found] == [None, "4+1024"]
    assert [row["request"] for row in found[1]["kv"]] == [66 * 16 * TOKEN_BYTES] * 2
    n_whole, n_pruned = (each["devices"][0]["fit"]["requests"] for each in found)
    assert n_pruned > 7 * n_whole
    assert run(capsys, "Llama-3.1-8B", "--kv-prune", "4")[0] == 2


def test_the_command_prices_the_capacities_of_a_replay(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Each row of a replay has the bytes of its blocks, what is cached and what that spares."""
    row = to_builtins(replayed())
    file, plan = tmp_path / "replay.json", tmp_path / "plan.json"
    file.write_text(
        json.dumps({"results": [{**row, "capacity_blocks": n_blocks} for n_blocks in (100, None)]})
    )
    asked = ("--device", "h100", "--replay", str(file), "--json", str(plan))
    code, out, _ = run(capsys, "Llama-3.1-8B", *asked)
    assert code == 0
    assert amount(100 * 512 * TOKEN_BYTES) in out
    first, _ = json.loads(plan.read_text())["replays"]
    work = first["mean_reading"]
    assert 0.12 < work["saved_share"] < 0.25  # of the arithmetic: attention spares but 12.5%
    assert out.count(f"25.0%        {work['saved_share']:.1%}") == 2
    cold, cached = (work[name] / (989e12 * 0.5) for name in ("flops", "flops_with_cache"))
    found = f"1 x NVIDIA H100 SXM  {cold:.3g}    {cached:.3g}"
    assert [" ".join(line.split()) for line in out.splitlines()].count(
        f"t lru unlimited {' '.join(found.split())} {cold - cached:.3g}"
    ) == 1
    file.write_text("{}")
    with pytest.raises(TraceError, match="no result of a replay"):
        read_replay(file)


@pytest.mark.parametrize(
    "arguments",
    [
        ("no-such-model",),
        ("Llama-3.1-8B", "--device", "abacus"),
        ("Llama-3.1-8B", "--context", "0"),
        ("Llama-3.1-8B", "--kv-format", "int3"),
        ("Llama-3.1-8B", "--shared", "9000"),
        ("Llama-3.1-8B", "--replay", "no-such-file.json"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    """A planner is told what is wrong, in a line, and nothing is planned."""
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
