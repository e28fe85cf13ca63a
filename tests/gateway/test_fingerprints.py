"""What is remembered of earlier prompts, and what is said to have changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.fingerprints import Fingerprints, Prompt

TURNS = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})
PROMPT = Prompt("tiny", "system", ["tool"], None, TURNS)


@pytest.mark.parametrize(
    ("later", "change"),
    [
        (PROMPT, None),
        (replace(PROMPT, messages=[*TURNS, {"role": "user", "content": "c"}]), None),
        (replace(PROMPT, messages=TURNS[:1]), "messages"),
        (replace(PROMPT, messages=[*TURNS[::-1], TURNS[0]]), "messages"),
        (replace(PROMPT, others="x"), "others"),
        (replace(PROMPT, tools=[], others="x"), "tools"),
        (replace(PROMPT, system=None, tools=[]), "system"),
        (replace(PROMPT, model="other", system=None), "model"),
    ],
)
def test_the_first_change_is_named(later: Prompt, change: str | None) -> None:
    """In the order model, system, tools, messages, the rest; messages may be added to."""
    assert later.change_since(PROMPT.fingerprint(9)) == change


def test_what_is_kept_is_bounded_and_the_tenants_own() -> None:
    """The oldest goes first, and no tenant finds another's."""
    kept = Fingerprints(max_per_tenant=2)
    for number in range(3):
        kept.put("a", f"msg_{number}", PROMPT.fingerprint(number))
    kept.put("b", "msg_2", PROMPT.fingerprint(7))
    assert kept.get("a", "msg_0") is None
    assert [kept.get("a", f"msg_{n}") for n in (1, 2)] == [PROMPT.fingerprint(n) for n in (1, 2)]
    assert kept.get("b", "msg_2") == PROMPT.fingerprint(7)
    assert kept.get("b", "msg_1") is None
