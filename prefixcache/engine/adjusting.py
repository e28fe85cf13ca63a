"""What requests add to single logits before a token is chosen: penalties, bias, bans."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from prefixcache.types import SamplingParams

_FIRST_ROOM = 64


class TokenCounts:
    """How often each token came in an answer, and which tokens its prompt holds.

    Kept up as tokens come, never recounted. Cost: O(1) per token, amortised.
    """

    def __init__(self, prompt: Iterable[int] = ()) -> None:
        self._slots = {token: slot for slot, token in enumerate(dict.fromkeys(prompt))}
        room = max(2 * len(self._slots), _FIRST_ROOM)
        self._ids = torch.zeros(room, dtype=torch.int64)
        self._ids[: len(self._slots)] = torch.tensor(list(self._slots), dtype=torch.int64)
        self._counts = torch.zeros(room)

    @property
    def ids(self) -> Tensor:
        """The tokens that were seen, each once: int64 [n]. Good until the next `add`."""
        return self._ids[: len(self._slots)]

    @property
    def counts(self) -> Tensor:
        """How often each of `ids` is in the answer: float32 [n], 0 for the prompt's alone."""
        return self._counts[: len(self._slots)]

    def add(self, token: int) -> None:
        """Count the answer's next token."""
        slot = self._slots.setdefault(token, len(self._slots))
        if slot == len(self._ids):
            self._ids = torch.cat([self._ids, torch.zeros_like(self._ids)])
            self._counts = torch.cat([self._counts, torch.zeros_like(self._counts)])
        self._ids[slot] = token
        self._counts[slot] += 1


@dataclass(slots=True)
class Adjustment:
    """One request's changes to its logits. `end_ids`: what may not come before `min_tokens`."""

    params: SamplingParams
    end_ids: tuple[int, ...]
    counts: TokenCounts | None  # None: there are no penalties
    n_said: int = 0

    @classmethod
    def of(
        cls, params: SamplingParams, prompt: Sequence[int], end_ids: Sequence[int]
    ) -> Adjustment | None:
        """Return what `params` change, or None when they change nothing."""
        is_penalised = bool(
            params.presence_penalty
            or params.frequency_penalty
            or params.repetition_penalty != 1  # the one penalty that the prompt counts for
        )
        if not (is_penalised or params.logit_bias or params.min_tokens):
            return None
        counts = None
        if is_penalised:
            counts = TokenCounts(prompt if params.repetition_penalty != 1 else ())
        return cls(params, tuple(end_ids), counts)

    def said(self, token: int) -> None:
        """Take the token that was chosen into account."""
        self.n_said += 1
        if self.counts is not None:
            self.counts.add(token)

    @property
    def banned(self) -> tuple[int, ...]:
        """The tokens that may not come now."""
        return self.end_ids if self.n_said < self.params.min_tokens else ()


def adjust(logits: Tensor, adjustments: Sequence[Adjustment | None]) -> None:
    """Change float32 logits [rows, vocab_size] in place, each row as its own adjustment says.

    Order: penalties, bias, bans. As in vLLM, the repetition penalty divides positive logits and
    multiplies others; the presence and frequency penalties are OpenAI's, over the output alone.

    Cost: O(distinct tokens seen + biases), all rows at once; nothing of the vocabulary's size.
    """
    flat = logits.view(-1)
    width = logits.shape[-1]
    found = [(row * width, each) for row, each in enumerate(adjustments) if each is not None]
    _penalise(flat, [(base, each) for base, each in found if each.counts is not None])
    biases = [
        (base + token, bias) for base, each in found for token, bias in each.params.logit_bias
    ]
    if biases:
        places, amounts = zip(*biases, strict=True)
        flat.index_add_(
            0,
            torch.tensor(places, device=flat.device),
            torch.tensor(amounts, dtype=flat.dtype, device=flat.device),
        )
    bans = [base + token for base, each in found for token in each.banned]
    if bans:
        flat[torch.tensor(bans, device=flat.device)] = -torch.inf


def _penalise(flat: Tensor, found: list[tuple[int, Adjustment]]) -> None:
    counted = [(base, each.params, each.counts) for base, each in found if each.counts is not None]
    if not counted:
        return
    lengths = torch.tensor([len(counts.ids) for _, _, counts in counted])
    settings = torch.tensor(
        [(p.repetition_penalty, p.presence_penalty, p.frequency_penalty) for _, p, _ in counted]
    )
    wide = settings.repeat_interleave(lengths, dim=0).to(flat.device)
    repetition, presence, frequency = wide.unbind(-1)
    places = torch.cat([counts.ids + base for base, _, counts in counted]).to(flat.device)
    counts = torch.cat([counts.counts for _, _, counts in counted]).to(flat.device)
    logits = flat[places]
    logits = torch.where(logits > 0, logits / repetition, logits * repetition)
    flat[places] = logits - frequency * counts - presence * (counts > 0)
