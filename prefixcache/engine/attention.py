"""Attention over runs of the store, in the form that transformers' models call.

What a step's rows see is planned in parts (`engine/parts.py`). Each part is one call; the parts
of a row are merged by their log-sum-exp (the online softmax of arXiv:1805.02867, as in
arXiv:2402.02082 for shared prefixes).

The query heads of a key head are folded into rows, so that a key is read once for all of them:

    query  [heads, t, dim]  ->  folded  [kv_heads, t * heads_per_kv_head, dim]

A token's rows are neighbours there, and so are those of neighbouring tokens: a part is a slice.
"""

from __future__ import annotations

import torch
from torch import Tensor

from prefixcache.engine.fixed_attention import fixed_attention
from prefixcache.engine.parts import OwnPart, Part, RunPart
from prefixcache.engine.plan import Step
from prefixcache.engine.softmax import Scores, merge_into, softmax_attention
from prefixcache.errors import EngineError
from prefixcache.kv import Kept

NAME = "prefixcache"  # under which transformers knows it
IGNORED = frozenset({"position_ids", "use_cache", "output_attentions", "is_causal"})


def paged_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    step: Step,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **extras: object,
) -> tuple[Tensor, None]:
    """Attend from the packed rows of a step to what each of them may see.

    Args:
        module: the attention layer; `layer_idx` names its KV.
        query: [1, heads, t, key_dim], the rows of every chunk one after another.
        key, value: [1, kv_heads, t, dim], as the cache object gave them when it wrote them.
        attention_mask: unused; what a row sees is in `step`.
        step: the plan of this forward, passed through the model's keyword arguments.
        scaling: of the scores; None: key_dim ** -0.5.
        dropout: unused; models serve in evaluation mode.
        sliding_window: unused; the probe at load has put it into the layer's group.
        softcap: of the scores, before masks; see `Scores`.
        s_aux: [heads], a sink for each: one more score that every row has, with no value.
        extras: what else the model passes; anything that would change scores is refused.

    Returns:
        [1, t, heads, value_dim] and None in place of the weights.

    Raises:
        EngineError: the model asks for a feature of attention that this function lacks.
    """
    _refuse_unknown(extras)
    layer = module.layer_idx
    assert isinstance(layer, int)
    scores = Scores(query.shape[-1] ** -0.5 if scaling is None else scaling, softcap)
    output = attended(query[0], key[0], value[0], step, layer, scores, s_aux)
    return output.reshape(1, query.shape[2], query.shape[1], -1), None


def attended(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    step: Step,
    layer: int,
    scores: Scores,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attend as `paged_attention` does, without a batch dimension.

    Args:
        query: [heads, t, key_dim].
        key, value: [kv_heads, t, dim], as the store gave them when they were written.
        step: the plan of this forward.
        layer: whose KV is read.
        scores: how scores are made.
        sinks: [heads], one more score for each, with no value.

    Returns:
        [t, heads * value_dim], one row for each token.
    """
    planned = step.groups[step.store.group_of(layer)]
    keys, values = step.store.kept(layer)
    query = keys.turned(query)
    if planned.fixed is not None:
        output = fixed_attention(query, keys, values, planned.fixed, scores, sinks)
        return output.reshape(output.shape[1], -1)
    call = _Call(query, key, value, keys, values, scores)
    output, lse = call.attend(planned.parts)
    if sinks is not None:
        output = call.with_sinks(output, lse, sinks)
    return call.unfolded(output)


def _refuse_unknown(extras: dict[str, object]) -> None:
    for name, found in extras.items():
        if found is not None and found is not False and name not in IGNORED:
            raise EngineError(f"the model's attention uses {name!r}, which is not supported yet")


class _Call:
    """One layer's attention: its tensors, and how a part of each kind is computed.

    A part's output is [kv_heads, rows * heads_per_kv_head, value_dim], its log-sum-exp the same
    without the last.
    """

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        keys: Kept,
        values: Kept,
        scores: Scores,
    ) -> None:
        """`query`, `key` and `value` are the call's, `keys` and `values` the store's."""
        heads, self.n_rows, key_dim = query.shape
        self.kv_heads = key.shape[0]
        self.group = heads // self.kv_heads
        rows = query.view(self.kv_heads, self.group, self.n_rows, key_dim).transpose(1, 2)
        self.folded = rows.reshape(self.kv_heads, -1, key_dim)
        self.key, self.value = key, value
        self.keys, self.values = keys, values
        self.scores = scores

    def attend(self, parts: tuple[Part, ...]) -> tuple[Tensor, Tensor]:
        """Return output and log-sum-exp of all rows; the output is in float32 where it was merged.

        What all rows have in common, the merge starts from; often it is the only part.
        """
        first, *others = parts
        if first.rows == slice(0, self.n_rows):
            output, lse = self._part(first)
            if not others:
                return output, lse
            output = output.float()
        else:
            output, lse, others = *self._nothing(), list(parts)
        for part in others:
            rows = self._rows(part)
            merge_into(output[:, rows], lse[:, rows], *self._part(part))
        return output, lse

    def with_sinks(self, output: Tensor, lse: Tensor, sinks: Tensor) -> Tensor:
        """Return what is left of an output where each head has one more score and no value for it.

        `sinks`: [heads]. A sink is one more log-sum-exp, whose output is nothing.
        """
        folded = sinks.float().view(self.kv_heads, self.group).repeat(1, self.n_rows)
        return output * torch.sigmoid(lse - folded).unsqueeze(-1)

    def _nothing(self) -> tuple[Tensor, Tensor]:
        """Return what stands before the first part is merged."""
        shape = (self.kv_heads, self.folded.shape[1])
        output = self.folded.new_zeros((*shape, self.values.dim), dtype=torch.float32)
        return output, self.folded.new_full(shape, -torch.inf, dtype=torch.float32)

    def unfolded(self, output: Tensor) -> Tensor:
        """Return a folded output as [t, heads * value_dim], in the query's dtype."""
        rows = output.reshape(self.kv_heads, self.n_rows, -1).transpose(0, 1)
        return rows.reshape(self.n_rows, -1).to(self.folded.dtype)

    def _rows(self, part: Part) -> slice:
        return slice(part.rows.start * self.group, part.rows.stop * self.group)

    def _part(self, part: Part) -> tuple[Tensor, Tensor]:
        is_whole = part.rows.stop - part.rows.start == self.n_rows
        query = self.folded if is_whole else self.folded[:, self._rows(part)]
        if isinstance(part, RunPart):
            output, lse = softmax_attention(
                query.unsqueeze(1),
                self.keys.run(part.slots, part.keys).unsqueeze(1),
                self.values.run(part.slots, part.values).unsqueeze(1),
                self.scores,
            )
            return output.squeeze(1), lse.squeeze(1)
        if isinstance(part, OwnPart):
            return self._own_part(part, query)
        shape = (self.kv_heads, part.n_readers, -1)
        keys = self.keys.at(part.slots, part.keys)
        values = self.values.at(part.slots, part.values)
        output, lse = softmax_attention(
            query.view(*shape, query.shape[-1]),
            keys.view(*shape, keys.shape[-1]),
            values.view(*shape, values.shape[-1]),
            self.scores,
            None if part.mask is None else part.mask.bias(self.group, query.dtype),
        )
        return output.reshape(self.kv_heads, -1, output.shape[-1]), lse.reshape(self.kv_heads, -1)

    def _own_part(self, part: OwnPart, query: Tensor) -> tuple[Tensor, Tensor]:
        n_rows = part.rows.stop - part.rows.start
        wide = (self.kv_heads, self.group, n_rows, -1)  # a view: every head of a group has its keys
        output, lse = softmax_attention(
            query.view(self.kv_heads, n_rows, self.group, -1).transpose(1, 2),
            self.key[:, None, part.rows].expand(wide),
            self.value[:, None, part.rows].expand(wide),
            self.scores,
            None if part.mask is None else part.mask.bias(1, query.dtype),
            causal=part.mask is None,
        )
        folded = output.transpose(1, 2).reshape(self.kv_heads, -1, output.shape[-1])
        return folded, lse.transpose(1, 2).reshape(self.kv_heads, -1)
