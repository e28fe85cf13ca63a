"""How many weights a model has, from its configuration alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

from prefixcache.errors import ModelError

_CHOSEN_FIELDS = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k_experts")
_EXPERT_FIELDS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


@dataclass(frozen=True, slots=True)
class Parameters:
    """Weights of a model; tied ones count once."""

    total: int
    active: int  # that a token is multiplied with: of experts those that are chosen


def count_parameters(config: PretrainedConfig) -> Parameters:
    """Build the model without memory behind its weights, and count them.

    Raises:
        ModelError: transformers has no causal language model of the family.
    """
    text = config.get_text_config(decoder=True)
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(text, trust_remote_code=False)
    except Exception as error:  # whatever a family's own code raises
        raise ModelError(f"a {config.model_type} model cannot be built: {error}") from error
    share = _chosen_share(text)
    sizes = {name: weight.numel() for name, weight in model.named_parameters()}
    idle = sum(size for name, size in sizes.items() if ".experts." in name) * (1 - share)
    looked_up = 0 if text.tie_word_embeddings else _embedding_size(model)
    return Parameters(
        total=sum(sizes.values()), active=round(sum(sizes.values()) - idle - looked_up)
    )


def _chosen_share(config: PretrainedConfig) -> float:
    """Return which part of the experts a token is multiplied with."""
    chosen = _first(config, _CHOSEN_FIELDS)
    experts = _first(config, _EXPERT_FIELDS)
    return 1.0 if chosen is None or experts is None else chosen / experts


def _first(config: PretrainedConfig, fields: tuple[str, ...]) -> int | None:
    values = (getattr(config, field, None) for field in fields)
    return next((value for value in values if isinstance(value, int) and value > 0), None)


def _embedding_size(model: torch.nn.Module) -> int:
    embedding = model.get_input_embeddings()  # type: ignore[operator]  # every such model has one
    return int(embedding.weight.numel())
