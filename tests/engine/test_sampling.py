"""Drawing tokens: held against distributions worked out by hand."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from torch import Tensor

from prefixcache.engine.sampling import Sampler
from prefixcache.types import SamplingParams
from tests.support.drawing import draw, tokens_of

CHANCES = [0.02, 0.4, 0.03, 0.3, 0.05, 0.2]  # of token ids 0 to 5, at temperature 1
N_DRAWS, ROWS = 4000, 100
# The value that chi-square of so many degrees of freedom exceeds once in ten thousand times.
CHI_SQUARE_LIMIT = {1: 15.1, 2: 18.4, 3: 21.1, 4: 23.5, 5: 25.7}


def logits_of(chances: list[float]) -> Tensor:
    return torch.tensor(chances).log() + 7.5  # a shift that softmax does not see


def sharpened(chances: dict[int, float], temperature: float) -> dict[int, float]:
    """Return softmax(log(chance) / temperature)."""
    powers = {token: chance ** (1 / temperature) for token, chance in chances.items()}
    total = sum(powers.values())
    return {token: power / total for token, power in powers.items()}


def drawn(params: SamplingParams, n_draws: int = N_DRAWS) -> Counter[int]:
    """Count what one sequence's chance draws, in steps of many rows: that takes less time."""
    sampler, rows = Sampler(params), [logits_of(CHANCES)] * ROWS
    tokens = [token for _ in range(n_draws // ROWS) for token in tokens_of(rows, [sampler] * ROWS)]
    return Counter(token for token in tokens if token is not None)


def chi_square(found: Counter[int], expected: dict[int, float]) -> float:
    total = found.total()
    return sum((found[i] - total * p) ** 2 / (total * p) for i, p in expected.items())


@pytest.mark.parametrize(
    ("settings", "kept", "temperature"),
    [
        ({}, {0, 1, 2, 3, 4, 5}, 1.0),
        ({}, {0, 1, 2, 3, 4, 5}, 0.6),
        ({}, {0, 1, 2, 3, 4, 5}, 2.5),
        ({"top_k": 3}, {1, 3, 5}, 1.0),
        ({"top_k": 3}, {1, 3, 5}, 1.7),
        ({"top_k": 99}, {0, 1, 2, 3, 4, 5}, 1.0),
        ({"top_p": 0.85}, {1, 3, 5}, 1.0),  # 0.7 is too little, 0.9 is enough
        ({"top_p": 0.65}, {1, 3}, 1.0),
        ({"top_p": 0.65}, {1, 3, 5}, 2.0),  # flatter: two have 0.53 of the mass
        ({"top_p": 0.55, "top_k": 3}, {1, 3}, 1.0),
    ],
    ids=str,
)
def test_draws_follow_the_filtered_distribution(
    settings: dict[str, float], kept: set[int], temperature: float
) -> None:
    """Exactly the tokens that pass the filters are drawn, as often as their chances say."""
    params = SamplingParams(temperature=temperature, seed=5, **settings)  # type: ignore[arg-type]
    expected = sharpened({token: CHANCES[token] for token in kept}, temperature)
    found = drawn(params)
    assert found.total() == N_DRAWS
    assert set(found) == kept
    assert chi_square(found, expected) < CHI_SQUARE_LIMIT[len(kept) - 1]


@pytest.mark.parametrize(
    ("settings", "temperature", "only"),
    [
        ({"top_k": 1}, 1.0, 1),
        ({"top_p": 0.39}, 1.0, 1),
        ({"top_p": 1e-12}, 1.0, 1),
        ({"top_p": 1e-300}, 1.0, 1),  # nothing to float32, but the best one stays
        ({"top_k": 2, "top_p": 0.55}, 1.0, 1),  # of the two alone, the best has 0.57
        ({"top_p": 0.68}, 0.25, 1),  # sharper: the best has 0.72 of the mass
    ],
    ids=str,
)
def test_filters_may_leave_one_token(
    settings: dict[str, float], temperature: float, only: int
) -> None:
    """temperature comes before top_k, and top_k before top_p: each sees what the last one left."""
    params = SamplingParams(temperature=temperature, seed=6, **settings)  # type: ignore[arg-type]
    assert set(drawn(params, 300)) == {only}


@pytest.mark.parametrize("temperature", [0.0, 1e-320, 1e-50, 1e-9])
@pytest.mark.parametrize("top_p", [1.0, 0.5])
def test_tiny_temperatures_are_greedy(temperature: float, top_p: float) -> None:
    """A temperature that float32 cannot divide by gives the best token, not an error."""
    sampler = Sampler(SamplingParams(temperature=temperature, top_p=top_p, seed=1))
    row = logits_of(CHANCES)
    assert [tokens_of([row], [sampler]) for _ in range(50)] == [[1]] * 50


def test_seeds_tell_samplers_apart() -> None:
    """One seed gives one sequence; other seeds, and none at all, give others."""
    logits = torch.zeros(1000)

    def sequence(seed: int | None) -> list[int]:
        sampler = Sampler(SamplingParams(temperature=1.0, seed=seed))
        return [draw(sampler, logits) for _ in range(20)]

    assert sequence(3) == sequence(3)
    assert len({tuple(sequence(seed)) for seed in (3, 4, -5, 2**63 - 1, None, None)}) == 6


def test_rows_are_chosen_by_their_own_samplers() -> None:
    """Greedy and drawing rows share a batch; a neighbour changes nobody's draws."""
    row, peak = logits_of(CHANCES), torch.tensor([0.0, 0.0, 9.0, 0.0, 0.0, 0.0])
    hot = SamplingParams(temperature=1.3, seed=8)
    alone, among = Sampler(hot), Sampler(hot)
    greedy = Sampler(SamplingParams())
    for _ in range(30):
        expected = [2, draw(alone, row), 1]
        assert tokens_of([peak, row, row], [greedy, among, greedy]) == expected


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [[0.0, math.nan], [0.0, math.inf], [-math.inf, -math.inf]])
def test_rows_that_cannot_be_chosen_from_give_none(bad: list[float], temperature: float) -> None:
    """A row that is no distribution fails alone."""
    sampler = Sampler(SamplingParams(temperature=temperature, seed=1))
    rows = [torch.tensor([5.0, -math.inf]), torch.tensor(bad)]
    assert tokens_of(rows, [sampler, sampler]) == [0, None]
