"""How much faster answers come when they can be guessed, and that others lose nothing.

Run it as `python examples/speculation_speed.py [RESULT.json]`; it takes a minute or two.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from prefixcache.bench.machine import machine
from prefixcache.config import EngineConfig, SpeculationName
from prefixcache.engine import Engine
from prefixcache.index import pack
from prefixcache.text import PromptEncoder
from prefixcache.types import Delta, GenerationRequest, RequestId, SamplingParams

QUESTIONS = (
    "What is a prefix cache, and when is it useful?",
    "Write a short story about a lighthouse keeper who finds a map.",
    "Explain to a child why the sky is blue.",
    "Give me a recipe for a vegetable soup, step by step.",
)
N_TOKENS = 128  # of an answer
N_CHANCE_TOKENS = 32  # of one that nobody can guess
N_STREAMS = 8


def seconds_of(engine: Engine, prompts: Sequence[bytes], sampling: SamplingParams) -> float:
    """Serve the prompts together; return the process's seconds from the first token on."""
    for number, token_ids in enumerate(prompts):
        name = RequestId(str(number))
        engine.submit(GenerationRequest(request_id=name, token_ids=token_ids, sampling=sampling))
    began: float | None = None
    while engine.has_work:
        events = engine.step()
        if began is None and any(isinstance(event, Delta) for event in events):
            began = time.process_time()
    assert began is not None
    return time.process_time() - began


def engine_with(speculation: SpeculationName) -> Engine:
    """Load the default model for one thread."""
    config = EngineConfig(threads=1, kv_memory_bytes=256 * 2**20, speculation=speculation)
    return Engine.load(config, env=os.environ)


def measured() -> dict[str, float]:
    """Return medians of ratios: with guesses to without, in turns on the same prompts."""
    plain, guessing = engine_with("off"), engine_with("auto")
    encoder = PromptEncoder.load(Path(plain.info.folder))
    greedy = SamplingParams(max_tokens=N_TOKENS, ignore_eos=True)
    chance = SamplingParams(max_tokens=N_CHANCE_TOKENS, ignore_eos=True, temperature=3.0, seed=1)
    rows: dict[str, list[float]] = {}
    for number, question in enumerate(QUESTIONS):
        prompt = pack(encoder.chat([{"role": "user", "content": question}]))
        seconds = [seconds_of(engine, [prompt], greedy) for engine in (plain, guessing) * 2]
        note(rows, "first answer", seconds[0] / seconds[1])
        note(rows, "repeated answer", seconds[2] / seconds[3])
        note(rows, "repeated to first", seconds[1] / seconds[3])
        words = [pack([number, stream, *range(100, 160)]) for stream in range(N_STREAMS)]
        alone = [seconds_of(engine, words[:1], chance) for engine in (plain, guessing)]
        note(rows, "unguessable", alone[0] / alone[1])
        together = [seconds_of(engine, words, chance) for engine in (plain, guessing)]
        note(rows, "8 unguessable streams", together[0] / together[1])
    return {name: round(statistics.median(ratios), 3) for name, ratios in rows.items()}


def note(rows: dict[str, list[float]], name: str, ratio: float) -> None:
    """Keep one ratio of speeds."""
    rows.setdefault(name, []).append(ratio)


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and write the result where that was asked for."""
    torch.set_num_threads(1)
    result = {
        "command": "python examples/speculation_speed.py",
        "machine": machine(),
        "clock": "CPU time of the process, 1 thread",
        "model": "default",
        "tokens": N_TOKENS,
        "times_as_fast": measured(),
    }
    text = json.dumps(result, indent=1) + "\n"
    sys.stdout.write(text)
    if arguments:
        Path(arguments[0]).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
