"""Tiny random-weight models, and transformers' own generate as the oracle."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor
from transformers import PreTrainedModel

from prefixcache.config import EngineConfig
from prefixcache.control import Publication
from prefixcache.engine import Engine
from prefixcache.engine.loading import prepare_model
from prefixcache.engine.model import PagedModel
from prefixcache.engine.plan import Step
from prefixcache.engine.publications import Reading
from prefixcache.index import Namespace, pack
from prefixcache.text import Tokenizer
from prefixcache.tiers import BlockTier
from prefixcache.types import (
    Delta,
    Event,
    Failed,
    Finished,
    GenerationRequest,
    RequestId,
    Retain,
    SamplingParams,
    Started,
)
from tests.support.architectures import VOCAB_SIZE, tiny_model
from tests.support.pruned import prune_reference
from tests.support.tokenizers import write_chat_tokenizer

ARCHITECTURES = (  # one for each thing that attention may do: all of test_oracle runs on these
    "llama",
    "qwen3",
    "mistral-window",
    "qwen2-mixed",
    "gpt2",
    "gemma2",
    "gpt-oss",
)
CLEAR_GAP = 1e-3  # two best logits further apart than this give the same token in float32
LOGIT_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Expected:
    """What transformers' generate gives: tokens, and the logits each was chosen from."""

    token_ids: list[int]
    logits: Tensor  # float32 [n, vocab_size]

    def is_same(self, token_ids: Sequence[int]) -> bool:
        """Whether `token_ids` agree up to the first place where two logits are nearly equal."""
        for row, (mine, theirs) in enumerate(zip(token_ids, self.token_ids, strict=True)):
            best = torch.topk(self.logits[row], 2).values
            if best[0] - best[1] <= CLEAR_GAP:
                return True
            if mine != theirs:
                return False
        return True


def oracle(model: PreTrainedModel, prompt: Sequence[int], n_tokens: int) -> Expected:
    """Run transformers' greedy generate for exactly `n_tokens` tokens."""
    ids = torch.tensor([list(prompt)])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=n_tokens,
        min_new_tokens=n_tokens,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
    )
    return Expected(output.sequences[0, len(prompt) :].tolist(), torch.cat(output.logits).float())


class RecordingModel(PagedModel):
    """A paged model that keeps what each forward was and gave, for comparison.

    With a script it computes and stores KV as ever, but its best token at position p is
    `script[p]`, and the last of the script from there on.
    """

    def __init__(self, inner: PagedModel, script: Sequence[int] | None = None) -> None:
        self.__dict__.update(inner.__dict__)
        self._script = script
        self.rows: list[Tensor] = []
        self.steps: list[Step] = []

    def forward(self, step: Step) -> Tensor:
        logits = super().forward(step)
        if self._script is not None:
            logits = self._scripted(step)
        self.steps.append(step)
        self.rows.extend(logits.clone())
        return logits

    def _scripted(self, step: Step) -> Tensor:
        assert self._script is not None
        positions = step.positions[0, step.logit_rows].tolist()
        tokens = [self._script[min(place, len(self._script) - 1)] for place in positions]
        return torch.nn.functional.one_hot(torch.tensor(tokens), self.vocab_size).float()


@dataclass
class Answer:
    """What an engine gave for one request."""

    token_ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)  # one for each token
    cached_tokens: int | None = None
    ending: Finished | Failed | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def finished(self) -> Finished:
        assert isinstance(self.ending, Finished), self.ending
        return self.ending

    @property
    def failed(self) -> Failed:
        assert isinstance(self.ending, Failed), self.ending
        return self.ending


class Bench:
    """A tiny engine, its oracle, and short calls for tests."""

    def __init__(
        self,
        architecture: str = "llama",
        *,
        n_blocks: int | None = None,
        dtype: torch.dtype = torch.float32,
        tokenizer: Tokenizer | None = None,
        eos_token_id: int | None = None,
        script: Sequence[int] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        lasting: Mapping[str, BlockTier] | None = None,
        **settings: Any,
    ) -> None:
        """Make the engine.

        Args:
            architecture: one of ARCHITECTURES.
            n_blocks: of the pool, of every layer group; None: plenty.
            dtype: of the weights, the store and the oracle.
            tokenizer: None: the engine knows no text.
            eos_token_id: None: no token ends an answer.
            script: what the model is made to say, by position; see RecordingModel.
            clock: of the engine.
            lasting: tiers that outlive it, by name; the folder of `disk` is not opened then.
            settings: of EngineConfig; the oracle sees what `kv_prune` leaves.
        """
        self.reference = tiny_model(architecture).to(dtype)
        defaults: dict[str, Any] = {
            "kv_memory_bytes": 1 << 20,
            "block_size_tokens": 4,
            "weights": "float32",
            "speculation": "off",  # so that steps can be counted
        }
        if lasting is not None:
            defaults["disk"] = "not opened"  # so that weights are named
        self.config = EngineConfig(**(defaults | settings))
        if n_blocks is not None:
            memory_bytes = n_blocks * self.config.block_size_tokens * self._bytes_per_token()
            self.config = msgspec.structs.replace(self.config, kv_memory_bytes=memory_bytes)
        model = copy.deepcopy(self.reference)
        if self.config.kv_prune is not None:
            prune_reference(self.reference, self.config.kv_prune)
        model.generation_config.eos_token_id = eos_token_id
        self.loaded = prepare_model(model, self.config, name="tiny", tokenizer=tokenizer)
        self.model = RecordingModel(self.loaded.model, script)
        loaded = replace(self.loaded, model=self.model)
        self.engine = Engine(loaded, self.config, clock=clock, lasting=lasting)
        self.answers: dict[str, Answer] = {}

    def _bytes_per_token(self) -> int:
        paged = PagedModel(copy.deepcopy(self.reference))
        return paged.layout(self.config.block_size_tokens).bytes_per_token

    @property
    def n_held(self) -> int:
        """Blocks that requests hold."""
        return self.engine.stats().pool.held

    def submit(
        self,
        name: str,
        prompt: Sequence[int],
        n_tokens: int = 8,
        *,
        read_cache: bool = True,
        store_cache: bool = True,
        tenant: str = "default",
        salt: str | None = None,
        adapter: str | None = None,
        priority: int = 0,
        deadline_seconds: float | None = None,
        retain: tuple[Retain, ...] = (),
        **sampling: Any,
    ) -> None:
        params = SamplingParams(max_tokens=n_tokens, **sampling)
        self.answers[name] = Answer()
        self.engine.submit(
            GenerationRequest(
                request_id=RequestId(name),
                token_ids=pack(prompt),
                sampling=params,
                read_cache=read_cache,
                store_cache=store_cache,
                tenant=tenant,
                salt=salt,
                adapter=adapter,
                priority=priority,
                deadline_seconds=deadline_seconds,
                retain=retain,
            )
        )

    def publish(self, prompt_id: str, tokens: Sequence[int], **options: Any) -> Reading:
        """Publish a prompt and step until that has ended; return how."""
        publication = Publication(
            prompt_id=prompt_id, name=prompt_id, version=1, token_ids=pack(tokens), **options
        )
        self.engine.control.publish(publication)
        readings: list[Reading] = []
        for _ in range(1000):
            readings += self.engine.control.readings()
            if readings:
                (reading,) = readings
                return reading
            self.step()
        raise AssertionError("it is never read")

    def cached_of(self, prompt_id: str) -> int:
        """Return how much of a publication is cached now."""
        states = self.engine.control.inspect(max_nodes=0).publications
        return next(each.cached_tokens for each in states if each.prompt_id == prompt_id)

    def step(self, poll: Callable[[], None] | None = None) -> list[Event]:
        events = self.engine.step(poll)
        self.engine.cache.check()
        for event in events:
            answer = self.answers[event.request_id]
            if isinstance(event, Delta):
                answer.token_ids.extend(event.token_ids)
                answer.texts.append(event.text)
            elif isinstance(event, Started):
                answer.cached_tokens = event.cached_tokens
            elif isinstance(event, Finished | Failed):
                answer.ending = event
        return events

    def drain(self, max_steps: int = 2000) -> None:
        self.step_until(lambda: not self.engine.has_work, max_steps)

    def step_until(self, condition: Callable[[], object], max_steps: int = 2000) -> None:
        """Step until `condition` is true; fail when that takes more than `max_steps`."""
        for _ in range(max_steps):
            if condition():
                return
            self.step()
        raise AssertionError(f"not there after {max_steps} steps")

    def matchable(self, tokens: Sequence[int]) -> int:
        """Return how many leading tokens a request of the default tenant could reuse now."""
        namespace = Namespace(
            model=self.engine.info.load_id, kv_format=self.engine.info.kv_format, tenant="default"
        )
        return self.engine.cache.match_length(namespace, pack(tokens))

    def run(self, prompt: Sequence[int], n_tokens: int = 8, **options: Any) -> Answer:
        """Serve one request alone and return its answer."""
        name = f"run-{len(self.answers)}"
        self.submit(name, prompt, n_tokens, **options)
        self.drain()
        return self.answers[name]


def prompt_ids(n_tokens: int, seed: int = 0) -> list[int]:
    """Return `n_tokens` random token ids, the same at every call."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCAB_SIZE, (n_tokens,), generator=generator).tolist()


def write_tiny_model(folder: Path) -> None:
    """Write a small chat model into `folder`: random weights, a real tokenizer and template."""
    write_chat_tokenizer(folder)
    tiny_model("llama").save_pretrained(folder)
