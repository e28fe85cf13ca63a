"""The model that is served, and what one HTTP request asks of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gateway.errors import ModelNotFoundError
from gateway.ledger import Ledger
from gateway.own_answers import Recorder
from prefixcache.text import PromptEncoder, TemplateOption, TokenBytes
from prefixcache.types import GenerationRequest, ModelInfo


@dataclass(frozen=True, slots=True)
class Served:
    """The model that answers, and how prompts become its token ids."""

    name: str
    info: ModelInfo
    encoder: PromptEncoder
    token_bytes: TokenBytes
    since: int  # seconds since the epoch
    parent: str | None = None  # the model's name where `name` is one of its adapters

    @property
    def adapter(self) -> str | None:
        """The adapter that requests for `name` are answered with."""
        return None if self.parent is None else self.name

    @property
    def names(self) -> tuple[str, ...]:
        """What clients may ask for: the model, then its adapters."""
        return (self.parent or self.name, *(adapter.name for adapter in self.info.adapters))

    def called(self, name: str) -> Served:
        """Return the model or the adapter that is called `name`. Raises ModelNotFoundError."""
        base = self.parent or self.name
        if name == base:
            return self if self.parent is None else replace(self, name=base, parent=None)
        if name not in self.names:
            raise ModelNotFoundError(name, *self.names)
        return replace(self, name=name, parent=base)

    def with_options(self, options: Mapping[str, TemplateOption]) -> Served:
        """Return the model with a chat template that finds `options`. Raises TemplateError."""
        return replace(self, encoder=self.encoder.with_options(options))

    @property
    def max_characters(self) -> int:
        """The most characters that the model's context could hold, were each token its longest."""
        return self.info.max_model_tokens * self.encoder.tokenizer.longest_spelling_characters


@dataclass(frozen=True, slots=True)
class Call:
    """What one HTTP request asks of the engine: choice c of prompt p is requests[p*n + c]."""

    requests: tuple[GenerationRequest, ...]
    choices_per_prompt: int
    grammar_param: str | None = None  # the field that says what the answers must follow
    recorder: Recorder | None = None  # remembers the answers, to know them again

    def ledger(self) -> Ledger:
        """Return a fresh account for the call."""
        return Ledger(n_requests=len(self.requests), choices_per_prompt=self.choices_per_prompt)
