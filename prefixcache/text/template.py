"""Chat templates: messages to one text, as the model was taught to read them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Const, Node, TemplateData
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from prefixcache.errors import ModelError, TemplateError
from prefixcache.text.folder import TOKENIZER_CONFIG, read_settings, special_tokens

TEMPLATE_FILE = "chat_template.jinja"
MORE_TEMPLATES = "additional_chat_templates"  # a folder: NAME.jinja for each named template
_OWN_NAMES = ("messages", "tools", "documents", "add_generation_prompt")

Clock = Callable[[], datetime]
TemplateOption = str | int | float | bool | None


class ChatTemplate:
    """A model's chat template, compiled once, in a sandbox that cannot reach our objects.

    Templates find what transformers gives them: `messages`, `tools`, `documents` (always none),
    `add_generation_prompt`, the special tokens by name, `raise_exception`, `strftime_now`,
    a `tojson` that does not escape HTML, loop controls and `generation` blocks.
    Safe to use from many threads at once.
    """

    def __init__(
        self,
        sources: Mapping[str, str],
        *,
        special_tokens: Mapping[str, str] | None = None,
        now: Clock = datetime.now,
    ) -> None:
        """Compile `sources`, named templates.

        `default` is used for every chat, but for one with tools where there is a `tool_use`.

        Raises:
            TemplateError: a template is not well formed.
        """
        environment = _environment(now)
        self._special_tokens = dict(special_tokens or {})
        self._options: Mapping[str, TemplateOption] = {}
        self._taken = {*_OWN_NAMES, *self._special_tokens, *environment.globals}
        try:
            self._templates = {n: environment.from_string(text) for n, text in sources.items()}
            self.literals = _literals(environment, sources.values())
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"the chat template is not well formed: {error}") from error

    @classmethod
    def load(cls, folder: Path, *, now: Clock = datetime.now) -> ChatTemplate:
        """Read the templates of `folder`; a folder without any gives one that refuses to render.

        chat_template.jinja goes before the `chat_template` of tokenizer_config.json.

        Raises:
            TemplateError: a template is not well formed.
            ModelError: a file cannot be read.
        """
        settings = read_settings(folder)
        files = {file.stem: file for file in (folder / MORE_TEMPLATES).glob("*.jinja")}
        if (folder / TEMPLATE_FILE).exists():
            files["default"] = folder / TEMPLATE_FILE
        sources = _configured(settings.get("chat_template"))
        sources |= {name: _read(file) for name, file in files.items()}
        return cls(sources, special_tokens=special_tokens(settings), now=now)

    def with_options(self, options: Mapping[str, TemplateOption]) -> ChatTemplate:
        """Return the same template, which finds `options` by name as well.

        Raises:
            TemplateError: a name stands for something else already.
        """
        if taken := sorted(self._taken & options.keys()):
            raise TemplateError(f"{taken[0]!r} is no option of a template; leave it out")
        other = copy.copy(self)
        other._options = dict(options)
        return other

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[object] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """Return the prompt's text.

        Raises:
            TemplateError: there is no template, or it refused or failed; a refusal's text is
                the template's own.
        """
        template = self._chosen(has_tools=bool(tools))
        try:
            return template.render(
                {**self._options, **self._special_tokens},
                messages=messages,
                tools=tools or None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
            )
        except _Refusal as refusal:
            raise TemplateError(str(refusal)) from refusal
        except _FAILURES as error:
            raise TemplateError(f"the chat template failed: {error}") from error

    def _chosen(self, *, has_tools: bool) -> jinja2.Template:
        names = ("tool_use", "default") if has_tools else ("default",)
        for name in names:
            if name in self._templates:
                return self._templates[name]
        raise TemplateError(
            f"the model has no chat template: neither {TEMPLATE_FILE} nor a `chat_template` in"
            f" {TOKENIZER_CONFIG}. Use plain completions, or add one to the model's folder."
        )


class _Refusal(jinja2.TemplateError):
    """The template called raise_exception."""


# What a template's own code can raise.
_FAILURES = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class _Generation(Extension):
    """Lets {% generation %} blocks through; they mark answers for training and change no text."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's own interface)

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment(now: Clock) -> ImmutableSandboxedEnvironment:
    # Nothing is escaped: the output is a prompt, not HTML.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    return environment


def _raise_exception(message: object) -> NoReturn:
    raise _Refusal(str(message))


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _literals(environment: jinja2.Environment, sources: Iterable[str]) -> tuple[str, ...]:
    """Return every text that `sources` can write by themselves."""
    found: dict[str, None] = {}
    for source in sources:
        tree = environment.parse(source)
        found |= dict.fromkeys(node.data for node in tree.find_all(TemplateData))
        constants = (node.value for node in tree.find_all(Const))
        found |= dict.fromkeys(value for value in constants if isinstance(value, str))
    return tuple(found)


def _configured(entry: object) -> dict[str, str]:
    """Return the templates of tokenizer_config.json: one text, or a list of named ones."""
    match entry:
        case None:
            return {}
        case str():
            return {"default": entry}
        case list():
            return dict(_named(part) for part in entry)
    raise ModelError(f"`chat_template` in {TOKENIZER_CONFIG} is neither a text nor a list")


def _named(part: object) -> tuple[str, str]:
    match part:
        case {"name": str(name), "template": str(template)}:
            return name, template
    raise ModelError(f"`chat_template` in {TOKENIZER_CONFIG}: each part has a name and a template")


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{file} cannot be read: {error}") from error
