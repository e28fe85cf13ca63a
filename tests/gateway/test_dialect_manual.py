"""The manual's pages on the Anthropic and Gemini dialects: examples run, every field is there."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from gateway.api.anthropic_models import MessagesBody
from gateway.api.gemini_models import CacheBody, GenerateBody, GenerationConfig
from tests.support.gateways import Gateway

MANUAL = Path(__file__).parent.parent.parent / "gateway/manual"


def page(name: str) -> str:
    return (MANUAL / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["anthropic.md", "gemini.md"])
async def test_the_example_runs(
    gateway: Gateway, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The official client gets an answer and usage, as the page shows."""
    (block,) = re.findall(r"```python\n(.*?)```", page(name), flags=re.DOTALL)
    assert "http://127.0.0.1:8000" in block
    code = compile(block.replace("http://127.0.0.1:8000", gateway.url), name, "exec")
    await asyncio.to_thread(exec, code, {})
    assert "colour" in capsys.readouterr().out  # an echo's answer is the prompt


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("anthropic.md", MessagesBody),
        ("gemini.md", GenerateBody),
        ("gemini.md", GenerationConfig),
        ("gemini.md", CacheBody),
    ],
)
def test_every_field_is_explained(name: str, kind: type) -> None:
    """The page names each field that the gateway reads, as clients spell it."""
    fields = kind.__struct_encode_fields__  # type: ignore[attr-defined]
    text = page(name)
    assert [field for field in fields if f"`{field}" not in text and f".{field}`" not in text] == []
