"""Conversations that go on: how much of the turns before is found in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefixcache.index import common_prefix_tokens, pack
from prefixcache.text import Tokenizer
from tests.support.anthropics import use_template
from tests.support.bodies import CHAT
from tests.support.gateways import MODEL, running_gateway
from tests.support.inline import InlineBackend
from tests.support.models import Bench
from tests.support.tokenizers import write_chat_tokenizer

OPENS_WITH_A_TAG = (  # which is left out where an earlier answer is shown
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>' }}{% endif %}"
)


async def test_a_tag_at_the_end_of_a_prompt_costs_its_own_tokens_alone(tmp_path: Path) -> None:
    """The next turn hits all that comes before a tag which the template leaves out of history."""
    write_chat_tokenizer(tmp_path)
    use_template(tmp_path, OPENS_WITH_A_TAG)
    bench = Bench(n_blocks=200, tokenizer=Tokenizer.load(tmp_path))
    first = {"role": "user", "content": "hello world alpha " * 6}
    said = [{"role": "assistant", "content": "OK"}, {"role": "user", "content": "next"}]
    async with running_gateway(InlineBackend(bench.engine, tmp_path), own_answers=False) as gateway:

        async def send(path: str, turns: Sequence[dict[str, str]], **fields: Any) -> Any:
            body = {"model": MODEL, "messages": list(turns), **fields}
            status, reply = await gateway.post(path, body)
            assert status == 200, reply
            return reply

        tagged = (await send("/tokenize", [first]))["tokens"]
        longer = (await send("/tokenize", [first, *said]))["tokens"]
        await send(CHAT, [first], max_tokens=1)
        usage = (await send(CHAT, [first, *said], max_tokens=1))["usage"]
    n_shared = common_prefix_tokens(pack(tagged), 0, pack(longer), 0)
    assert len(tagged) - 8 < n_shared < len(tagged)
    found = usage["prompt_tokens_details"]["cached_tokens"]
    assert n_shared - bench.config.block_size_tokens < found <= n_shared
