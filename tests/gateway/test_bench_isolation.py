"""The measurement of what another tenant's wait tells."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.backends.echo import EchoBackend
from gateway.cli import commands
from gateway.client.isolation import Samples, as_data, as_text, found, measure
from gateway.client.streaming import BenchError
from prefixcache.types import GenerationRequest
from tests.support.tenancy import ACME, BETA, keyed_gateway
from tests.support.tokenizers import write_piece_tokenizer

WORDS = [f" {word}".encode() for word in ("time", "year", "people", "way", "day", "man", "thing")]


class Leaky(EchoBackend):
    """An echo that takes all tenants for one."""

    async def generate(self, request: GenerationRequest):  # type: ignore[no-untyped-def]
        shared = GenerationRequest(
            request_id=request.request_id, token_ids=request.token_ids, sampling=request.sampling
        )
        async for event in super().generate(shared):
            yield event


async def measured(backend: EchoBackend) -> Samples:
    async with keyed_gateway(backend) as keyed:
        return await measure(
            keyed.gateway.url,
            (ACME, BETA),
            n_pairs=3,
            prompt_tokens=64,
            seed=1,
            report=lambda line: None,
        )


async def test_each_kind_is_probed_as_often(tmp_path: Path) -> None:
    """So many pairs, and so many of B's own prompts beside them."""
    write_piece_tokenizer(tmp_path, WORDS)
    samples = await measured(EchoBackend(tmp_path))
    assert [len(each) for each in (samples.sent, samples.unsent, samples.own)] == [3, 3, 3]
    assert min(samples.sent + samples.unsent + samples.own) > 0


async def test_a_leak_ends_the_measurement(tmp_path: Path) -> None:
    """A probe that finds what the other sent is no matter of time any more."""
    write_piece_tokenizer(tmp_path, WORDS)
    with pytest.raises(BenchError, match="cached"):
        await measured(Leaky(tmp_path))


@pytest.mark.parametrize(("shift", "is_equivalent"), [(0.0, True), (0.2, False), (-0.2, False)])
def test_a_difference_is_held_to_the_bound(shift: float, is_equivalent: bool) -> None:
    """Equal times are equivalent; a fifth more or less is not."""
    base = tuple(1 + (index * 7 % 11) / 1000 for index in range(100))
    shifted = tuple(each + shift for each in base)
    finding = found(Samples(shifted, base, base), bound_share=0.05, seed=0)
    assert finding.is_equivalent == is_equivalent
    assert finding.difference_ms == pytest.approx(1000 * shift, abs=0.01)
    low, high = finding.interval_ms
    assert low <= finding.difference_ms <= high
    assert ("NOT" in as_text(finding)) != is_equivalent


def test_too_few_samples_show_nothing() -> None:
    """Wide scatter is not taken for equality."""
    scatter = (1.0, 1.3, 0.8, 1.1)
    finding = found(Samples(scatter, scatter[::-1], scatter), bound_share=0.05, seed=0)
    assert not finding.is_equivalent


def test_a_result_has_all_samples() -> None:
    """In milliseconds, beside what they say."""
    samples = Samples((0.001, 0.002), (0.003, 0.004), (0.5, 0.6))
    data = as_data(found(samples, bound_share=0.05, seed=0), samples)
    assert data["samples_ms"] == {"sent": [1, 2], "unsent": [3, 4], "own": [500, 600]}


def test_help_ends_with_an_example() -> None:
    """Help says how the command is used."""
    shown = CliRunner().invoke(commands, ["bench", "isolation", "--help"]).output
    assert re.search(r"Example: prefixcache bench isolation [^\n]+\n\Z", shown)
