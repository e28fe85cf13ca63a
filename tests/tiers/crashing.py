"""A process that writes to a disk tier until it is killed; it says what it has done."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from prefixcache.tiers import StoredScope
from prefixcache.tiers.disk import DiskTier
from tests.tiers.made import owner, prompt, records

MAX_BYTES = 1 << 20
N_TENANTS = 3


def main(folder: str, start: str) -> None:
    """Write prompts from `start` on; a line for each call that has returned, and one before."""
    tier = DiskTier(Path(folder), max_bytes=MAX_BYTES, segment_bytes=1 << 14)
    rng = random.Random(int(start))
    number = int(start)
    while True:
        tenant = str(rng.randrange(N_TENANTS))
        if rng.random() < 0.1:
            say(f"invalidating {tenant} {number}")
            tier.invalidate(StoredScope(tenant=owner(tenant).tenant))
            say(f"invalidated {tenant} {number}")
        else:
            say(f"writing {tenant} {number}")
            tier.write(records(prompt(number, 3), owner(tenant), rng.choice((10, 1000, 9000))))
            say(f"written {tenant} {number}")
        number += 1


def say(text: str) -> None:
    """Write a line at once."""
    os.write(1, f"{text}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
