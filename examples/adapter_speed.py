"""What adapters cost a step: loaded and not asked for, asked for by all, and mixed.

    python examples/adapter_speed.py [--json examples/results/adapters.json]

Two random adapters of rank 16 on all projections of the default model, in this process, on one
thread; processor time, medians of rounds in which all cases take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from prefixcache import EngineConfig, SamplingParams
from prefixcache.bench import machine
from prefixcache.engine import Engine
from prefixcache.index import pack
from prefixcache.types import Delta, GenerationRequest, RequestId

RANK = 16
N_TOKENS = 24
ROUNDS = 7
PROMPT = pack(range(100, 132))
CASES: Mapping[str, tuple[bool, Sequence[str | None]]] = {  # adapters loaded, and who asks for one
    "1 plain": (False, [None]),
    "1 not asked for": (True, [None]),
    "1 adapter": (True, ["a"]),
    "8 plain": (False, [None] * 8),
    "8 not asked for": (True, [None] * 8),
    "8 one adapter": (True, ["a"] * 8),
    "8 mixed": (True, ["a", "b", None] * 2 + ["a", "b"]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what adapters cost a step.")
    parser.add_argument("--json", type=Path)
    file = parser.parse_args().json
    torch.set_num_threads(1)
    config = EngineConfig(threads=1, kv_memory_bytes=256 << 20)
    plain, loaded = (Engine.load(config, env=os.environ) for _ in range(2))
    with tempfile.TemporaryDirectory() as folder:
        for seed, name in enumerate("ab"):
            write_adapter(Path(folder) / name, plain.info.folder, seed)
            loaded.load_adapter(name, str(Path(folder) / name))
    times: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(ROUNDS):
        for name, (has_adapters, asked) in CASES.items():
            times[name].append(step_ms(loaded if has_adapters else plain, asked))
    results = summary(times)
    for row in results:
        print(f"{row['case']:<18} {row['step_ms']:>8.2f} ms {row['to_plain']:>6.2f}")
    if file is not None:
        command = f"python examples/adapter_speed.py --json {file}"
        found = {"command": command, "machine": machine(), "results": results}
        file.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def write_adapter(folder: Path, model: str, seed: int) -> None:
    """Write a random adapter for all linear layers of a model but the output layer."""
    generator = torch.Generator().manual_seed(seed)
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model))
    tensors = {}
    for path, module in skeleton.named_modules():
        if isinstance(module, torch.nn.Linear) and module is not skeleton.get_output_embeddings():
            for side, shape in (
                ("A", (RANK, module.in_features)),
                ("B", (module.out_features, RANK)),
            ):
                random = torch.randn(shape, generator=generator) * 0.01
                tensors[f"base_model.model.{path}.lora_{side}.weight"] = random
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": "all-linear"}
    (folder / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")


def step_ms(engine: Engine, asked: Sequence[str | None]) -> float:
    """Return the median processor time of a step in which every request gets a token."""
    for index, adapter in enumerate(asked):
        engine.submit(
            GenerationRequest(
                request_id=RequestId(f"r{index}"),
                token_ids=PROMPT,
                sampling=SamplingParams(max_tokens=N_TOKENS, ignore_eos=True),
                adapter=adapter,
                read_cache=False,
                store_cache=False,
            )
        )
    times = []
    while engine.has_work:
        begin = time.process_time()
        events = engine.step()
        seconds = time.process_time() - begin
        if len(events) == len(asked) and all(isinstance(event, Delta) for event in events):
            times.append(seconds * 1e3)
    return statistics.median(times[1:])  # the first may put hooks on or take them off


def summary(times: Mapping[str, Sequence[float]]) -> list[dict[str, object]]:
    """Return each case's median, and the median of its rounds' ratios to the plain step."""
    rows: list[dict[str, object]] = []
    for name, found in times.items():
        plain = times[f"{name.split()[0]} plain"]
        ratios = [mine / its for mine, its in zip(found, plain, strict=True)]
        rows.append(
            {
                "case": name,
                "step_ms": statistics.median(found),
                "to_plain": statistics.median(ratios),
            }
        )
    return rows


if __name__ == "__main__":
    main()
