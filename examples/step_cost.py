"""Where the time of a decode step of eight streams goes.

Run it as `python examples/step_cost.py [RESULT.json]`; it takes a minute.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from prefixcache.bench.machine import machine
from prefixcache.config import EngineConfig
from prefixcache.engine import Engine
from prefixcache.engine.model import PagedModel
from prefixcache.engine.weights import lean
from prefixcache.engine.weights.modules import PackedLinear
from prefixcache.index import pack
from prefixcache.types import Delta, GenerationRequest, RequestId, SamplingParams

N_STREAMS = 8
N_TOKENS = 96  # of each answer
OWN_TOKENS = 32  # of each prompt, after what all of them share
SHARED_TOKENS = (0, 1024)
ROUNDS = 3
WATCHED = ("forward", "products", "attention")

Parts = dict[str, float]  # seconds by name: step, forward, products, attention


class Stopwatch:
    """Adds up the CPU time that functions take, by a name for each."""

    def __init__(self) -> None:
        self.seconds: Parts = dict.fromkeys(WATCHED, 0.0)

    def watch(self, owner: Any, function: str, name: str) -> None:
        """Have `owner.function` add to `name` from now on."""
        original: Callable[..., Any] = getattr(owner, function)

        def timed(*arguments: Any, **named: Any) -> Any:
            began = time.process_time()
            try:
                return original(*arguments, **named)
            finally:
                self.seconds[name] += time.process_time() - began

        setattr(owner, function, timed)

    def of(self, work: Callable[[], Any]) -> tuple[Any, Parts]:
        """Return what `work` gives, and the seconds of it and of what it called."""
        self.seconds = dict.fromkeys(WATCHED, 0.0)
        began = time.process_time()
        result = work()
        return result, {"step": time.process_time() - began, **self.seconds}


def watch_model(watch: Stopwatch) -> None:
    """Have every model in this process add to forward, products and attention."""
    watch.watch(PagedModel, "forward", "forward")
    watch.watch(PackedLinear, "forward", "products")
    watch.watch(lean, "attended", "attention")


def decode_steps(engine: Engine, watch: Stopwatch, n_shared: int, first: int) -> list[Parts]:
    """Serve eight prompts together; return the steps in which each of them got one token."""
    sampling = SamplingParams(max_tokens=N_TOKENS, ignore_eos=True)
    for stream in range(N_STREAMS):
        shared = [3 + place % 61 for place in range(n_shared)]
        name = RequestId(f"{n_shared}-{first}-{stream}")
        token_ids = pack([*shared, *range(first + stream, first + stream + OWN_TOKENS)])
        engine.submit(GenerationRequest(request_id=name, token_ids=token_ids, sampling=sampling))
    steps = []
    while engine.has_work:
        events, parts = watch.of(engine.step)
        if sum(isinstance(event, Delta) for event in events) == N_STREAMS:
            steps.append(parts)
    return steps[1:]  # the first one has the ends of the prompts in it


def figures(steps: Sequence[Parts]) -> dict[str, float]:
    """Return medians over steps: milliseconds, and shares that bring nobody a token."""

    def median(value: Callable[[Parts], float]) -> float:
        return statistics.median(map(value, steps))

    return {
        "steps": len(steps),
        "step_ms": round(median(lambda of: of["step"]) * 1e3, 2),
        "forward_ms": round(median(lambda of: of["forward"]) * 1e3, 2),
        "engine_share_of_step": round(median(lambda of: 1 - of["forward"] / of["step"]), 3),
        "rest_share_of_forward": round(
            median(lambda of: 1 - (of["products"] + of["attention"]) / of["forward"]), 3
        ),
    }


def measured() -> dict[str, object]:
    """Return the figures without a shared prefix and with one."""
    config = EngineConfig(threads=1, kv_memory_bytes=512 * 2**20, speculation="off")
    engine = Engine.load(config, env=os.environ)
    watch = Stopwatch()
    watch_model(watch)
    rows = {}
    for n_shared in SHARED_TOKENS:
        rounds = [decode_steps(engine, watch, n_shared, 20 + 10 * n) for n in range(ROUNDS)]
        steps = [step for steps in rounds for step in steps]
        rows[f"{n_shared} shared tokens"] = figures(steps)
    return {"weights": engine.info.weights, "rows": rows}


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and write the result where that was asked for."""
    torch.set_num_threads(1)
    result = {
        "command": "python examples/step_cost.py",
        "machine": machine(),
        "clock": "CPU time of the process, 1 thread",
        "model": "default",
        "streams": N_STREAMS,
        **measured(),
    }
    text = json.dumps(result, indent=1) + "\n"
    sys.stdout.write(text)
    if arguments:
        Path(arguments[0]).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
