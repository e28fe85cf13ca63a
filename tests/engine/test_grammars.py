"""Answers that must follow a grammar: what comes out, how it ends, and who waits for whom."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prefixcache.engine import compiling
from prefixcache.engine.compiling import GrammarCompiler
from prefixcache.engine.grammar import GrammarVocabulary, Matcher
from prefixcache.errors import GrammarError
from prefixcache.text import Tokenizer
from prefixcache.types import Failed, FailureKind, FinishReason, Grammar, GrammarKind, RequestId
from tests.support.models import Bench, prompt_ids
from tests.support.tokenizers import write_chat_tokenizer, write_piece_tokenizer

END = 2  # the tokenizer's end of a turn
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_chat_tokenizer(folder)
    return Tokenizer.load(folder)


@pytest.fixture
def bench(tokenizer: Tokenizer) -> Bench:
    return Bench(tokenizer=tokenizer, eos_token_id=END)


def schema(value: object) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value))


@pytest.mark.parametrize("temperature", [0.0, 1.0, 3.0])
def test_answers_follow_a_schema(bench: Bench, temperature: float) -> None:
    """A model of random weights still answers with an object that the schema allows."""
    for seed in range(4):
        answer = bench.run(
            prompt_ids(9, seed), 300, grammar=schema(PERSON), temperature=temperature, seed=seed
        )
        assert answer.finished.reason is FinishReason.STOP
        value = json.loads(answer.text)
        assert list(value) == ["name", "age", "tags"]
        assert len(value["name"]) <= 8
        assert 0 <= value["age"] <= 150
        assert set(value["tags"]) <= {"x", "y"}


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        (Grammar(GrammarKind.REGEX, "[0-9]{3}-[a-f]{2,4}"), "[0-9]{3}-[a-f]{2,4}"),
        (Grammar(GrammarKind.CHOICE, '["yes", "no \\"x\\"", "grün\\n"]'), 'yes|no "x"|grün\n'),
        (Grammar(GrammarKind.LARK, 'start: "a" start "b" | "c"'), "a*cb*"),
        (Grammar(GrammarKind.EBNF, 'root ::= "a" | "b" root'), "b*a"),
    ],
)
def test_answers_follow_each_kind(bench: Bench, grammar: Grammar, pattern: str) -> None:
    """Expressions, choices and grammars, in both notations, allow exactly their texts."""
    texts = set()
    for seed in range(12):
        options: dict[str, Any] = {"temperature": 2.0, "seed": seed}
        answer = bench.run(prompt_ids(9, seed), 120, grammar=grammar, **options)
        assert answer.finished.reason is FinishReason.STOP
        assert re.fullmatch(pattern, answer.text)
        texts.add(answer.text)
    assert len(texts) > 1


def test_a_choice_may_be_what_another_begins_with(bench: Bench) -> None:
    """Where one choice goes on from another, both can come: the shorter one ends by itself."""
    grammar = Grammar(GrammarKind.CHOICE, '["the", "the question"]')
    texts = {
        bench.run(prompt_ids(5, seed), 30, grammar=grammar, temperature=5.0, seed=seed).text
        for seed in range(30)
    }
    assert texts == {"the", "the question"}


def test_an_answer_cut_short_says_so(bench: Bench) -> None:
    """max_tokens goes before the grammar's end, and finish_reason tells."""
    answer = bench.run(prompt_ids(9), 4, grammar=schema(PERSON))
    assert answer.finished.reason is FinishReason.LENGTH
    assert answer.finished.usage.output_tokens == 4


def test_the_grammars_end_ends_answers_without_an_end_token(tokenizer: Tokenizer) -> None:
    """A model with no end of text, and a request that ignores it, end with the grammar."""
    grammar = Grammar(GrammarKind.REGEX, "[ab]{5}")
    endless = Bench(tokenizer=tokenizer)
    assert endless.run(prompt_ids(9), 50, grammar=grammar).finished.reason is FinishReason.STOP
    bench = Bench(tokenizer=tokenizer, eos_token_id=END)
    answer = bench.run(prompt_ids(9), 50, grammar=grammar, ignore_eos=True, min_tokens=40)
    assert answer.finished.reason is FinishReason.STOP
    assert re.fullmatch("[ab]{5}", answer.text)


def test_neighbours_of_a_grammar_answer_as_alone(bench: Bench) -> None:
    """A mask is its own row's: requests without a grammar, or with another, see nothing of it."""
    options: list[dict[str, Any]] = [
        {"grammar": schema(PERSON), "temperature": 1.0, "seed": 1},
        {},
        {"grammar": Grammar(GrammarKind.REGEX, "[0-9]+x"), "temperature": 1.0, "seed": 2},
        {"temperature": 1.0, "seed": 3},
    ]
    alone = [bench.run(prompt_ids(9, i), 40, **each).text for i, each in enumerate(options)]
    for index, each in enumerate(options):
        bench.submit(str(index), prompt_ids(9, index), 40, **each)
    bench.drain()
    assert [bench.answers[str(index)].text for index in range(4)] == alone


def test_preemption_keeps_the_grammars_state(tokenizer: Tokenizer) -> None:
    """Answers that were preempted midway are those of a roomy pool."""
    roomy = Bench(tokenizer=tokenizer, eos_token_id=END)
    grammar = Grammar(GrammarKind.REGEX, "([ab]{3}-){8}[cd]{4}")
    options: dict[str, Any] = {"grammar": grammar, "temperature": 1.5, "seed": 4}
    expected = [roomy.run(prompt_ids(30, seed), 60, **options).text for seed in range(3)]
    tight = Bench(n_blocks=30, growth_blocks=0, tokenizer=tokenizer, eos_token_id=END)
    for seed in range(3):
        tight.submit(str(seed), prompt_ids(30, seed), 60, **options)
    tight.drain()
    assert tight.engine.stats().preemptions_total > 0
    assert [tight.answers[str(seed)].text for seed in range(3)] == expected
    assert all(re.fullmatch(grammar.text, text) for text in expected)


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (schema({"type": "wrong"}), "wrong"),
        (schema({"$ref": "#/nowhere"}), "nowhere"),
        (schema({"not": {"type": "string"}}), "not"),
        (Grammar(GrammarKind.JSON_SCHEMA, "{"), ""),
        (Grammar(GrammarKind.JSON_SCHEMA, "5"), ""),
        (Grammar(GrammarKind.REGEX, "("), "unclosed"),
        (Grammar(GrammarKind.REGEX, "(?=a)b"), "look-a"),
        (Grammar(GrammarKind.LARK, "start: nothing"), "nothing"),
        (Grammar(GrammarKind.LARK, "start: " + "(" * 3000 + '"a"' + ")" * 3000), "nested"),
        (Grammar(GrammarKind.REGEX, "(" * 9000 + "a" + ")" * 9000), ""),
        (Grammar(GrammarKind.JSON_SCHEMA, '{"anyOf":[' * 3000 + "{}" + "]}" * 3000), "recursion"),
        (Grammar(GrammarKind.REGEX, "a" * 70_000), "70000 bytes"),
    ],
)
def test_a_bad_grammar_fails_alone_with_its_reason(
    bench: Bench, grammar: Grammar, reason: str
) -> None:
    """What cannot be compiled is refused with the compiler's words; the next request works."""
    bench.submit("bad", prompt_ids(9), 4, grammar=grammar)
    bench.submit("good", prompt_ids(9), 4)
    bench.drain()
    failed = bench.answers["bad"].failed
    assert failed.kind is FailureKind.GRAMMAR
    assert reason in failed.message
    assert len(failed.message) < 2000
    assert len(bench.answers["good"].token_ids) == 4
    assert bench.n_held == 0


def test_an_expression_that_holds_up_everybody_is_refused(bench: Bench) -> None:
    """One that takes a good part of a second to be followed ends its own answer instead."""
    long, usual = (Grammar(GrammarKind.REGEX, f"a{{{n}}}") for n in (150_000, 30_000))
    assert bench.run(prompt_ids(9), 4, grammar=long).failed.kind is FailureKind.GRAMMAR
    assert bench.run(prompt_ids(9), 4, grammar=usual).text == "aaaa"


def test_a_schema_that_no_text_follows_says_so(bench: Bench) -> None:
    """What refers to itself and to nothing else allows no answer; the error is for people."""
    failed = bench.run(prompt_ids(9), 4, grammar=schema({"$ref": "#"})).failed
    assert failed.kind is FailureKind.GRAMMAR
    assert "no text" in failed.message


def test_a_long_chain_of_references_does_not_break_the_process(bench: Bench) -> None:
    """The longest chain that fits a request is compiled or refused; the engine lives on."""
    n = 2180
    chain: dict[str, Any] = {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(n)}
    value = {"$defs": chain | {str(n): {"const": 7}}, "$ref": "#/$defs/0"}
    text = json.dumps(value, separators=(",", ":"))
    grammar = Grammar(GrammarKind.JSON_SCHEMA, text)
    assert 0.95 < len(text) / bench.config.max_grammar_bytes <= 1
    assert bench.run(prompt_ids(9), 8, grammar=grammar).text == "7"


def test_unknown_keywords_are_passed_over_where_that_is_asked_for(bench: Bench) -> None:
    """A lenient schema follows what is known of it; a strict one is refused."""
    value = {"const": 5, "not": {"type": "string"}}
    lenient = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value), is_lenient=True)
    assert bench.run(prompt_ids(9), 9, grammar=lenient).text == "5"
    assert bench.run(prompt_ids(9), 9, grammar=schema(value)).failed.kind is FailureKind.GRAMMAR


class Gate:
    """A compiler that waits until it is told to go on."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.n_compiled = 0

    def compile(self, grammar: Grammar) -> Matcher:
        assert self.open.wait(30)
        self.n_compiled += 1
        raise GrammarError("as the test says")


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate()
    monkeypatch.setattr(compiling.ModelGrammars, "__call__", made.compile)
    yield made
    made.open.set()


def test_compiling_keeps_nobody_waiting(bench: Bench, gate: Gate) -> None:
    """While a grammar is compiled, others are served; then its request is told."""
    bench.submit("slow", prompt_ids(9), 4, grammar=Grammar(GrammarKind.REGEX, "a"))
    bench.submit("quick", prompt_ids(9), 6)
    bench.step_until(lambda: bench.answers["quick"].ending is not None)
    assert len(bench.answers["quick"].token_ids) == 6
    assert bench.answers["slow"].ending is None
    assert bench.engine.has_work
    gate.open.set()
    bench.drain()
    assert "as the test says" in bench.answers["slow"].failed.message


def test_a_request_that_compiles_can_be_cancelled(bench: Bench, gate: Gate) -> None:
    """Cancelling ends it at once, and its id is free again."""
    grammar = Grammar(GrammarKind.REGEX, "a")
    for _ in range(2):
        bench.submit("slow", prompt_ids(9), 4, grammar=grammar)
        bench.engine.cancel(RequestId("slow"))
        bench.step()
        assert bench.answers["slow"].failed.kind is FailureKind.CANCELLED
    assert not bench.engine.has_work
    assert not gate.open.is_set()


def test_compiling_has_a_time_limit(tokenizer: Tokenizer, gate: Gate) -> None:
    """A grammar that takes too long ends its request with a clear error, and only that."""
    now = [0.0]
    bench = Bench(tokenizer=tokenizer, eos_token_id=END, grammar_seconds=5.0, clock=lambda: now[0])
    bench.submit("slow", prompt_ids(9), 4, grammar=Grammar(GrammarKind.REGEX, "a"))
    bench.step()
    assert bench.answers["slow"].ending is None
    now[0] = 5.0
    bench.step()
    ending = bench.answers["slow"].ending
    assert isinstance(ending, Failed)
    assert "within 5 seconds" in ending.message


@pytest.mark.parametrize(
    ("limits", "kind"),
    [
        ({"deadline_seconds": 3.0}, FailureKind.DEADLINE),
        ({}, FailureKind.QUEUE_TIMEOUT),
    ],
)
def test_time_passes_while_a_grammar_is_compiled(
    tokenizer: Tokenizer, gate: Gate, limits: dict[str, Any], kind: FailureKind
) -> None:
    """Deadline and longest wait count from when the engine takes a request, not from later."""
    now = [0.0]
    bench = Bench(tokenizer=tokenizer, max_queue_seconds=4.0, clock=lambda: now[0])
    grammar = Grammar(GrammarKind.REGEX, "a")
    bench.submit("slow", prompt_ids(9), 4, grammar=grammar, **limits)
    bench.step()
    assert bench.answers["slow"].ending is None
    now[0] = 4.0
    bench.step()
    assert bench.answers["slow"].failed.kind is kind
    assert not bench.engine.has_work


def test_a_grammar_that_nobody_waits_for_is_not_compiled(bench: Bench, gate: Gate) -> None:
    """Whoever submits and cancels takes no thread and no time from the grammars of others."""
    n_threads = threading.active_count()
    for number in range(40):
        bench.submit(
            f"r{number}", prompt_ids(9), 4, grammar=Grammar(GrammarKind.REGEX, f"{number}")
        )
    assert threading.active_count() <= n_threads + 2
    for number in range(40):
        bench.engine.cancel(RequestId(f"r{number}"))
    bench.submit("last", prompt_ids(9), 4, grammar=Grammar(GrammarKind.REGEX, "last"))
    gate.open.set()
    bench.drain()
    assert "as the test says" in bench.answers["last"].failed.message
    assert gate.n_compiled <= 3


def test_a_grammar_that_somebody_else_waits_for_is_compiled(bench: Bench, gate: Gate) -> None:
    """Cancelling one of two requests with one grammar changes nothing for the other."""
    for number in range(3):  # the third waits for its turn
        grammar = Grammar(GrammarKind.REGEX, f"{number}")
        bench.submit(f"a{number}", prompt_ids(9), 4, grammar=grammar)
        bench.submit(f"b{number}", prompt_ids(9), 4, grammar=grammar)
    bench.engine.cancel(RequestId("a2"))
    gate.open.set()
    bench.drain()
    assert "as the test says" in bench.answers["b2"].failed.message


def test_requests_that_compile_count_as_waiting(tokenizer: Tokenizer, gate: Gate) -> None:
    """The queue's limit holds for them too, and they make room when they are cancelled."""
    bench = Bench(tokenizer=tokenizer, max_waiting_requests=2)
    grammar = Grammar(GrammarKind.REGEX, "a")
    for name in "abc":
        bench.submit(name, prompt_ids(9), 4, grammar=grammar)
    bench.step()
    assert bench.answers["c"].failed.kind is FailureKind.OVERLOADED
    bench.engine.cancel(RequestId("a"))
    bench.submit("d", prompt_ids(9), 4)
    bench.step_until(lambda: bench.answers["d"].ending)
    assert len(bench.answers["d"].token_ids) == 4


class Compiled:
    """Compiles for a test, and knows what."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._vocabulary = GrammarVocabulary(tokenizer, 320, [END])
        self.grammars: list[Grammar] = []

    def __call__(self, grammar: Grammar) -> Matcher:
        self.grammars.append(grammar)
        return Matcher.of(grammar, self._vocabulary)


def test_each_grammar_is_compiled_once(tokenizer: Tokenizer) -> None:
    """Equal grammars share one compilation as long as it is among the latest ones."""
    compiled = Compiled(tokenizer)
    compiler = GrammarCompiler(compiled, max_kept=2, max_bytes=2**40)
    first, second, third = (Grammar(GrammarKind.REGEX, text) for text in "abc")
    for grammar in (first, second, first, third, first, second):
        compiler.compile(grammar).result(30)
    assert compiled.grammars == [first, second, third, second]


def test_kept_grammars_have_a_bound_in_bytes(tokenizer: Tokenizer) -> None:
    """A long text pushes out those that were not asked for lately; the latest one stays."""
    compiled = Compiled(tokenizer)
    compiler = GrammarCompiler(compiled, max_kept=64, max_bytes=4 * 2**20)
    small = [Grammar(GrammarKind.REGEX, f"a{{9}}{number}") for number in range(4)]
    long = Grammar(GrammarKind.REGEX, "a" * 6_000)  # as much as all small ones and a little more
    for grammar in (*small, long, small[3], small[0], small[3]):
        compiler.compile(grammar).result(30)
    assert compiled.grammars == [*small, long, small[0]]
    longest = Grammar(GrammarKind.REGEX, "b" * 10_000)
    for grammar in (longest, longest, small[3]):
        compiler.compile(grammar).result(30)
    assert compiled.grammars[6:] == [longest, small[3]]


def test_what_follows_a_grammar_makes_it_larger(tokenizer: Tokenizer) -> None:
    """Its lexer's states are kept with it, so that use counts, up to their limit."""
    compiled = Compiled(tokenizer)
    compiler = GrammarCompiler(compiled, max_kept=64, max_bytes=3 * 2**20)
    used, other = (Grammar(GrammarKind.REGEX, f"a+{number}") for number in range(2))
    follower = compiler.compile(used).result(30).copy()
    before = follower.estimated_bytes
    for _ in range(2000):
        follower.advance(tokenizer.encode("a")[-1])
    assert before < 2**20 < 3 * 2**20 < follower.estimated_bytes < 30 * 2**20
    for grammar in (other, used):
        compiler.compile(grammar).result(30)
    assert compiled.grammars == [used, other, used]


def test_vocabularies_of_other_kinds_follow_grammars(tmp_path: Path) -> None:
    """Tokens that are part of a character, and pieces of any shape, are put together rightly."""
    write_piece_tokenizer(tmp_path, [b"\xc3", b"\xbc", b"gr", "n ü".encode(), b"\xf0\x9f"])
    bench = Bench(tokenizer=Tokenizer.load(tmp_path))
    grammar = Grammar(GrammarKind.REGEX, "grün [ü🦊]{3}")
    for seed in range(6):
        answer = bench.run(prompt_ids(5, seed), 60, grammar=grammar, temperature=2.0, seed=seed)
        assert re.fullmatch(grammar.text, answer.text)


class Stuck:
    """A matcher whose library gave up in the middle of an answer."""

    def __init__(self, n_words: int) -> None:
        self.n_words = n_words
        self.is_complete = False
        self.error = "the lexer is too complex"
        self.estimated_bytes = 0

    def copy(self) -> Stuck:
        return self

    def allow(self, mask: object) -> None:
        """Leave the mask as it is: nothing may come."""


def test_a_grammar_that_gives_up_fails_its_request_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hitting a limit of the library midway ends one request, with the reason."""
    monkeypatch.setattr(compiling.ModelGrammars, "__call__", lambda *_: Stuck(320 // 32))
    bench.submit("stuck", prompt_ids(9), 4, grammar=Grammar(GrammarKind.REGEX, "a"))
    bench.submit("good", prompt_ids(9), 4)
    bench.drain()
    failed = bench.answers["stuck"].failed
    assert failed.kind is FailureKind.GRAMMAR
    assert "too complex" in failed.message
    assert len(bench.answers["good"].token_ids) == 4
    assert bench.n_held == 0
