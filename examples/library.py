"""The library without HTTP: a transformers model, and prompts that begin alike.

    python examples/library.py

The default chat model is fetched once. Watch `cached`: the second and third question reuse
the system prompt, and the follow-up reuses the whole conversation before it.
"""

from __future__ import annotations

import os
import sys
import time

from prefixcache import EngineConfig, SamplingParams
from prefixcache.engine import LocalModel

SYSTEM = "You are a patient geography teacher. " + "Answer in one short sentence. " * 60


def main() -> None:
    local = LocalModel.load(
        EngineConfig(), env=os.environ, report=lambda line: print(line, file=sys.stderr)
    )
    history: list[dict[str, object]] = [{"role": "system", "content": SYSTEM}]
    for question in ("What is the capital of Italy?", "And of Norway?", "Which is farther north?"):
        history.append({"role": "user", "content": question})
        begin = time.perf_counter()
        answer = local.chat(history, SamplingParams(max_tokens=24))
        seconds = time.perf_counter() - begin
        history.append({"role": "assistant", "content": answer.text})
        usage = answer.usage
        print(f"> {question}\n{answer.text.strip()}")
        print(f"  {usage.prompt_tokens} tokens, {usage.cached_tokens} cached, {seconds:.2f} s")


if __name__ == "__main__":
    main()
