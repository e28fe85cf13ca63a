"""The parts of a tokenizer.json that we read ourselves, and variants of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

Step = Mapping[str, Any]  # one part of the definition: its "type" and its settings


class Definition(msgspec.Struct, frozen=True):
    """What happens to text before the vocabulary sees it, and to spellings on the way back."""

    normalizer: Step | None = None
    pre_tokenizer: Step | None = None
    decoder: Step | None = None

    def decoder_steps(self) -> tuple[Step, ...]:
        """Return what turns spellings into text, in order; nested sequences are laid flat."""
        return tuple(_leaves(self.decoder))

    def later(self) -> Definition:
        """Return this one without the space that it puts before a prompt's first word."""
        return Definition(self.normalizer, _later(self.pre_tokenizer))

    def glued(self) -> Definition:
        """Return this one without any space that it puts before any text."""
        return Definition(_glued(self.normalizer), _glued(self.pre_tokenizer))

    def without_tokens(self) -> bytes:
        """Return a tokenizer.json of these parts with an empty vocabulary and no added tokens."""
        parts: dict[str, object] = {
            "version": "1.0",
            "added_tokens": [],
            "normalizer": self.normalizer,
            "pre_tokenizer": self.pre_tokenizer,
            "post_processor": None,
            "decoder": None,
            "model": {"type": "BPE", "vocab": {}, "merges": []},
        }
        return msgspec.json.encode(parts)


def _leaves(step: Step | None) -> Iterator[Step]:
    if step is None:
        return
    if step["type"] != "Sequence":
        yield step
        return
    for part in step["decoders"]:
        yield from _leaves(part)


def _later(step: Step | None) -> Step | None:
    if step is None:
        return None
    if step["type"] == "Sequence":
        return {**step, "pretokenizers": [_later(part) for part in step["pretokenizers"]]}
    if step.get("prepend_scheme") == "first":
        return {**step, "prepend_scheme": "never"}
    return step


def _glued(step: Step | None) -> Step | None:
    if step is None or step["type"] == "Prepend":
        return None
    prepending = {"prepend_scheme": "never", "add_prefix_space": False}
    glued = {name: prepending.get(name, value) for name, value in step.items()}
    for parts in {"pretokenizers", "normalizers"} & glued.keys():
        glued[parts] = [part for part in map(_glued, step[parts]) if part is not None]
    return glued
