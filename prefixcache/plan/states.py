"""How large the state is that a recurrent layer keeps of a request."""

from __future__ import annotations

from transformers import PretrainedConfig


def state_numbers(config: PretrainedConfig) -> int | None:
    """Return the numbers in one layer's state, None where the configuration does not tell.

    Source: the cache classes and state updates of transformers' models of each family.
    """
    for known in (_delta_net, _kimi, _mamba2, _nemotron, _mamba, _convolution, _minimax, _lru):
        found = known(config)
        if found is not None:
            return found
    return 5 * config.hidden_size if config.model_type == "rwkv" else None


def _delta_net(config: PretrainedConfig) -> int | None:
    """Gated delta nets: a matrix for each value head, and the tail of a convolution."""
    heads = getattr(config, "linear_num_value_heads", None)
    if heads is None:
        return None
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    values = heads * config.linear_value_head_dim
    tail = (2 * keys + values) * config.linear_conv_kernel_dim
    return int(heads * config.linear_key_head_dim * config.linear_value_head_dim + tail)


def _kimi(config: PretrainedConfig) -> int | None:
    """Delta attention: a matrix for each head, and the tails of three convolutions."""
    heads, dim = (getattr(config, f"linear_{what}", None) for what in ("num_heads", "head_dim"))
    if heads is None or dim is None:
        return None
    return int(heads * dim * dim + 3 * heads * dim * config.linear_conv_kernel_dim)


def _mamba2(config: PretrainedConfig) -> int | None:
    heads = getattr(config, "mamba_n_heads", None) or getattr(config, "n_mamba_heads", None)
    state = getattr(config, "mamba_d_state", None)
    if not heads or not isinstance(state, int) or config.model_type == "jamba":
        return None
    own = getattr(config, "mamba_d_ssm", None)
    inner = int(config.mamba_expand * config.hidden_size if own is None else own)
    groups = int(getattr(config, "mamba_n_groups", getattr(config, "mamba_ngroups", 1)))
    return inner * state + (inner + 2 * groups * state) * int(config.mamba_d_conv)


def _nemotron(config: PretrainedConfig) -> int | None:
    heads, dim = getattr(config, "mamba_num_heads", None), getattr(config, "mamba_head_dim", None)
    if heads is None or dim is None:
        return None
    state, inner = config.ssm_state_size, heads * dim
    return int(inner * state + (inner + 2 * config.n_groups * state) * config.conv_kernel)


def _mamba(config: PretrainedConfig) -> int | None:
    """The first Mamba, alone or in Jamba: a state for each channel."""
    if config.model_type == "jamba":
        inner, state = config.mamba_expand * config.hidden_size, config.mamba_d_state
        return int(inner * (state + config.mamba_d_conv))
    if config.model_type == "mamba2":
        inner, state = config.expand * config.hidden_size, config.state_size
        return int(inner * state + (inner + 2 * config.n_groups * state) * config.conv_kernel)
    if config.model_type in {"mamba", "falcon_mamba"}:
        return int(config.intermediate_size * (config.state_size + config.conv_kernel))
    return None


def _convolution(config: PretrainedConfig) -> int | None:
    tail = getattr(config, "conv_L_cache", None)
    return None if tail is None else int(config.hidden_size * tail)


def _minimax(config: PretrainedConfig) -> int | None:
    if not config.model_type.startswith("minimax") or config.head_dim is None:
        return None
    return int(config.num_attention_heads * config.head_dim**2)


def _lru(config: PretrainedConfig) -> int | None:
    """RecurrentGemma: a state for each channel, and the tail of a convolution."""
    width = getattr(config, "lru_width", None)
    return None if width is None else int(width * config.conv1d_width)
