"""Prompts that share a step: short ones are never stopped by long ones, long ones go on."""

from __future__ import annotations

import random

import pytest

from prefixcache.engine.sampling import Sampler
from prefixcache.engine.sequence import Sequence
from prefixcache.engine.shares import PromptShares
from prefixcache.index import Namespace, pack
from prefixcache.types import GenerationRequest, RequestId, SamplingParams
from tests.support.models import Bench, prompt_ids


def reader(n_pending: int, priority: int = 0) -> Sequence:
    sampling = SamplingParams()
    request = GenerationRequest(
        request_id=RequestId("r"),
        token_ids=pack([1] * n_pending),
        sampling=sampling,
        priority=priority,
    )
    return Sequence(request, Namespace(model="m", kv_format="f"), 1, Sampler(sampling), None)


def shares_of(aim: int, most: int) -> PromptShares:
    return PromptShares(aim_tokens=aim, most_tokens=most, level=lambda s: s.request.priority)


def split(pending: list[int], aim: int = 100, most: int = 4000) -> list[int]:
    prompts = shares_of(aim, most)
    readers = [reader(n_pending) for n_pending in pending]
    for each in readers:
        prompts.add(each)
    found = {share.sequence: share.n_tokens for share in prompts.split()}
    return [found.get(each, 0) for each in readers]


@pytest.mark.parametrize(
    ("pending", "parts"),
    [
        ([60], [60]),
        ([500], [100]),
        ([125], [125]),  # a little over: taken whole, to save a step
        ([126], [100]),
        ([4000, 10], [90, 10]),
        ([4000, 75, 10], [25, 65 + 10, 10]),  # the shortest first, and a small rest whole
        ([4000, 3000], [25, 75]),
        ([10, 4000, 3000], [10, 0, 90]),
        ([50, 50, 50], [50, 50, 0]),
        ([], []),
    ],
)
def test_the_shortest_rest_goes_first_and_the_oldest_goes_on(
    pending: list[int], parts: list[int]
) -> None:
    """Of 100 tokens, what is short is read whole, and the oldest gets at least a quarter."""
    assert split(pending) == parts


def test_priority_goes_before_length() -> None:
    """A long prompt of a lower number is read before a short one of a higher number."""
    prompts = shares_of(100, 100)
    late, soon = reader(20, priority=5), reader(400, priority=-1)
    prompts.add(late)
    prompts.add(soon)
    assert [(share.sequence, share.n_tokens) for share in prompts.split()] == [(soon, 100)]


@pytest.mark.parametrize("seed", range(5))
def test_no_split_exceeds_the_most_or_a_prompt(seed: int) -> None:
    """All of the aim is shared out where there is so much to read, and never more than the most."""
    rng = random.Random(seed)
    for _ in range(200):
        pending = [rng.choice([2, 5, 40, 300]) for _ in range(rng.randint(1, 6))]
        aim = rng.randint(1, 200)
        most = rng.randint(1, 300)
        parts = split(pending, aim, most)
        assert all(0 <= part <= whole for part, whole in zip(parts, pending, strict=True))
        assert min(aim, most, sum(pending)) <= sum(parts) <= most
        assert parts[0] >= 1


def test_a_share_is_foreseen() -> None:
    """Who is told that there is a share gets one, who is told that there is none gets none."""
    rng = random.Random(1)
    for _ in range(300):
        prompts = shares_of(rng.randint(1, 60), 100)
        for _ in range(rng.randint(0, 4)):
            prompts.add(reader(rng.randint(2, 40), rng.randint(0, 1)))
        new = reader(rng.randint(2, 40), rng.randint(0, 1))
        foreseen = prompts.has_share_for(new, new.n_pending)
        prompts.add(new)
        assert foreseen == (new in [share.sequence for share in prompts.split()])


def steps_until_started(bench: Bench, name: str) -> int:
    n_before = len(bench.model.steps)
    bench.step_until(lambda: bench.answers[name].token_ids, max_steps=400)
    return len(bench.model.steps) - n_before


def test_a_short_prompt_behind_a_long_one_has_its_first_token_at_once() -> None:
    """Behind 400 tokens that take fourteen steps, a prompt of ten is through in one."""
    bench = Bench(max_step_tokens=30)
    bench.submit("long", prompt_ids(400, seed=1), 1)
    bench.step()
    bench.submit("short", prompt_ids(10, seed=2), 1)
    assert steps_until_started(bench, "short") == 1
    assert steps_until_started(bench, "long") == 12


def test_many_long_prompts_do_not_stop_a_short_one() -> None:
    """With several long ones read and more waiting, a short one is still through at once."""
    bench = Bench(max_step_tokens=40)
    for number in range(6):
        bench.submit(f"long{number}", prompt_ids(300, seed=number), 1)
    for _ in range(3):
        bench.step()
    bench.submit("short", prompt_ids(12, seed=20), 1)
    assert steps_until_started(bench, "short") <= 2


def test_a_stream_of_short_prompts_does_not_stop_a_long_one() -> None:
    """The long one gets its quarter of each step, whatever comes."""
    bench = Bench(max_step_tokens=20, max_running_requests=32)
    bench.submit("long", prompt_ids(100, seed=1), 1)
    for number in range(24):
        bench.submit(f"s{number}", prompt_ids(19, seed=2 + number), 1)
        bench.submit(f"t{number}", prompt_ids(19, seed=90 + number), 1)
        bench.step()
    assert bench.answers["long"].ending is not None


def test_no_step_has_more_tokens_than_the_maximum() -> None:
    """Decodes and prompts together keep to max_step_tokens, and all of them go on."""
    bench = Bench(max_step_tokens=12, max_running_requests=16)
    for number in range(20):
        bench.submit(f"r{number}", prompt_ids(5 + 3 * number, seed=number), 9)
    bench.drain()
    assert max(step.token_ids.shape[1] for step in bench.model.steps) == 12
    assert all(len(answer.token_ids) == 9 for answer in bench.answers.values())
