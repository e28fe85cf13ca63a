"""The examples run, on a smaller scale."""

from __future__ import annotations

import re

import pytest


def test_kv_cache_example_counts_what_a_cache_saves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three ways to the same tokens: everything again each time, once, and only what is new."""
    from examples import kv_cache  # torch: not for every test's start

    n_tokens, n_shared = 70, 48
    monkeypatch.setattr(kv_cache, "N_TOKENS", n_tokens)
    monkeypatch.setattr(kv_cache, "N_SHARED", n_shared)
    kv_cache.main()
    lines = capsys.readouterr().out.splitlines()
    counts = [
        int(re.findall(r"([\d,]+) +\d+\.\d\d$", line)[0].replace(",", "")) for line in lines[1:4]
    ]
    assert counts == [n_tokens * (n_tokens + 1) // 2, n_tokens, n_tokens - n_shared]
    assert lines[4] == "the same tokens each time: True"


def test_tenants_example_shows_who_finds_what(capsys: pytest.CaptureFixture[str]) -> None:
    """Both find the published prompt, each its own question, and nobody the other's."""
    from examples import tenants

    tenants.main()
    lines = capsys.readouterr().out.splitlines()
    cached = [int(found) for found in re.findall(r": (\d+) of 130", "\n".join(lines))]
    assert cached == [90, 90, 128, 128]
    assert "bakery's prompt: 90 cached" in lines[4]
    assert "retired_version" in lines[5]
