"""adapter_config.json: the settings of a plain LoRA, and the refusal of everything else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import regex
from msgspec import Meta

CONFIG_FILE = "adapter_config.json"
MAX_RANK = 1024
_MAX_CONFIG_BYTES = 2**20
_MATCH_SECONDS = 1.0  # for one expression on one layer's name
_SHOWN_CHARACTERS = 80

Rank = Annotated[int, Meta(ge=1, le=MAX_RANK)]
Pattern = Annotated[str, Meta(max_length=1000)]
Patterns = Annotated[list[Pattern], Meta(max_length=10_000)]

# Settings that say nothing about what a loaded adapter computes. `fan_in_fan_out` is how the
# model keeps its own weight, which the model knows; `init_lora_weights` is looked at below.
_NO_MATTER = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "corda_config",
        "ensure_weight_tying",
        "eva_config",
        "fan_in_fan_out",
        "inference_mode",
        "layers_pattern",
        "loftq_config",
        "lora_dropout",
        "lora_ga_config",
        "megatron_config",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
        "task_type",
    }
)
# Other ways to begin change the model's own weights too, unless peft converted them on saving.
_PLAIN_BEGINNINGS = (True, False, None, "gaussian", "eva", "orthogonal")


class LoraSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What of peft's configuration a plain LoRA is made of."""

    peft_type: str
    r: Rank = 8
    lora_alpha: float = 8
    use_rslora: bool = False
    target_modules: Pattern | Patterns | None = None
    exclude_modules: Pattern | Patterns | None = None
    layers_to_transform: int | list[int] | None = None
    rank_pattern: dict[Pattern, Rank] | None = None
    alpha_pattern: dict[Pattern, float] | None = None

    def rank(self, path: str) -> int:
        """Return the rank of the layer at `path`. Raises ValueError: a bad expression."""
        return int(_by_pattern(self.rank_pattern or {}, path, self.r))

    def scale(self, path: str) -> float:
        """Return what the layer's product is multiplied by. Raises ValueError."""
        alpha = _by_pattern(self.alpha_pattern or {}, path, self.lora_alpha)
        rank = self.rank(path)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)

    def is_target(self, path: str) -> bool:
        """Return whether the layer at `path` is one that the adapter is for. Raises ValueError."""
        return (
            (self.target_modules in (None, "all-linear") or _names(self.target_modules, path))
            and not _names(self.exclude_modules, path)
            and self._is_layer(path)
        )

    def _is_layer(self, path: str) -> bool:
        wanted = self.layers_to_transform
        if wanted is None or wanted == []:
            return True
        numbers = [int(part) for part in path.split(".") if part.isascii() and part.isdigit()]
        return bool(numbers) and numbers[-1] in ([wanted] if isinstance(wanted, int) else wanted)


def read_settings(folder: Path) -> LoraSettings:
    """Return the settings in a folder.

    Raises:
        ValueError: they cannot be read, or the adapter is not a plain LoRA; the text names what.
    """
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise ValueError(f"there is no {CONFIG_FILE} in {folder}")
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > _MAX_CONFIG_BYTES:
        raise ValueError(f"{CONFIG_FILE} has more than {_MAX_CONFIG_BYTES} bytes")
    try:
        given = msgspec.json.decode(data, type=dict[str, object])
        _refuse_what_is_not_plain(given)
        settings = msgspec.convert(given, LoraSettings)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{CONFIG_FILE}: {error}") from error
    if not all(map(math.isfinite, [settings.lora_alpha, *(settings.alpha_pattern or {}).values()])):
        raise ValueError(f"{CONFIG_FILE}: lora_alpha must be finite")
    return settings


def _refuse_what_is_not_plain(given: Mapping[str, object]) -> None:
    """Raise ValueError for the first setting that makes it more than x + scale * B(A(x))."""
    if given.get("peft_type") != "LORA":
        raise ValueError(f"peft_type is {_shown(given.get('peft_type'))}; only LORA can be served")
    if given.get("bias", "none") != "none":
        raise ValueError(f"bias is {_shown(given['bias'])}; only adapters without biases can be")
    if given.get("init_lora_weights", True) not in _PLAIN_BEGINNINGS:
        raise ValueError(
            f"init_lora_weights is {_shown(given['init_lora_weights'])}, which changes the model's"
            " own weights; convert it to a plain LoRA as it is saved"
        )
    known = {*LoraSettings.__struct_fields__, *_NO_MATTER, "bias", "init_lora_weights"}
    for name, value in given.items():
        if name not in known and value not in (None, False, [], {}, ""):
            raise ValueError(f"{name} is {_shown(value)}; only plain LoRA can be served")


def _by_pattern(values: Mapping[str, float], path: str, default: float) -> float:
    """Return the value of the first expression that the end of `path` matches, as peft does."""
    for pattern, value in values.items():
        if _matches(rf"(.*\.)?({pattern})$", path):
            return value
    return default


def _names(wanted: str | list[str] | None, path: str) -> bool:
    """Whether a text (an expression for the whole path) or a list (of endings) names a layer."""
    if wanted is None:
        return False
    if isinstance(wanted, str):
        return _matches(rf"(?:{wanted})\Z", path)
    return any(path == each or path.endswith(f".{each}") for each in wanted)


def _matches(pattern: str, path: str) -> bool:
    try:
        return regex.match(pattern, path, timeout=_MATCH_SECONDS) is not None
    except regex.error as error:
        raise ValueError(f"the expression {_shown(pattern)} cannot be read: {error}") from error
    except TimeoutError as error:
        raise ValueError(f"the expression {_shown(pattern)} takes too long") from error


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
