"""The values that index, engine, text and gateway share. Frozen, small, free of torch."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, NewType

import msgspec

TokenId = NewType("TokenId", int)  # an unsigned 32-bit integer
BlockId = NewType("BlockId", int)  # counts from 0 in the pool of one layer group
LeaseId = NewType("LeaseId", int)
MAX_GRAMMAR_BYTES = 64 * 2**10  # where nothing else is set
RequestId = NewType("RequestId", str)  # made by the server, never by a client


class Span(NamedTuple):
    """`n_blocks` consecutive blocks from `first`: one contiguous slice of the KV store."""

    first: BlockId
    n_blocks: int


class PoolCounts(msgspec.Struct, frozen=True):
    """Blocks of one pool by state; free + cached + held is all of them."""

    free: int
    cached: int  # the tree's alone: given up when room is needed
    held: int  # some running request's


class FinishReason(StrEnum):
    """Why a request's output ended."""

    STOP = "stop"  # an end-of-text token, a stop token or a stop string
    LENGTH = "length"  # max_tokens, its deadline, or the model's context is full


class GrammarKind(StrEnum):
    """What the text of a grammar is."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"  # the whole answer matches it
    CHOICE = "choice"  # a JSON array of texts: the answer is one of them
    LARK = "lark"  # a context-free grammar in Lark's notation; its first rule is `start`
    EBNF = "ebnf"  # Lark's notation or GBNF, whichever it looks like


# Between the parts of a JSON answer: a blank, or a new line and its indentation. More has no use,
# and small models like to go on with it.
JSON_WHITE_SPACE = r"[ \t]|\r?\n[ ]{0,32}|\r?\n\t{0,8}"


class Grammar(msgspec.Struct, frozen=True):
    """What an answer's text must follow. A JSON schema's unknown keywords may be passed over."""

    kind: GrammarKind
    text: str
    is_lenient: bool = False


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How output tokens are chosen and when they end.

    `temperature` 0, or so small that float32 cannot tell it from 0, is greedy. With a `seed`, the
    same request gives the same tokens wherever its logits are the same. Logits pass, in this order:
    the penalties, `logit_bias`, `min_tokens`, the temperature, `min_p`, `top_k`, `top_p`.
    """

    max_tokens: int = 256  # 0: the prompt is read and nothing said
    min_tokens: int = 0  # so many come before a token may end the answer
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0  # tokens less likely than this share of the best one's chance are left out
    repetition_penalty: float = 1.0  # on tokens of prompt and output; above 1 discourages
    presence_penalty: float = 0.0  # off the logit of each token of the output
    frequency_penalty: float = 0.0  # off the logit of a token, for each time it is in the output
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, what is added to its logit)
    seed: int | None = None
    choice: int = 0  # which of the answers to one prompt: with one seed, each has its own chance
    grammar: Grammar | None = None  # its end ends the answer, whatever min_tokens says
    top_scores: int | None = None  # the best so many tokens beside each chosen one; None: no scores
    prompt_scores: int | None = None  # the same for the prompt's tokens, whose KV is not reused
    stop: tuple[str, ...] = ()  # matched in the text; never part of the output
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    shown_special_ids: tuple[int, ...] = ()  # special tokens whose spelling is in the text


class Retain(msgspec.Struct, frozen=True):
    """Keep the first `n_tokens` tokens of a prompt cached for `seconds` from its last use."""

    n_tokens: int
    seconds: float


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt to continue."""

    request_id: RequestId
    token_ids: bytes  # packed: little-endian uint32 (prefixcache.index.tokens.pack)
    sampling: SamplingParams
    tenant: str = "default"
    adapter: str | None = None  # the name of a loaded one; None: the model as it is
    salt: str | None = None  # narrows the tenant's namespace
    read_cache: bool = True
    store_cache: bool = True
    retain: tuple[Retain, ...] = ()  # as far as the tenant's budget for that goes
    priority: int = 0  # the lowest number is served first
    deadline_seconds: float | None = None  # from when the engine takes it; None: no limit


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one request.

    `cached_tokens`: prompt tokens whose KV it did not compute, as of its first admission;
    always below `prompt_tokens`. `written_tokens`: prompt tokens beyond these that it left in
    the cache for others, in whole blocks.
    """

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    written_tokens: int = 0


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The request was admitted; sent once, before any output."""

    request_id: RequestId
    prompt_tokens: int
    cached_tokens: int
    tier_tokens: dict[str, int] = {}  # of the cached ones, those loaded from below the device


class TokenScore(msgspec.Struct, frozen=True):
    """How likely a token was: natural logarithms of what the model's own logits say.

    Neither penalties nor bias nor temperature are in it.
    """

    token_id: int
    logprob: float  # -inf is possible
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob), the most likely first


class PromptScores(msgspec.Struct, frozen=True, tag="prompt_scores"):
    """Scores of the prompt's tokens as they are read, in order, before any output.

    The first token of a prompt has none: the first score is of the second token.
    """

    request_id: RequestId
    scores: tuple[TokenScore, ...]


class Delta(msgspec.Struct, frozen=True, tag="delta", gc=False):
    """New output. `text` may be empty while a character or a stop string is incomplete."""

    request_id: RequestId
    text: str
    token_ids: tuple[int, ...]
    scores: tuple[TokenScore, ...] = ()  # one for each token id, if they were asked for


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """The request ended by itself; nothing follows."""

    request_id: RequestId
    reason: FinishReason
    usage: Usage
    stop: str | None = None  # the stop string that ended it


class FailureKind(StrEnum):
    """What went wrong with a request, for callers to act on."""

    TOO_LARGE = "too_large"  # can never fit the model or the pool
    INVALID = "invalid"
    GRAMMAR = "grammar"  # what the answer must follow cannot be compiled, or followed further
    CANCELLED = "cancelled"
    OVERLOADED = "overloaded"  # the queue is full
    QUEUE_TIMEOUT = "queue_timeout"  # it waited for max_queue_seconds
    DEADLINE = "deadline"  # its deadline came before any output
    WORKER_DIED = "worker_died"
    INTERNAL = "internal"


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The request ended by an error or was cancelled; nothing follows."""

    request_id: RequestId
    kind: FailureKind
    message: str
    usage: Usage | None = None  # what it used until then


Event = Started | PromptScores | Delta | Finished | Failed


class TierStats(msgspec.Struct, frozen=True, kw_only=True):
    """One tier below the device: counters since the engine started and gauges of now."""

    size_bytes: int | None = None  # None: not known here
    used_bytes: int | None = None
    is_out: bool = False  # it has failed, and is left alone for some time
    hit_requests: int = 0  # that something was loaded for
    hit_tokens: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    waiting_bytes: int = 0  # to be written
    dropped_bytes: int = 0  # not written: no room, or it was out
    refused_blocks: int = 0  # read, and not what was asked for
    failures: int = 0  # calls that failed


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since the engine started (never falling) and gauges of now."""

    pool: PoolCounts
    running: int
    waiting: int
    steps_total: int
    prompt_tokens_total: int
    cached_tokens_total: int
    computed_tokens_total: int  # prompt and output tokens fed to the model
    output_tokens_total: int
    evicted_blocks_total: int
    preemptions_total: int
    moved_blocks_total: int = 0  # whose KV was brought elsewhere, so that prefixes lie together
    drafted_tokens_total: int = 0  # guessed and fed beside the last token
    accepted_tokens_total: int = 0  # of those, what proved right: steps that were saved
    waiting_tokens: int = 0  # of those who wait
    longest_free_run: int = 0  # consecutive free blocks of the pool
    tiers: dict[str, TierStats] = {}  # by name
    misses: dict[str, int] = {}  # requests that did not find all of their prompt, by reason


class AdapterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One load of an adapter."""

    name: str  # what requests ask for
    folder: str
    rank: int  # the largest of its layers
    n_layers: int  # linear layers that it adds to
    load_id: str  # differs at every load, whatever the name


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The model that an engine has loaded."""

    name: str
    folder: str  # tokenizer.json and the chat template lie here
    vocab_size: int  # rows of the output layer
    max_model_tokens: int  # prompt and output together
    eos_token_ids: tuple[int, ...]
    kv_bytes_per_token: int
    pool_blocks: int
    block_size_tokens: int
    dtype: str  # of activations, and of keys and values as they are computed
    weights: str  # what the matrix products read: float32, float16, bfloat16 or int8
    device: str
    load_id: str  # differs at every load, whatever the name
    kept_as: str = "auto"  # the format of keys and values in the store; auto: dtype
    kv_prune: str | None = None  # first and recent tokens that are seen, as 4+1024; None: all
    max_grammar_bytes: int = MAX_GRAMMAR_BYTES  # of what one answer must follow
    adapters: tuple[AdapterInfo, ...] = ()  # loaded now, in order of their first load

    @property
    def kv_format(self) -> str:
        """What makes KV unusable elsewhere beside the model: numbers, weights', what was seen."""
        kept_as = self.dtype if self.kept_as == "auto" else self.kept_as
        kv = "" if kept_as == self.dtype else f", kept as {kept_as}"
        pruned = "" if self.kv_prune is None else f", pruned to {self.kv_prune}"
        return f"{self.dtype}, weights {self.weights}{kv}{pruned}"
