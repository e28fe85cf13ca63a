"""Text in and out: chat templates, tokenizing, incremental detokenizing, stop strings."""

from prefixcache.text.chat import ChatPrompt, MarkedPrompt, PromptEncoder
from prefixcache.text.detokenize import IncrementalDetokenizer
from prefixcache.text.history import History, KnownStart
from prefixcache.text.marks import Mark
from prefixcache.text.output import OutputText
from prefixcache.text.stops import StopMatcher
from prefixcache.text.template import ChatTemplate, TemplateOption
from prefixcache.text.token_bytes import TokenBytes
from prefixcache.text.tokenizer import Tokenizer

__all__ = [
    "ChatPrompt",
    "ChatTemplate",
    "History",
    "IncrementalDetokenizer",
    "KnownStart",
    "Mark",
    "MarkedPrompt",
    "OutputText",
    "PromptEncoder",
    "StopMatcher",
    "TemplateOption",
    "TokenBytes",
    "Tokenizer",
]
