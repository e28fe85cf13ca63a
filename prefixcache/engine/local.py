"""The engine used in-process: prompts in, texts out, no HTTP."""

from __future__ import annotations

import itertools
import logging
from collections import deque
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
    PromptScores,
    RequestId,
    SamplingParams,
    TokenScore,
    Usage,
)

logger = logging.getLogger(__name__)

Prompt = str | Sequence[int]


@dataclass(frozen=True, slots=True)
class Generation:
    """One finished answer."""

    text: str  # empty without a tokenizer
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    scores: tuple[TokenScore, ...] = ()  # one for each token id, if asked for
    prompt_scores: tuple[TokenScore, ...] = ()  # from the prompt's second token on, if asked for


@dataclass(frozen=True, slots=True)
class CacheUse:
    """What a request does with the prefix cache."""

    read: bool = True
    store: bool = True
    salt: str | None = None  # shares with requests of the same salt alone


GREEDY = SamplingParams()
SHARED = CacheUse()


@dataclass(slots=True)
class _Partial:
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    scores: list[TokenScore] = field(default_factory=list)
    prompt_scores: list[TokenScore] = field(default_factory=list)

    def take(self, event: Event) -> None:
        """Add what `event` brings."""
        if isinstance(event, PromptScores):
            self.prompt_scores += event.scores
        elif isinstance(event, Delta):
            self.texts.append(event.text)
            self.token_ids += event.token_ids
            self.scores += event.scores

    def finished(self, event: Finished) -> Generation:
        """Return the whole answer."""
        return Generation(
            text="".join(self.texts),
            token_ids=tuple(self.token_ids),
            finish_reason=event.reason,
            usage=event.usage,
            scores=tuple(self.scores),
            prompt_scores=tuple(self.prompt_scores),
        )


class LocalModel:
    """A model with a prefix cache, for one thread of one process.

    Calls share the cache: what one prompt has read, the next one that begins alike reuses.
    Streams may be read in turns, and left at any time.
    """

    def __init__(self, engine: Engine, encoder: PromptEncoder | None = None) -> None:
        self.engine = engine
        self._encoder = encoder
        self._numbers = itertools.count()
        self._inboxes: dict[RequestId, deque[Event]] = {}  # of requests that somebody reads

    @classmethod
    def load(
        cls,
        config: EngineConfig,
        *,
        env: Mapping[str, str],
        report: Callable[[str], None] = logger.info,
    ) -> LocalModel:
        """Load the model that `config` names; see `Engine.load` for arguments and errors."""
        engine = Engine.load(config, env=env, report=report)
        return cls(engine, PromptEncoder.load(Path(engine.info.folder)))

    @classmethod
    def from_model(
        cls,
        model: PreTrainedModel,
        config: EngineConfig | None = None,
        *,
        encoder: PromptEncoder | None = None,
    ) -> LocalModel:
        """Take over a transformers model in memory; without an encoder, prompts are token ids.

        Raises:
            ConfigError, UnsupportedModelError: as `Engine.from_model`.
        """
        tokenizer = None if encoder is None else encoder.tokenizer
        return cls(Engine.from_model(model, config, tokenizer=tokenizer), encoder)

    def generate(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingParams = GREEDY,
        cache: CacheUse = SHARED,
        *,
        adapter: str | None = None,
    ) -> list[Generation]:
        """Continue all prompts as one batch; answers come in the order of the prompts.

        `adapter`: one that the engine has loaded; None: the model as it is.

        Raises:
            EngineError: a prompt was refused or failed; the others were let go.
            TokenIdError, TextError: a prompt cannot be encoded; nothing was started.
        """
        ids = self._submit(prompts, sampling, cache, adapter)
        partial = {request_id: _Partial() for request_id in ids}
        done: dict[RequestId, Generation] = {}
        for event in self._events(ids):
            partial[event.request_id].take(event)
            if isinstance(event, Finished):
                done[event.request_id] = partial[event.request_id].finished(event)
        return [done[request_id] for request_id in ids]

    def chat(
        self,
        messages: Sequence[Mapping[str, object]],
        sampling: SamplingParams = GREEDY,
        cache: CacheUse = SHARED,
        *,
        adapter: str | None = None,
    ) -> Generation:
        """Answer a conversation; `messages` as in the OpenAI API.

        Raises:
            TemplateError: the model's template refuses the messages.
            EngineError: as `generate`.
        """
        return self.generate(
            [self._need_encoder().chat(messages)], sampling, cache, adapter=adapter
        )[0]

    def stream(
        self,
        prompt: Prompt,
        sampling: SamplingParams = GREEDY,
        cache: CacheUse = SHARED,
        *,
        adapter: str | None = None,
    ) -> Iterator[str]:
        """Yield the answer's text as it comes; closing the iterator cancels the request.

        Raises:
            EngineError, TokenIdError, TextError: as `generate`, from the first `next` on.
        """
        for event in self._events(self._submit([prompt], sampling, cache, adapter)):
            if isinstance(event, Delta):
                yield event.text

    def close(self) -> None:
        """See `Engine.close`."""
        self.engine.close()

    def _submit(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingParams,
        cache: CacheUse,
        adapter: str | None,
    ) -> list[RequestId]:
        packed = [
            pack(self._need_encoder().text(prompt) if isinstance(prompt, str) else prompt)
            for prompt in prompts
        ]
        ids = [RequestId(f"local-{next(self._numbers)}") for _ in packed]
        for request_id, token_ids in zip(ids, packed, strict=True):
            self._inboxes[request_id] = deque()
            self.engine.submit(
                GenerationRequest(
                    request_id=request_id,
                    token_ids=token_ids,
                    sampling=sampling,
                    adapter=adapter,
                    salt=cache.salt,
                    read_cache=cache.read,
                    store_cache=cache.store,
                )
            )
        return ids

    def _events(self, ids: Sequence[RequestId]) -> Iterator[Event]:
        """Yield what comes for `ids` until all have ended; whoever stops reading cancels them."""
        n_open = len(ids)
        try:
            while n_open:
                event = self._next_event(ids)
                if isinstance(event, Failed):
                    raise EngineError(f"{event.kind}: {event.message}")
                if isinstance(event, Finished):
                    n_open -= 1
                yield event
        finally:
            for request_id in ids:
                del self._inboxes[request_id]
                self.engine.cancel(request_id)

    def _next_event(self, ids: Sequence[RequestId]) -> Event:
        """Return the next event of `ids`, stepping until there is one; others' are kept."""
        while True:
            for request_id in ids:
                if self._inboxes[request_id]:
                    return self._inboxes[request_id].popleft()
            for event in self.engine.step():
                inbox = self._inboxes.get(event.request_id)
                if inbox is not None:  # else its reader has left
                    inbox.append(event)

    def _need_encoder(self) -> PromptEncoder:
        if self._encoder is None:
            raise EngineError("text prompts need a tokenizer; give token ids, or load one")
        return self._encoder
