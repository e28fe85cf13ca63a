"""A loaded model with its weights packed and its layers replaced by lean ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from prefixcache.config import WeightsName
from prefixcache.engine.model import PagedModel
from prefixcache.engine.weights.choice import head_kind, packer
from prefixcache.engine.weights.experts import PackedExperts, has_common_experts
from prefixcache.engine.weights.lean import LayerProducts, LeanLayer
from prefixcache.engine.weights.modules import (
    LinearPart,
    PackedLinear,
    SmallEmbedding,
    is_linear,
    replace_module,
    weight_and_bias,
)
from prefixcache.engine.weights.norms import Angles
from prefixcache.engine.weights.parts import LayerParts, find_parts
from prefixcache.engine.weights.products import Packer, PlainProduct, WeightKind
from prefixcache.engine.weights.tiles import TiledPacker, make_row_wise
from prefixcache.engine.weights.watch import Seen, watch_layers
from prefixcache.errors import ConfigError, UnsupportedModelError
from prefixcache.kv import KVStore

# Largest difference of a lean layer from the original with the same packed weights. Where rows
# are rounded, a last bit can tip a rounding.
SAME_WEIGHTS = {"float32": 1e-4, "float16": 1e-4, "bfloat16": 2e-2, "int8": 5e-2}
# And of packed weights from the unpacked ones: this tells gross faults alone.
OWN_WEIGHTS = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 1e-1, "int8": 5e-1}
_LEFT_SHARE = 0.02  # of a layer's weights may stay unpacked without a word
_HALF_LIMIT = 60000.0  # float16 ends at 65504


@dataclass(frozen=True, slots=True)
class Packed:
    """What became of a model's layers."""

    kind: WeightKind
    lean_layers: int
    layers: int
    left: tuple[str, ...]  # weights that could not be packed

    def __str__(self) -> str:
        text = f"weights as {self.kind}, {self.lean_layers} of {self.layers} layers lean"
        if self.left:
            text += f"; {len(self.left)} weights stay as they are, such as {self.left[0]}"
        return text


@torch.no_grad()
def pack_model(
    model: PagedModel,
    store: KVStore,
    kind: WeightKind,
    wanted: WeightsName,
    *,
    invariant: bool = False,
) -> Packed:
    """Pack the weights of a float32 model on a CPU; the unpacked ones are let go.

    Every layer of the common shape becomes a lean one if that gives what the original gives
    with the same packed weights; of the others each linear layer is packed by itself.

    Args:
        model: taken over and changed in place.
        store: its first blocks are overwritten.
        kind: the packed form.
        wanted: the setting; with "auto", what cannot be packed stays as it is.
        invariant: rows must not depend on one another: fixed tiles, no lean layers.

    Raises:
        ConfigError: more was wanted than can be packed.
        UnsupportedModelError: the model fails, or packed weights give something else.

    Cost: memory for one layer beyond what the model takes; a second for a billion weights.
    """
    layers = _layers(model)
    left = [name for layer in layers for name in _left(layer)]
    if left and (invariant or wanted in ("16bit", "int8")):
        reason = (
            f"{len(left)} weights in the {len(layers)} layers of {model.architecture} cannot be"
            f" packed, such as {left[0]}; use float32 or auto"
        )
        if invariant:
            raise UnsupportedModelError(model.architecture, f"invariant mode: {reason}")
        raise ConfigError("weights", wanted, reason)
    calls = watch_layers(model, store, layers)
    pack, angles, n_lean = packer(kind), Angles(), 0
    if invariant:
        pack = TiledPacker(pack)
    for index, (layer, seen) in enumerate(zip(list(layers), calls, strict=True)):
        group = store.layout.groups[store.group_of(index)]
        worker = _LayerPacker(layer, seen, kind, pack)
        parts = None if invariant else find_parts(layer, group)
        lean = worker.lean(parts, angles)
        layers[index] = worker.packed() if lean is None else lean
        n_lean += lean is not None
        worker.check(layers[index], model.architecture, index)
    _pack_ends(model, kind, invariant=invariant)
    if invariant:
        make_row_wise(model.model)
    return Packed(kind, n_lean, len(layers), tuple(left))


class _LayerPacker:
    """Replaces the linear layers and experts of one decoder layer."""

    def __init__(self, layer: nn.Module, seen: Seen, kind: WeightKind, pack: Packer) -> None:
        self._layer, self._seen, self._kind, self._pack = layer, seen, kind, pack
        self._linears = {
            name: module for name, module in layer.named_modules() if is_linear(module)
        }

    def lean(self, parts: LayerParts | None, angles: Angles) -> LeanLayer | None:
        """Return the layer's lean form, or None where it does not give what the layer gives."""
        if parts is None or not isinstance(self._seen.keywords.get("position_embeddings"), tuple):
            return None
        products = LayerProducts(
            qkv=self._fused(parts.qkv),
            output=self._fused((parts.output,)),
            gate_up=self._fused(parts.gate_up),
            down=self._fused((parts.down,)),
        )
        lean = LeanLayer(self._layer, parts, products, angles)
        try:
            found, expected = self._seen.again(lean), self._seen.again(self._layer)
        except (RuntimeError, IndexError, TypeError, ValueError):  # shapes that do not fit
            return None
        agrees = self._seen.difference(found, expected) <= SAME_WEIGHTS[self._kind]
        return lean if agrees else None

    def packed(self) -> nn.Module:
        """Return the layer itself with each linear layer and each expert packed alone."""
        for name in self._linears:
            self._fused((name,))
        for name, module in list(self._layer.named_modules()):
            if has_common_experts(module):
                replace_module(
                    self._layer,
                    name,
                    PackedExperts(module, self._pack, row_wise=isinstance(self._pack, TiledPacker)),
                )
        return self._layer

    def check(self, layer: nn.Module, architecture: str, index: int) -> None:
        """Hold the layer in its new form to what it gave before.

        Raises:
            UnsupportedModelError: it gives something else.
        """
        found = self._seen.difference(self._seen.again(layer), self._seen.output)
        if not found <= OWN_WEIGHTS[self._kind]:
            reason = (
                f"layer {index} with weights as {self._kind} differs from its own by a share of"
                f" {found:.2g} (allowed {OWN_WEIGHTS[self._kind]:.2g}); use --weights float32"
            )
            raise UnsupportedModelError(architecture, reason)

    def _fused(self, names: tuple[str, ...]) -> PackedLinear:
        """Pack linear layers into one and leave parts of it in their places."""
        found = [weight_and_bias(self._linears[name]) for name in names]
        weights, biases = [weight for weight, _ in found], [bias for _, bias in found]
        whole = _packed_linear(weights, biases, self._pack)
        start = 0
        for name, weight in zip(names, weights, strict=True):
            stop = start + len(weight)
            part = whole if len(names) == 1 else LinearPart(whole, start, stop)
            replace_module(self._layer, name, part)
            start = stop
        return whole


def _packed_linear(
    weights: list[Tensor], biases: list[Tensor | None], pack: Packer
) -> PackedLinear:
    given = [
        weight.new_zeros(len(weight)) if bias is None else bias
        for weight, bias in zip(weights, biases, strict=True)
    ]
    bias = None if all(each is None for each in biases) else torch.cat(given)
    weight = torch.cat(weights)
    return PackedLinear(pack(weight, bias), weight.shape[1], len(weight))


def _pack_ends(model: PagedModel, kind: WeightKind, *, invariant: bool) -> None:
    """Pack the output layer and, where that saves memory, the embedding.

    In float32 an output layer that shares the embedding's weight stays: packed it would be
    there twice. In int8 it gets 16 bits: it costs little, and its errors show at once.
    """
    head, embedding = model.model.get_output_embeddings(), model.model.get_input_embeddings()
    is_tied = getattr(head, "weight", None) is getattr(embedding, "weight", False)
    is_kept = kind == "float32" and is_tied
    if is_linear(head) and (invariant or not is_kept):
        pack = PlainProduct if is_kept else packer(head_kind(kind))
        weight, bias = weight_and_bias(head)
        packed = _packed_linear([weight], [bias], TiledPacker(pack) if invariant else pack)
        replace_module(model.model, _name_of(model.model, head), packed)
    if type(embedding) is nn.Embedding and kind != "float32":
        table = embedding.weight.detach()
        is_small = bool(table.abs().max() < _HALF_LIMIT)
        dtype = torch.float16 if is_small else torch.bfloat16
        replace_module(model.model, _name_of(model.model, embedding), SmallEmbedding(table, dtype))


def _name_of(root: nn.Module, wanted: nn.Module) -> str:
    names: list[str] = [name for name, module in root.named_modules() if module is wanted]
    return names[0]


def _layers(model: PagedModel) -> nn.ModuleList:
    n_layers = model.model.config.get_text_config().num_hidden_layers
    for module in model.model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == n_layers:
            return module
    reason = f"no list of its {n_layers} layers was found; use --weights float32"
    raise UnsupportedModelError(model.architecture, reason)


def _left(layer: nn.Module) -> list[str]:
    """Return the names of large weights that belong to no plain linear layer or experts."""
    total = sum(parameter.numel() for parameter in layer.parameters())
    return [
        f"{type(module).__name__}.{name}"
        for module in layer.modules()
        if not (is_linear(module) or has_common_experts(module))
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.dim() > 1 and parameter.numel() > _LEFT_SHARE * total
    ]
