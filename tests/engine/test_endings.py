"""How answers end, through a real engine whose model says what a test wrote for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prefixcache.text import Tokenizer
from prefixcache.types import FinishReason
from tests.support.models import Answer, Bench
from tests.support.tokenizers import write_piece_tokenizer

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
END = "\u2021"  # the piece that ends a turn, where a test has one


def said(
    folder: Path, pieces: list[str | bytes], n_tokens: int | None = None, **sampling: Any
) -> Answer:
    """Let the model say `pieces`, one token each, and return what the engine makes of them."""
    spelled = [piece if isinstance(piece, bytes) else piece.encode() for piece in pieces]
    write_piece_tokenizer(folder, spelled)
    ids = {piece: token for token, piece in enumerate(dict.fromkeys(spelled))}
    bench = Bench(
        tokenizer=Tokenizer.load(folder),
        eos_token_id=ids.get(END.encode(), 319),
        script=[ids[piece] for piece in spelled],
    )
    answer = bench.run([300], n_tokens or len(pieces), **sampling)
    assert bench.n_held == 0
    return answer


def test_a_stop_string_over_several_tokens_ends_the_answer(tmp_path: Path) -> None:
    """The text ends before the stop string, no delta shows any of it, and the model rests."""
    pieces: list[str | bytes] = ["Once up", "on a", " ti", "me now", " and", " ever"]
    answer = said(tmp_path, pieces, stop=("on a time",))
    assert answer.text == "Once up"
    assert answer.finished.reason is STOP
    assert answer.finished.stop == "on a time"
    assert answer.finished.usage.output_tokens == 4
    assert answer.texts == ["Once up", "", "", ""]


@pytest.mark.parametrize(
    ("pieces", "stop", "text"),
    [
        (["<br>", "<br>", "!"], ("><",), "<br"),
        (["go ", "left", " now"], ("left now", "left"), "go "),
        (["go ", "left", " now"], ("left", "left now"), "go "),
        (["pq", "rs", "tu"], ("rst", "qr"), "p"),
        (["\u00fc\u3059", "\u3057\u00e9", "z"], ("\u3059\u3057",), "\u00fc"),
        (["say ", b"\xe3\x81", b"\x99", " more"], ("\u3059",), "say "),
        (["a", "b", "a", "b", "c", "d"], ("abc",), "ab"),
        (["all ", "of ", "it"], ("never",), "all of it"),
        (["all ", "of ", "it"], ("", "it"), "all of "),
    ],
)
def test_deltas_add_up_to_the_text_before_the_earliest_stop(
    tmp_path: Path, pieces: list[str | bytes], stop: tuple[str, ...], text: str
) -> None:
    """Whatever the stops share with each other or with what was shown, nothing comes twice."""
    answer = said(tmp_path, pieces, stop=stop)
    assert answer.text == text
    assert answer.finished.reason is (LENGTH if stop == ("never",) else STOP)
    assert answer.finished.stop in ((None,) if stop == ("never",) else stop)


def test_only_a_tail_that_may_become_a_stop_waits(tmp_path: Path) -> None:
    """A long stop string that never comes delays no text, least of all the first."""
    pieces: list[str | bytes] = ["tick ", "tock "] * 20
    assert said(tmp_path, pieces, stop=("Q" * 150,)).texts == pieces
    answer = said(tmp_path, pieces, stop=("Q" * 150, "tock tock"))
    assert answer.texts == ["tick ", *["", "tock tick "] * 19, "tock "]


def test_what_was_held_back_is_shown_when_the_answer_ends(tmp_path: Path) -> None:
    """The start of a stop string that never was completed belongs to the text."""
    answer = said(tmp_path, ["the ", "end", " of"], stop=("end of tale",))
    assert (answer.text, answer.finished.reason) == ("the end of", LENGTH)
    answer = said(tmp_path, ["the ", "end", END, "x"], stop=("end of tale",))
    assert (answer.text, answer.finished.reason) == ("the end", STOP)


@pytest.mark.parametrize(
    ("pieces", "sampling", "text", "reason"),
    [
        (["uno", " dos", " FIN"], {"stop": (" FIN",)}, "uno dos", STOP),
        (["uno", " dos", END], {}, "uno dos", STOP),
        (["uno", " dos", " tres"], {"stop_token_ids": (2,)}, "uno dos", STOP),
        (["uno", " dos", " tres"], {}, "uno dos tres", LENGTH),
        (["uno", " dos", " FI"], {"stop": (" FIN",)}, "uno dos FI", LENGTH),
        # complete, but held back for an earlier one that may still come true
        (["uno", " dos", " FIN"], {"stop": ("FI", " FIN!")}, "uno dos ", STOP),
        # the last character stays incomplete, and its replacement is a stop
        (["uno", " dos", b"\xe3"], {"stop": ("\ufffd",)}, "uno dos", STOP),
    ],
)
def test_the_last_token_allowed_may_still_stop(
    tmp_path: Path,
    pieces: list[str | bytes],
    sampling: dict[str, Any],
    text: str,
    reason: FinishReason,
) -> None:
    """The reason tells what ended the text, not whether max_tokens was reached."""
    answer = said(tmp_path, pieces, **sampling)
    assert (answer.text, answer.finished.reason) == (text, reason)
    assert answer.finished.usage.output_tokens == len(pieces)


def test_an_end_of_text_token_ends_the_answer(tmp_path: Path) -> None:
    """It counts as output, but neither its id nor its spelling is shown."""
    answer = said(tmp_path, ["so", " it ", END, "goes"])
    assert (answer.text, answer.token_ids) == ("so it ", [0, 1])
    assert answer.finished.reason is STOP
    assert answer.finished.usage.output_tokens == 3


def test_end_of_text_can_be_ignored(tmp_path: Path) -> None:
    """With ignore_eos the answer goes on through it; other ends still count."""
    pieces: list[str | bytes] = ["so", " it ", END, "goes"]
    answer = said(tmp_path, pieces, ignore_eos=True)
    assert (answer.text, answer.token_ids) == (f"so it {END}goes", [0, 1, 2, 3])
    assert answer.finished.reason is LENGTH
    stopped = said(tmp_path, pieces, ignore_eos=True, stop_token_ids=(2,))
    assert (stopped.text, stopped.finished.reason) == ("so it ", STOP)


def test_a_stopped_answer_is_a_good_prefix(tmp_path: Path) -> None:
    """What a stop string cut off the text was computed all the same, and can be hit."""
    pieces = ["a", "b", "c", "d", "e", "f", "g", "STOP"]
    write_piece_tokenizer(tmp_path, [piece.encode() for piece in pieces])
    bench = Bench(tokenizer=Tokenizer.load(tmp_path), script=list(range(8)))
    answer = bench.run([300], 50, stop=("STOP",))
    assert answer.text == "abcdefg"
    # the prompt and seven tokens were fed; the last one that was sampled was not
    assert bench.matchable([300, *range(8), 1]) == 8
