"""The commands for folders of cached blocks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli import commands, main
from prefixcache.tiers import StoredScope
from prefixcache.tiers.disk import DiskTier
from tests.tiers.made import owner, prompt, records, same, wanted

MAX_BYTES = 1 << 20
SMALL = owner()
LARGE = owner(model="large", adapter="formal")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Blocks of two models, and one tenant's that were invalidated."""
    tier = DiskTier(tmp_path / "kv", max_bytes=MAX_BYTES)
    tier.write(records(prompt(1, 10), SMALL))
    tier.write(records(prompt(1, 5), LARGE))
    tier.write(records(prompt(1, 20), owner("gone")))
    tier.invalidate(StoredScope(tenant=owner("gone").tenant))
    tier.close()
    return tmp_path / "kv"


@pytest.fixture
def run() -> Callable[..., Result]:
    return lambda *arguments: CliRunner().invoke(
        commands, ["cache", *map(str, arguments)], catch_exceptions=False
    )


def harm(folder: Path) -> None:
    """Flip a byte of the last record's payload, and one of the first's head."""
    (segment,) = folder.glob("*.segment")
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    data[100] ^= 1
    segment.write_bytes(data)


def shown(run: Callable[..., Result], folder: Path) -> dict[str, object]:
    found = json.loads(run("ls", folder, "--json").output)
    assert isinstance(found, dict)
    return found


def test_ls_tells_whose_blocks_there_are(run: Callable[..., Result], folder: Path) -> None:
    """A line for each model, and what is dead."""
    text = run("ls", folder).output
    rows = {line.split()[0]: line.split()[1:5] for line in text.splitlines()[1:3]}
    assert rows[SMALL.model.hex()[:12]] == ["0", "1", "10", "40"]
    assert rows[LARGE.model.hex()[:12]] == ["1", "1", "5", "20"]
    found = shown(run, folder)
    assert found["bytes"] == sum(path.stat().st_size for path in folder.iterdir())
    assert found["wasted_bytes"] != 0
    assert found["in_use"] is False


def test_ls_changes_nothing_and_needs_no_claim(run: Callable[..., Result], folder: Path) -> None:
    """A server may go on meanwhile, and it is said that one does."""
    tier = DiskTier(folder, max_bytes=MAX_BYTES)
    tier.write(records(prompt(2, 3)))
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert "a server uses it now" in run("ls", folder).output
    assert "18 blocks are whole; a server uses it now" in run("verify", folder).output
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    tier.close()


def test_verify_finds_what_is_damaged(run: Callable[..., Result], folder: Path) -> None:
    """Each place has a line, and the exit code says so."""
    sound = run("verify", folder)
    assert (sound.exit_code, sound.output) == (0, "15 blocks are whole\n")
    harm(folder)
    harmed = run("verify", folder)
    assert harmed.exit_code == 1
    assert harmed.output.count(": damaged\n") == 2
    assert "14 blocks are whole" in harmed.output


def test_prune_gives_room_back(run: Callable[..., Result], folder: Path) -> None:
    """What is dead or damaged goes, and all that lives stays."""
    harm(folder)
    before = shown(run, folder)["bytes"]
    assert isinstance(before, int)
    said = run("prune", folder).output
    after = shown(run, folder)
    assert said == f"{before:,} bytes before, {after['bytes']:,} now\n"
    assert after["wasted_bytes"] == 0
    assert after["damage"] == []
    tier = DiskTier(folder, max_bytes=MAX_BYTES)
    large = records(prompt(1, 5), LARGE)
    assert same(tier.read(wanted(large)), large)
    assert tier.n_records == 14
    tier.close()


def test_prune_drops_a_model(run: Callable[..., Result], folder: Path) -> None:
    """By the beginning of its digest, which must be one model's."""
    run("prune", folder, "--model", LARGE.model.hex()[:12])
    (left,) = json.loads(run("ls", folder, "--json").output)["models"]
    assert left["model"] == SMALL.model.hex()


def test_prune_makes_it_as_small_as_said(run: Callable[..., Result], tmp_path: Path) -> None:
    """The oldest go, the youngest stay."""
    tier = DiskTier(tmp_path, max_bytes=MAX_BYTES)
    for number in range(500):
        tier.write(records(prompt(number)))
    tier.close()
    run("prune", tmp_path, "--max-size", "64KiB")
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 1 << 16
    tier = DiskTier(tmp_path, max_bytes=MAX_BYTES)
    assert tier.read(wanted(records(prompt(499))))
    assert not tier.read(wanted(records(prompt(0))))
    tier.close()


def test_other_versions_files_are_told_and_go_if_asked(
    run: Callable[..., Result], folder: Path
) -> None:
    """They are left alone but for --others."""
    (folder / "0000000009.segment").write_bytes(b"of a later version")
    line = "0000000009.segment: of another version, or not ours\n"
    assert line in run("ls", folder).output
    run("prune", folder)
    assert line in run("ls", folder).output
    run("prune", folder, "--others")
    assert line not in run("ls", folder).output


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("ls", "nowhere"), 2, "is no folder"),
        (("verify", "EMPTY"), 2, "holds no cached blocks"),
        (("prune", "KV", "--model", "zz"), 2, "0 models begin so"),
        (("prune", "KV", "--model", ""), 2, "2 models begin so"),
        (("prune", "KV", "--max-size", "many"), 2, "such as 512MiB"),
        (("prune", "KV", "--max-size", "1"), 2, "must be at least"),
        (("prune", "IN_USE"), 1, "in use by another process"),
    ],
)
def test_bad_input_is_one_line(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    """With the reason, and no traceback."""
    places = {"KV": folder, "EMPTY": tmp_path / "empty", "IN_USE": tmp_path / "used"}
    places["EMPTY"].mkdir()
    tier = DiskTier(places["IN_USE"], max_bytes=MAX_BYTES)
    with pytest.raises(SystemExit) as ended:
        main(["cache", *(str(places.get(word, word)) for word in arguments)])
    tier.close()
    error = capsys.readouterr().err
    assert (ended.value.code, error.count("\n")) == (code, 1)
    assert said in error
