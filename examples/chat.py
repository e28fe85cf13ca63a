"""A chat with the official openai client: cached tokens and time to first token, each turn.

    prefixcache serve &
    python examples/chat.py [--url http://127.0.0.1:8000/v1] [QUESTION...]

Without questions on the command line it asks you.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

SYSTEM = "You are a helpful assistant for a small bakery. " + (
    "Be friendly, be brief, never invent prices, and send people to the shop for orders. " * 30
)


def typed_questions() -> Iterator[str]:
    while question := input("you> ").strip():
        yield question


def main() -> None:
    parser = argparse.ArgumentParser(description="Chat, and see what was cached.")
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("questions", nargs="*", metavar="QUESTION")
    arguments = parser.parse_args()
    client = OpenAI(base_url=arguments.url, api_key="none")
    model = client.models.list().data[0].id
    history: list[ChatCompletionMessageParam] = [{"role": "system", "content": SYSTEM}]
    for question in arguments.questions or typed_questions():
        history.append({"role": "user", "content": question})
        history.append({"role": "assistant", "content": answer(client, model, history)})


def answer(client: OpenAI, model: str, history: list[ChatCompletionMessageParam]) -> str:
    """Stream one answer to the terminal and return it."""
    begin = time.perf_counter()
    first_seconds = None
    text = ""
    stream = client.chat.completions.create(
        model=model,
        messages=history,
        max_tokens=64,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        for choice in chunk.choices:
            if choice.delta.content:
                first_seconds = first_seconds or time.perf_counter() - begin
                text += choice.delta.content
                print(choice.delta.content, end="", flush=True)
        if chunk.usage and chunk.usage.prompt_tokens_details:
            cached = chunk.usage.prompt_tokens_details.cached_tokens
            print(f"\n  [{chunk.usage.prompt_tokens} prompt tokens, {cached} cached", end="")
    print(f", first text after {first_seconds or 0:.2f} s]")
    return text


if __name__ == "__main__":
    main()
