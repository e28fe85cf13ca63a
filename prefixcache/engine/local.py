"""The engine used in-process: prompts in, texts out, no HTTP."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from transformers import PreTrainedModel

from prefixcache.config import EngineConfig
from prefixcache.engine.engine import Engine
from prefixcache.errors import EngineError
from prefixcache.index import pack
from prefixcache.text import PromptEncoder
from prefixcache.types import (
    Delta,
    Event,
    Failed,
    Finished,
    FinishReason,
    GenerationRequest,
    RequestId,
    SamplingParams,
    Usage,
)

Prompt = str | Sequence[int]


@dataclass(frozen=True, slots=True)
class Generation:
    """One finished answer."""

    text: str  # empty without a tokenizer
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage


@dataclass(slots=True)
class _Partial:
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)


class LocalModel:
    """A model with a prefix cache, for one thread of one process.

    Calls share the cache: what one prompt has read, the next one that begins alike reuses.
    """

    def __init__(self, engine: Engine, encoder: PromptEncoder | None = None) -> None:
        self.engine = engine
        self._encoder = encoder
        self._numbers = itertools.count()

    @classmethod
    def load(
        cls, config: EngineConfig, *, env: Mapping[str, str], report: Callable[[str], None] = print
    ) -> LocalModel:
        """Load the model that `config` names; see `Engine.load` for arguments and errors."""
        engine = Engine.load(config, env=env, report=report)
        return cls(engine, PromptEncoder.load(Path(engine.info.folder)))

    @classmethod
    def wrap(
        cls,
        model: PreTrainedModel,
        config: EngineConfig | None = None,
        *,
        encoder: PromptEncoder | None = None,
    ) -> LocalModel:
        """Take over a transformers model in memory; without an encoder, prompts are token ids."""
        tokenizer = None if encoder is None else encoder.tokenizer
        return cls(Engine.from_model(model, config, tokenizer=tokenizer), encoder)

    def generate(
        self, prompts: Sequence[Prompt], sampling: SamplingParams | None = None
    ) -> list[Generation]:
        """Continue all prompts as one batch; answers come in the order of the prompts.

        Raises:
            EngineError: a prompt was refused or failed; the others were let go.
        """
        ids = [self._submit(prompt, sampling or SamplingParams()) for prompt in prompts]
        partial = {request_id: _Partial() for request_id in ids}
        done: dict[RequestId, Generation] = {}
        for event in self._events(ids):
            if isinstance(event, Delta):
                partial[event.request_id].texts.append(event.text)
                partial[event.request_id].token_ids.extend(event.token_ids)
            elif isinstance(event, Finished):
                so_far = partial[event.request_id]
                done[event.request_id] = Generation(
                    "".join(so_far.texts), tuple(so_far.token_ids), event.reason, event.usage
                )
        return [done[request_id] for request_id in ids]

    def chat(
        self,
        messages: Sequence[Mapping[str, object]],
        sampling: SamplingParams | None = None,
    ) -> Generation:
        """Answer a conversation; `messages` as in the OpenAI API.

        Raises:
            TemplateError: the model's template refuses the messages.
            EngineError: as `generate`.
        """
        return self.generate([self._need_encoder().chat(messages)], sampling)[0]

    def stream(self, prompt: Prompt, sampling: SamplingParams | None = None) -> Iterator[str]:
        """Yield the answer's text as it comes; closing the iterator cancels the request."""
        request_id = self._submit(prompt, sampling or SamplingParams())
        for event in self._events([request_id]):
            if isinstance(event, Delta):
                yield event.text

    def _submit(self, prompt: Prompt, sampling: SamplingParams) -> RequestId:
        token_ids = self._need_encoder().text(prompt) if isinstance(prompt, str) else prompt
        request_id = RequestId(f"local-{next(self._numbers)}")
        self.engine.submit(
            GenerationRequest(request_id=request_id, token_ids=pack(token_ids), sampling=sampling)
        )
        return request_id

    def _events(self, ids: Sequence[RequestId]) -> Iterator[Event]:
        """Step until all of `ids` have ended; whatever stops the caller cancels the rest."""
        open_ids = set(ids)
        try:
            while open_ids:
                for event in self.engine.step():
                    if isinstance(event, Failed):
                        raise EngineError(f"{event.kind}: {event.message}")
                    if isinstance(event, Finished):
                        open_ids.discard(event.request_id)
                    yield event
        finally:
            for request_id in open_ids:
                self.engine.cancel(request_id)

    def _need_encoder(self) -> PromptEncoder:
        if self._encoder is None:
            raise EngineError("text prompts need a tokenizer; give token ids, or load one")
        return self._encoder
