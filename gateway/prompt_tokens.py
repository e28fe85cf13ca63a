"""What of a prompt a published system message fixes, as its model's template shows it."""

from __future__ import annotations

from gateway.errors import ContextLengthError, InvalidRequestError
from gateway.published import PublishedPrompt
from prefixcache.errors import PromptTooLongError, TemplateError
from prefixcache.index import pack
from prefixcache.text import Mark, PromptEncoder
from prefixcache.types import ModelInfo

_FIRST_TURN = {"role": "user", "content": "Hello"}  # it ends before this turn's text does


def shared_tokens(
    encoder: PromptEncoder, info: ModelInfo, prompt: PublishedPrompt, *, order_tool_keys: bool
) -> bytes:
    """Return the tokens, packed, with which every conversation with `prompt` begins.

    Raises:
        ContextLengthError: it leaves no room for a conversation.
        InvalidRequestError: the model's template refuses it, in the template's words.

    Cost: three prompts of its length are encoded. It blocks: not for an event loop.
    """
    most = info.max_model_tokens * encoder.tokenizer.longest_spelling_characters
    try:
        found = encoder.marked_chat(
            [{"role": "system", "content": prompt.system}, _FIRST_TURN],
            [Mark(0)],
            tools=prompt.tools or None,
            order_tool_keys=order_tool_keys,
            max_characters=most,
        )
    except PromptTooLongError as error:
        raise ContextLengthError(
            error.found_characters, info.max_model_tokens, "system", "characters"
        ) from error
    except TemplateError as error:
        raise InvalidRequestError(f"system: {error}", "system") from error
    return pack(found.token_ids[: found.fixed_tokens[0]])
