"""Root mean square norms and rotary angles in few calls."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_AGREES = 1e-5
_EPSILON_NAMES = ("variance_epsilon", "eps")


class LeanNorm:
    """x / sqrt(mean(x * x) + epsilon) * gain over the last dimension, in five calls."""

    def __init__(self, gain: Tensor, epsilon: float) -> None:
        self.gain = gain
        self._epsilon = torch.full((1,), epsilon)
        self._share = 1.0 / gain.shape[-1]

    def __call__(self, rows: Tensor) -> Tensor:
        """Return a new float32 tensor in the shape of `rows`."""
        length = torch.linalg.vector_norm(rows, 2, -1, True)
        factor = torch.addcmul(self._epsilon, length, length, value=self._share).rsqrt_()
        return (rows * factor).mul_(self.gain)

    def joined(self, other: LeanNorm, n_own: int, n_other: int) -> LeanNorm | None:
        """Return one norm for `n_own` heads of this one and `n_other` of the other one."""
        if self.gain.shape != other.gain.shape or not torch.equal(self._epsilon, other._epsilon):
            return None
        gains = [self.gain.expand(n_own, -1), other.gain.expand(n_other, -1)]
        return LeanNorm(torch.cat(gains), self._epsilon.item())


def lean_norm(module: nn.Module) -> LeanNorm | None:
    """Return the lean form of a model's norm, or None where it is not of this kind.

    Models store either the gain or the gain less 1; which one shows when it is tried.
    """
    weight = getattr(module, "weight", None)
    found = [getattr(module, name) for name in _EPSILON_NAMES if hasattr(module, name)]
    epsilon = found[0] if found else None
    if not isinstance(weight, Tensor) or weight.dim() != 1 or not isinstance(epsilon, float):
        return None
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(4, len(weight), generator=generator)
    expected = module(rows)
    for gain in (weight.detach(), 1.0 + weight.detach()):
        norm = LeanNorm(gain, epsilon)
        if (norm(rows) - expected).norm() <= _AGREES * expected.norm():
            return norm
    return None


class Angles:
    """The rotary angles of one step, in the form that `rotate` reads; made once a step."""

    def __init__(self) -> None:
        self._source: Tensor | None = None
        self._cosines = self._sines = torch.empty(0)

    def of(self, cosines: Tensor, sines: Tensor) -> tuple[Tensor, Tensor]:
        """Return [t, 1, dim] cosines and sines, the first half of the sines negated.

        `cosines` and `sines` are the model's, each [1, t, dim]; the layers of a step get
        the same objects, which is how a step is told from the next.
        """
        if self._source is not cosines:
            half = sines.shape[-1] // 2
            self._cosines = cosines[0].unsqueeze(1)
            self._sines = torch.cat((-sines[0, :, :half], sines[0, :, half:]), -1).unsqueeze(1)
            self._source = cosines
        return self._cosines, self._sines


def rotate(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate [t, heads, dim] by a step's angles, in three calls."""
    turned = heads.roll(heads.shape[-1] // 2, -1)
    return torch.addcmul(heads * cosines, turned, sines)
