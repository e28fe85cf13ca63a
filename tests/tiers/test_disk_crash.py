"""Killed in the middle of anything, the disk tier has what it had and nothing that it must not."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from prefixcache.tiers.disk import DiskTier
from tests.tiers.crashing import MAX_BYTES
from tests.tiers.made import owner, prompt, records, wanted


class Account:
    """What must be there, and what must not, by what the killed processes said."""

    def __init__(self) -> None:
        self.written: dict[int, str] = {}  # prompt: its tenant
        self.begun: set[int] = set()  # may be there
        self.dead: dict[int, str] = {}
        self.next = 1

    def hear(self, lines: list[str]) -> None:
        """Take in what one process said."""
        for line in lines:
            what, tenant, number = line.split()
            self.next = int(number) + 1
            if what == "writing":
                self.begun.add(int(number))
            elif what == "written":
                self.written[int(number)] = tenant
            elif what == "invalidating":  # may have happened: no promise in either direction
                for known in [n for n, of in self.written.items() if of == tenant]:
                    self.begun.add(known)
                    self.dead[known] = self.written.pop(known)
            else:
                self.begun -= {known for known, of in self.dead.items() if of == tenant}


def killed_after(folder: Path, start: int, seconds: float) -> list[str]:
    """Run a writer, kill it that long after its first line, and return its whole lines."""
    command = [sys.executable, "-m", "tests.tiers.crashing", str(folder), str(start)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        first = child.stdout.readline()
        time.sleep(seconds)
        child.kill()
        text = first + child.stdout.read()
    return text[: text.rfind("\n") + 1].splitlines()


def check(folder: Path, account: Account) -> int:
    """Open what is left; returns how many prompts are there whole."""
    tier = DiskTier(folder, max_bytes=MAX_BYTES, segment_bytes=1 << 14)
    n_whole = 0
    for number, tenant in account.written.items():
        asked = wanted(records(prompt(number, 3), owner(tenant)))
        found = tier.read(asked)  # refused unless it is bit for bit what was written
        n_whole += len(found) == len(asked)
        for record, block in zip(found, asked, strict=False):
            assert record.answers(block)
            assert record.parts[0] is not None
            size = len(record.parts[0])
            (made,) = [
                r for r in records(prompt(number, 3), owner(tenant), size) if r.key == record.key
            ]
            assert tuple(p if p is None else bytes(p) for p in record.parts) == made.parts
    for number, tenant in account.dead.items():
        if number not in account.begun:
            assert tier.read(wanted(records(prompt(number, 3), owner(tenant)))) == []
    assert set(tier.refusals.counts) <= {"cut_short"}  # a torn end
    newest = [n for n in account.written if n > account.next - 20]
    for number in newest:  # too young to have been given up
        assert tier.read(wanted(records(prompt(number, 3), owner(account.written[number]))))
    tier.close()
    return n_whole


def crash(folder: Path, rounds: int) -> None:
    """Kill so many writers, one after the other, and look each time."""
    rng = random.Random(rounds)
    account = Account()
    n_whole = 0
    for _ in range(rounds):
        account.hear(killed_after(folder, account.next, rng.uniform(0, 0.05)))
        n_whole += check(folder, account)
        assert sum(path.stat().st_size for path in folder.iterdir()) <= MAX_BYTES
    assert n_whole > 0  # or nothing was looked at


def test_ten_kills_lose_and_revive_nothing(tmp_path: Path) -> None:
    """What a call returned from is there, what was invalidated is not, nothing is wrong."""
    crash(tmp_path, 10)


@pytest.mark.slow
def test_two_hundred_kills_lose_and_revive_nothing(tmp_path: Path) -> None:
    """The same, for long."""
    crash(tmp_path, 200)
