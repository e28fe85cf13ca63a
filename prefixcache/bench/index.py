"""What the index costs, on seeded workloads. Needs no torch and no model.

Times are CPU time of this thread, so that what else the machine does costs little; one reading of
the clock is part of each, about half a microsecond. Garbage is collected as in a server, but each
run starts clean and sees no objects from before it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from prefixcache.bench.index_memory import measure_memory
from prefixcache.bench.index_rows import Row, medians
from prefixcache.bench.index_runs import (
    Clock,
    measure_chats,
    measure_conversation,
    measure_long,
    measure_shared,
    measure_thin,
)
from prefixcache.bench.index_workloads import (
    Chats,
    Conversation,
    LongPrompt,
    ManyBlocks,
    SharedPrompts,
    ThinLeaves,
)

TIMED: dict[str, tuple[Callable[[Clock], Row], ...]] = {
    "A": (partial(measure_shared, SharedPrompts()),),
    "B": (partial(measure_long, LongPrompt()),),
    "C": (partial(measure_chats, Chats()),),
    "C2": tuple(partial(measure_thin, ThinLeaves(n)) for n in (1_000, 25_000, 200_000)),
    "chain": (partial(measure_conversation, Conversation()),),
}
MEMORY = "D"
NAMES = ("A", "B", "C", "C2", MEMORY, "chain")


def measure(names: Sequence[str], *, repeats: int, clock: Clock) -> Iterator[Row]:
    """Yield the rows of these workloads of `NAMES`, each as soon as it is known.

    A figure is the median of `repeats` runs. Memory is measured once, in a process of its own.
    """
    for name in names:
        if name == MEMORY:
            yield measure_memory(ManyBlocks())
            continue
        for run in TIMED[name]:
            yield medians([_from_clean(run, clock) for _ in range(repeats)])


def _from_clean(run: Callable[[Clock], Row], clock: Clock) -> Row:
    with _older_objects_set_aside():
        return run(clock)


@contextmanager
def _older_objects_set_aside() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
