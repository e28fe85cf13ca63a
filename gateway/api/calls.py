"""From prompts and wishes to what the engine is asked, for every dialect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from msgspec.structs import replace

from gateway.api.wishes import Bound, Wishes
from gateway.errors import ContextLengthError, InvalidRequestError
from gateway.own_answers import Recorder, ScopedHistory
from gateway.served import Call, Served
from gateway.service import Service
from gateway.tenants import Tenant
from prefixcache.errors import PromptTooLongError, TemplateError
from prefixcache.index import pack
from prefixcache.text import TemplateOption
from prefixcache.types import GenerationRequest, RequestId


@dataclass(frozen=True, slots=True)
class Prompts:
    """Tokenized prompts, and the field of the body that they came from."""

    param: str
    token_ids: Sequence[Sequence[int]]
    origin: Origin | None = None  # of a single one


@dataclass(frozen=True, slots=True)
class Origin:
    """The text that a conversation's prompt was made of, and where its answers are remembered."""

    history: ScopedHistory
    text: str
    mark: str | None

    def recorder(self, requests: Sequence[GenerationRequest], served: Served) -> Recorder | None:
        """Return what remembers the answers to `requests`, if what they compute stays cached."""
        if not all(request.store_cache for request in requests):
            return None
        tokenizer = served.encoder.tokenizer
        return Recorder(self.history, self.text, self.mark, requests, tokenizer)


def check_count(param: str, found: int, limit: int) -> None:
    """Raise InvalidRequestError when more than `limit` of something were sent."""
    if found > limit:
        raise InvalidRequestError(f"{param}: {found} is over this server's limit of {limit}", param)


def check_vocabulary(param: str, token_ids: Sequence[int], served: Served) -> None:
    """Raise InvalidRequestError when a token id is not below the model's vocabulary."""
    highest = max(token_ids, default=0)
    if highest >= served.info.vocab_size:
        raise InvalidRequestError(
            f"{param}: token id {highest}; this model has token ids below {served.info.vocab_size}",
            param,
        )


def make_call(
    service: Service, tenant: Tenant, served: Served, prompts: Prompts, wishes: Wishes
) -> Call:
    """Return what the engine is asked: each prompt `n_choices` times, as choices of one seed.

    `max_tokens` is cut to what fits the model.

    Raises:
        InvalidRequestError: a prompt is empty, a token id is not in the vocabulary, or a grammar
            is too long.
        ContextLengthError: a prompt leaves no room for output.
    """
    check_vocabulary("stop_token_ids", wishes.stop_token_ids, served)
    _check_grammar(wishes.bound, served)
    requests: list[GenerationRequest] = []
    for token_ids in prompts.token_ids:
        room = _room(prompts.param, token_ids, served)
        max_tokens = room if wishes.max_tokens is None else min(wishes.max_tokens, room)
        sampling = wishes.sampling(max_tokens, served)
        packed = pack(token_ids)
        requests += [
            GenerationRequest(
                request_id=RequestId(service.new_id()),
                token_ids=packed,
                sampling=replace(sampling, choice=choice_index),
                tenant=tenant.name,
                adapter=served.adapter,
                salt=wishes.salt,
                read_cache=wishes.read_cache,
                store_cache=wishes.store_cache,
                retain=wishes.retain,
                priority=wishes.priority,
                deadline_seconds=wishes.deadline_seconds,
            )
            for choice_index in range(wishes.n_choices)
        ]
    grammar_param = None if wishes.bound is None else wishes.bound.param
    recorder = None if prompts.origin is None else prompts.origin.recorder(requests, served)
    return Call(tuple(requests), wishes.n_choices, grammar_param, recorder)


@contextmanager
def prompt_of(param: str, served: Served) -> Iterator[None]:
    """Have a prompt that is refused for its length, untokenized, be the fault of `param`.

    Raises:
        ContextLengthError: in place of the encoder's PromptTooLongError.
    """
    try:
        yield
    except PromptTooLongError as error:
        raise ContextLengthError(
            error.found_characters, served.info.max_model_tokens, param, "characters"
        ) from error


def with_options(served: Served, options: Mapping[str, TemplateOption] | None) -> Served:
    """Return the model with what a client tells its chat template beside the messages.

    Raises:
        InvalidRequestError: the template cannot be told so.
    """
    if not options:
        return served
    try:
        return served.with_options(options)
    except TemplateError as error:
        param = "chat_template_kwargs"
        raise InvalidRequestError(f"{param}: {error}", param) from error


def _room(param: str, token_ids: Sequence[int], served: Served) -> int:
    """Return how many tokens of output fit after a prompt, which is checked."""
    if not token_ids:
        raise InvalidRequestError(f"{param}: an empty prompt", param)
    room = served.info.max_model_tokens - len(token_ids)
    if room < 1:
        raise ContextLengthError(len(token_ids), served.info.max_model_tokens, param)
    check_vocabulary(param, token_ids, served)
    return room


def _check_grammar(bound: Bound | None, served: Served) -> None:
    """Refuse a grammar that the engine would not compile, before each choice takes it along."""
    limit_bytes = served.info.max_grammar_bytes
    if bound is not None and (found_bytes := len(bound.grammar.text.encode())) > limit_bytes:
        raise InvalidRequestError(
            f"{bound.param}: a grammar of {found_bytes} bytes; this server compiles at most"
            f" {limit_bytes}",
            bound.param,
        )
