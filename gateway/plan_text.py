"""A plan as text for a terminal and as data for a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import msgspec

from gateway.tables import as_columns
from prefixcache.plan import DeviceRow, LayerKind, Plan, Reading, ReplayedRow

_MOST_DEVICES = 3  # for which each replay has a line
_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def as_text(plan: Plan, *, efficiency: float) -> str:
    """Return all of a plan. `efficiency`: of a device's arithmetic that reading prompts gets."""
    parts = [_model(plan), _kv(plan), *_warnings(plan), *_work(plan)]
    if plan.devices:
        parts.append(_devices(plan, efficiency))
    if plan.replays:
        parts.append(_replays(plan))
        parts += _first_tokens(plan, efficiency)
    return "\n\n".join(parts)


def as_data(plan: Plan) -> dict[str, object]:
    """Return a plan ready for JSON, in bytes, tokens and operations."""
    shape, question = plan.shape, plan.question
    return {
        "model": shape.name,
        "family": shape.family,
        "layers": {str(kind): n_layers for kind, n_layers in shape.counts().items()},
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "unknown": list(shape.unknown),
        "kv_prune": shape.kv_prune,
        "weights": asdict(plan.weights),
        "requests": question.requests,
        "shared_tokens": question.shared_tokens,
        "kv": [asdict(row) for row in plan.kv],
        "reading": _reading(plan.reading),
        "devices": [asdict(row) for row in plan.devices],
        "replays": [
            {
                **msgspec.structs.asdict(each.row),
                "kv_bytes": each.kv_bytes,
                "hit_share": each.row.hit_share,
                "mean_reading": None if each.reading is None else _reading(each.reading),
            }
            for each in plan.replays
        ],
    }


def amount(n_bytes: float) -> str:
    """Return bytes for people, in powers of ten."""
    for size, unit in _UNITS:
        if n_bytes >= size:
            return f"{n_bytes / size:.2f} {unit}"
    return f"{n_bytes:.0f} B"


def _reading(reading: Reading) -> dict[str, float]:
    return {**asdict(reading), "saved_share": reading.saved_share}


def _model(plan: Plan) -> str:
    shape, weights = plan.shape, plan.weights
    layers = ", ".join(f"{n_layers} {kind}" for kind, n_layers in shape.counts().items())
    lines = [
        f"{shape.name} ({shape.family}): {len(shape.layers)} layers ({layers}),"
        f" {shape.heads} heads, {shape.kv_heads} with keys and values",
        f"weights: {weights.total / 1e9:.2f} billion, {weights.active / 1e9:.2f} of them used for"
        f" each token; {amount(weights.n_bytes)} ({weights.source})",
    ]
    lines += [f"not known: {what}" for what in shape.unknown]
    return "\n".join(lines)


def _kv(plan: Plan) -> str:
    n_requests, shared = plan.question.requests, plan.question.shared_tokens
    together = f"{n_requests:,} at once" + (f", {shared:,} tokens shared" if shared else "")
    lines = [("KV format", "context", "a token", "beyond windows", "a request", together)]
    lines += [
        (
            row.kv_format,
            f"{row.context_tokens:,}",
            amount(row.token),
            amount(row.long_token),
            amount(row.request),
            amount(row.together),
        )
        for row in plan.kv
    ]
    return as_columns(lines)


def _warnings(plan: Plan) -> Iterator[str]:
    """Yield the mistakes that would be made with this model, with what they would cost."""
    row = plan.kv[0]
    where = f"at {row.context_tokens:,} tokens in {row.kv_format}"
    if row.mistaken > row.unwindowed:
        is_latent = LayerKind.LATENT in plan.shape.counts()
        kept = "one latent for all of them" if is_latent else str(plan.shape.kv_heads)
        yield (
            f"A common mistake: {amount(row.mistaken)} {where} if keys and values of all"
            f" {plan.shape.heads} heads are counted; the model keeps {kept}:"
            f" {amount(row.unwindowed)}."
        )
    if row.request < row.unwindowed:
        how = (
            "With its windows"
            if plan.shape.kv_prune is None
            else f"Pruned to {plan.shape.kv_prune}"
        )
        yield (
            f"{how} a request keeps {amount(row.request)} {where}; a server that keeps"
            f" every position needs {amount(row.unwindowed)}."
        )
    if row.together < row.apart:
        spared = amount(row.apart - row.together)
        yield f"Sharing the first {plan.question.shared_tokens:,} tokens spares {spared}."


def _work(plan: Plan) -> Iterator[str]:
    shared = plan.question.shared_tokens
    if not shared:
        return
    read = plan.reading
    yield (
        f"Reading {plan.question.contexts[0]:,} tokens takes {read.flops / 1e12:.2f} TFLOP;"
        f" with the first {shared:,} cached {read.flops_with_cache / 1e12:.2f}"
        f" ({read.saved_share:.0%} less)."
    )


def _devices(plan: Plan, efficiency: float) -> str:
    """Return what fits; seconds are those of reading a prompt as long as the context."""
    head = ("device", "number", "weights", "KV room", "requests", "tokens", "cold s", "cached s")
    return as_columns([head, *(_device(plan, row, efficiency) for row in plan.devices)])


def _device(plan: Plan, row: DeviceRow, efficiency: float) -> tuple[str, ...]:
    if row.fit is None:
        return (row.label, "none hold it", *[""] * 6)
    found, device = row.fit, plan.question.devices[row.device]
    cold = plan.reading.seconds(device, found.n_devices, efficiency=efficiency)
    warm = plan.reading.seconds_with_cache(device, found.n_devices, efficiency=efficiency)
    return (
        row.label,
        str(found.n_devices),
        amount(found.weight_bytes),
        amount(found.kv_bytes),
        f"{found.requests:,}",
        f"{found.tokens:,}",
        f"{cold:.3g}",
        f"{warm:.3g}",
    )


def _replays(plan: Plan) -> str:
    lines = [("trace", "policy", "capacity in blocks", "KV", "tokens cached", "work spared")]
    lines += [
        (
            *_name(each),
            "" if each.kv_bytes is None else amount(each.kv_bytes),
            f"{each.row.hit_share:.1%}",
            "" if each.reading is None else f"{each.reading.saved_share:.1%}",
        )
        for each in plan.replays
    ]
    return as_columns(lines, n_left=2)


def _first_tokens(plan: Plan, efficiency: float) -> Iterator[str]:
    """Yield the mean seconds of reading the replays' prompts on the first devices that do."""
    able = [(row, row.fit) for row in plan.devices if row.fit is not None]
    devices = able[:_MOST_DEVICES]
    lines = [("trace", "policy", "capacity in blocks", "device", "cold s", "cached s", "spared s")]
    for each in plan.replays:
        if each.reading is None:
            continue
        for row, found in devices:
            device = plan.question.devices[row.device]
            cold = each.reading.seconds(device, found.n_devices, efficiency=efficiency)
            warm = each.reading.seconds_with_cache(device, found.n_devices, efficiency=efficiency)
            label = f"{found.n_devices} x {row.label}"
            seconds = (f"{cold:.3g}", f"{warm:.3g}", f"{cold - warm:.3g}")
            lines.append((*_name(each), label, *seconds))
    if len(lines) > 1:
        yield "Time to the first token, on average, where reading the prompt is all of it:"
        yield as_columns(lines, n_left=2)


def _name(replayed: ReplayedRow) -> tuple[str, str, str]:
    row = replayed.row
    limit = "unlimited" if row.capacity_blocks is None else f"{row.capacity_blocks:,}"
    return row.trace, row.policy, limit
