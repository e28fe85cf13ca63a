"""Packed products against float32, and the independence of rows in int8."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor
from torch.profiler import profile

from prefixcache.config import EngineConfig, WeightsName
from prefixcache.engine.weights import choice
from prefixcache.engine.weights.choice import choose_kind, head_kind, is_usable, load_dtype, packer
from prefixcache.engine.weights.processor import Processor
from prefixcache.engine.weights.products import Int8Product, PlainProduct, WeightKind
from prefixcache.errors import ConfigError

CPU = torch.device("cpu")
UNKNOWN: dict[str, Any] = {"weights": "4bit"}
GPU = torch.device("cuda")  # named, never used
# Largest error of a product, as a share of its length.
TOLERANCE: dict[WeightKind, float] = {
    "float32": 2e-6,
    "float16": 5e-4,
    "bfloat16": 5e-3,
    "int8": 2.5e-2,
}
KINDS = [
    pytest.param(
        kind, marks=pytest.mark.skipif(not is_usable(kind), reason="no kernel on this machine")
    )
    for kind in TOLERANCE
]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("n_rows", [1, 2, 8, 33, 256])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_products_agree_with_float32(kind: WeightKind, has_bias: bool, n_rows: int) -> None:
    """Each kind stays within its stated share of the float32 product, for any row count."""
    weight, rows = random(96, 64, seed=1), random(n_rows, 64, seed=2)
    bias = random(96, seed=3) if has_bias else None
    expected = torch.nn.functional.linear(rows, weight, bias)
    found = packer(kind)(weight, bias)(rows)
    assert found.dtype == torch.float32
    assert (found - expected).norm() <= TOLERANCE[kind] * expected.norm()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.values != ("float16",)])
def test_kernels_are_compiled_for_few_numbers_of_rows(kind: WeightKind) -> None:
    """Every number of rows up to 128 takes 36 kernels, and each gives as many rows as it got."""
    product = packer(kind)(random(32, 64, seed=1), random(32, seed=2))
    rows = random(128, 64, seed=3)
    whole = product(rows)
    with profile(record_shapes=True) as profiler:
        for n_rows in range(1, 129):
            found = product(rows[:n_rows])
            assert (found - whole[:n_rows]).norm() <= 2 * TOLERANCE[kind] * whole.norm()
            assert len(found) == n_rows
    calls = [event for event in profiler.events() if event.name.endswith("linear_pointwise")]
    assert len(calls) == 128
    assert len({event.input_shapes[0][0] for event in calls}) == 36


@pytest.mark.parametrize("kind", KINDS)
def test_products_leave_their_rows_alone(kind: WeightKind) -> None:
    """The rows are the caller's and are not changed."""
    rows = random(8, 64)
    before = rows.clone()
    packer(kind)(random(32, 64, seed=1), None)(rows)
    assert torch.equal(rows, before)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_may_be_part_of_a_wider_tensor(kind: WeightKind) -> None:
    """A product reads rows that do not lie one after another."""
    product, wide = packer(kind)(random(32, 64, seed=1), None), random(8, 100)
    torch.testing.assert_close(product(wide[:, :64]), product(wide[:, :64].contiguous()))


@pytest.mark.skipif(not is_usable("int8"), reason="no kernel on this machine")
@pytest.mark.parametrize("shape", [(96, 64), (576, 1536), (960, 576)])
def test_int8_rows_do_not_depend_on_the_batch(shape: tuple[int, int]) -> None:
    """A row alone gives the same bits as among others, large ones included."""
    product = packer("int8")(random(*shape, seed=1), random(shape[0], seed=2))
    rows = random(70, shape[1], seed=3)
    rows[::7] *= 1000.0
    together = product(rows)
    for size in (1, 2, 5, 16, 33):
        for start in range(0, 70 - size, 13):
            alone = product(rows[start : start + size])
            assert torch.equal(alone, together[start : start + size])


@pytest.mark.skipif(not is_usable("int8"), reason="no kernel on this machine")
def test_int8_takes_rows_of_zeros_and_of_huge_numbers() -> None:
    """Nothing is divided by zero, and the scale of a row does not matter."""
    product, rows = packer("int8")(random(32, 64, seed=1), None), random(4, 64)
    assert torch.equal(product(torch.zeros(2, 64)), torch.zeros(2, 32))
    torch.testing.assert_close(product(rows * 2.0**60), product(rows) * 2.0**60)


def test_seven_bits_serve_where_eight_overflow() -> None:
    """Half the levels cost precision, not correctness."""
    weight, rows = random(32, 64, seed=1), random(8, 64)
    expected = rows @ weight.T
    found = Int8Product(weight, None, levels=63)(rows)
    assert (found - expected).norm() <= 3e-2 * expected.norm()


@pytest.mark.parametrize(
    ("wanted", "dtype", "device", "kinds"),
    [
        ("float32", torch.float32, CPU, {"float32"}),
        ("auto", torch.float32, CPU, {"float16", "bfloat16"}),
        ("16bit", torch.float32, CPU, {"float16", "bfloat16"}),
        ("int8", torch.float32, CPU, {"int8"}),
        ("auto", torch.bfloat16, CPU, {None}),
        ("auto", torch.bfloat16, GPU, {None}),
    ],
)
def test_setting_gives_a_kind(
    wanted: WeightsName, dtype: torch.dtype, device: torch.device, kinds: set[WeightKind | None]
) -> None:
    """auto is 16 bits on a CPU; what is loaded in 16 bits or on a GPU stays as it is."""
    if "float16" in kinds and not is_usable("float16"):
        pytest.skip("no 16-bit kernel on this machine")
    assert choose_kind(wanted, dtype, device) in kinds


@pytest.mark.skipif(not is_usable("float16"), reason="no kernel on this machine")
@pytest.mark.parametrize(
    ("processor", "gains"),
    [
        (Processor("AuthenticAMD", has_bfloat16_vectors=True, has_tiles=False), True),
        (Processor("AuthenticAMD", has_bfloat16_vectors=False, has_tiles=False), False),
        (Processor("GenuineIntel", has_bfloat16_vectors=True, has_tiles=False), False),
        (Processor("GenuineIntel", has_bfloat16_vectors=True, has_tiles=True), True),
        (Processor("", has_bfloat16_vectors=False, has_tiles=False), False),
    ],
)
def test_sixteen_bits_are_bfloat16_where_that_is_faster(processor: Processor, gains: bool) -> None:
    """Tiles, or vectors that take twice as many numbers, make it bfloat16; nothing else does."""
    assert processor.gains_from_bfloat16 == gains
    expected = "bfloat16" if gains and is_usable("bfloat16") else "float16"
    assert choose_kind("16bit", torch.float32, CPU, processor) == expected
    assert choose_kind("auto", torch.float32, CPU, processor) == expected


def test_two_looks_at_this_machine_agree() -> None:
    """The choice is the processor's and not the moment's."""
    assert Processor.here() == Processor.here()
    kinds = [choose_kind("16bit", torch.float32, CPU) for _ in range(2)]
    assert kinds[0] == kinds[1]


def test_output_layer_of_int8_gets_more_bits() -> None:
    """The layers are int8, the output layer is not."""
    assert head_kind("int8") != "int8"
    assert head_kind("float16") == "float16"


@pytest.mark.parametrize(
    ("settings", "device", "expected"),
    [
        ({}, CPU, torch.float32),
        ({"weights": "int8"}, CPU, torch.float32),
        ({}, GPU, "auto"),
        ({"weights": "float32"}, GPU, torch.float32),
        ({"weights": "16bit"}, GPU, torch.bfloat16),
        ({"weights": "16bit", "dtype": "float16"}, GPU, torch.float16),
        ({"dtype": "bfloat16"}, CPU, torch.bfloat16),
    ],
)
def test_checkpoint_is_loaded_in_a_format_that_fits(
    settings: dict[str, Any], device: torch.device, expected: torch.dtype | str
) -> None:
    """Packing starts from float32; a GPU keeps the checkpoint's own format unless asked."""
    assert load_dtype(EngineConfig(**settings), device) == expected


@pytest.mark.parametrize(
    ("settings", "device", "reason"),
    [
        ({"weights": "int8"}, GPU, "CPU alone"),
        ({"weights": "int8", "dtype": "float16"}, CPU, "leave dtype out"),
        ({"weights": "16bit", "dtype": "bfloat16"}, CPU, "leave dtype out"),
        ({"weights": "float32", "dtype": "bfloat16"}, GPU, "leave dtype out"),
        ({"weights": "16bit", "dtype": "float32"}, GPU, "leave dtype out"),
    ],
)
def test_settings_that_contradict_are_refused(
    settings: dict[str, Any], device: torch.device, reason: str
) -> None:
    """The message says which setting to change."""
    with pytest.raises(ConfigError, match=reason):
        load_dtype(EngineConfig(**settings), device)


@pytest.mark.parametrize("wanted", ["16bit", "int8"])
def test_packing_starts_from_float32_on_a_cpu(wanted: WeightsName) -> None:
    """A model in memory that is something else is refused, not served otherwise in silence."""
    with pytest.raises(ConfigError, match="float32 on cuda"):
        choose_kind(wanted, torch.float32, GPU)
    if wanted == "int8":
        with pytest.raises(ConfigError, match="bfloat16 on cpu"):
            choose_kind(wanted, torch.bfloat16, CPU)


def test_missing_kernels_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """auto falls back to float32 with torch's own product; what was asked for is refused."""

    def missing(*_: object, **__: object) -> NoReturn:
        raise RuntimeError("no such kernel")

    for name in ("OneDnnProduct", "HalfProduct", "Int8Product"):
        monkeypatch.setattr(choice, name, missing)
    assert choose_kind("auto", torch.float32, CPU) == "float32"
    assert packer("float32") is PlainProduct
    asked: tuple[WeightsName, ...] = ("16bit", "int8")
    for wanted in asked:
        with pytest.raises(ConfigError, match="no kernel"):
            choose_kind(wanted, torch.float32, CPU)


def test_unknown_weights_are_refused() -> None:
    """The message lists the choices."""
    with pytest.raises(ConfigError, match="auto, float32, 16bit, int8"):
        EngineConfig(**UNKNOWN)
