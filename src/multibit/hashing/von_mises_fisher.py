"""The von Mises-Fisher distribution: directions around a mean, more closely the larger the concentration."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

ROUNDS = 32  # of rejection: fewer than one value in 1e11 is still rejected then, and its last proposal is kept


def mean_shrinkage(square: Tensor, dimension: int) -> Tensor:
    """A(k) / k of squared concentrations k^2: what the natural parameter k mu is multiplied by to get the mean.

    A is the mean of the two usual bounds of the ratio of Bessel functions I_{d/2}(k) / I_{d/2-1}(k).

    Args:
        square: k^2, any shape. dimension: d >= 2.

    Example:
        >>> k = torch.tensor(20.0)
        >>> round(float(k * mean_shrinkage(k**2, 3)), 3)  # coth 20 - 1/20
        0.95
    """
    lower, upper = _roots(square, dimension)
    a = (dimension - 1) / 2
    return 0.5 * (1 / (a + upper) + 1 / (a + lower))


def log_normalizer(square: Tensor, dimension: int) -> Tensor:
    """Logarithm of C(k) of squared concentrations k^2, without a constant: the density is C(k) exp(k mu.z).

    Its derivative by k is -A(k), with the A of `mean_shrinkage`.

    Args:
        square: k^2, any shape. dimension: d >= 2.
    """
    lower, upper = _roots(square, dimension)
    a = (dimension - 1) / 2
    return 0.5 * (a * torch.log((a + lower) * (a + upper)) - lower - upper)


def _roots(square: Tensor, dimension: int) -> tuple[Tensor, Tensor]:
    """sqrt(a^2 + k^2) and sqrt(b^2 + k^2) with a = (d-1)/2, b = (d+1)/2."""
    a, b = (dimension - 1) / 2, (dimension + 1) / 2
    return torch.sqrt(square + a * a), torch.sqrt(square + b * b)


class Noise(NamedTuple):
    """The random numbers behind S samples of each of n distributions, which carry no gradient.

    Attributes:
        share: (n, S) accepted Beta values in [0, 1], one for the cosine of each sample with its mean direction.
        tangent: (n, S, d-1) unit vectors.
    """

    share: Tensor
    tangent: Tensor


@torch.no_grad()
def draw_noise(concentration: Tensor, dimension: int, count: int) -> Noise:
    """Draw the random numbers of samples by Wood's rejection (1994), from torch's global generator.

    Args:
        concentration: (n,) k >= 0. dimension: d. count: S, samples of each distribution.
    """
    k = concentration[:, None].expand(-1, count).reshape(-1)  # (nS,)
    share = _circle_ends(k) if dimension == 1 else _rejection(k, dimension)
    tangent = torch.randn(len(concentration), count, dimension - 1, dtype=k.dtype, device=k.device)
    return Noise(share.reshape(-1, count), functional.normalize(tangent, dim=2))


def place(noise: Noise, natural: Tensor) -> Tensor:
    """The samples of distributions whose random numbers are drawn; differentiable.

    Args:
        noise: drawn for the lengths of `natural`. natural: (n, d) natural parameters k mu.

    Returns:
        (n, S, d) unit vectors; uniform on the sphere where `natural` is 0.

    Example:
        >>> natural = torch.full((1, 16), 1.0)
        >>> samples = place(draw_noise(natural.norm(dim=1), 16, 1000), natural)
        >>> samples.shape, bool(samples.mean(dim=1).norm() < 0.5)
        (torch.Size([1, 1000, 16]), True)
    """
    concentration = torch.linalg.vector_norm(natural, dim=1)  # (n,)
    cosine = _cosine(noise.share, concentration[:, None], natural.shape[1])  # (n, S)
    sine = (1 - cosine.square()).clamp(min=1e-12).sqrt()  # its gradient is finite at cosine 1
    around_first = torch.cat([cosine[:, :, None], sine[:, :, None] * noise.tangent], dim=2)  # (n, S, d)
    first = functional.one_hot(torch.tensor(0), natural.shape[1]).to(natural)  # (d,)
    mirror = functional.normalize(first - functional.normalize(natural, dim=1), dim=1)  # (n, d), swaps e_1 and mu
    return torch.baddbmm(around_first, around_first @ mirror[:, :, None], mirror[:, None], alpha=-2)


def _cosine(share: Tensor, k: Tensor, dimension: int) -> Tensor:
    """The cosine with the mean direction of a Beta value; the Beta values 0 and 1 are the directions mu and -mu."""
    b = _shape(k, dimension)
    return ((1 - share - b * share) / (1 - share + b * share)).clamp(-1, 1)


def _shape(k: Tensor, dimension: int) -> Tensor:
    """Wood's b in (0, 1], in the form that does not cancel for a large concentration."""
    degrees = max(dimension - 1, 1)  # in one dimension b has no effect
    return degrees / (2 * k + torch.sqrt(4 * k.square() + degrees**2))


def _rejection(k: Tensor, dimension: int) -> Tensor:
    """(m,) accepted Beta values of (m,) concentrations; the rejected ones are drawn again."""
    half = torch.tensor((dimension - 1) / 2, dtype=k.dtype, device=k.device)
    beta = torch.distributions.Beta(half, half, validate_args=False)
    b = _shape(k, dimension)
    mode = (1 - b) / (1 + b)  # x_0
    log_height = torch.log(4 * b) - 2 * torch.log1p(b)  # log(1 - x_0^2)
    share, pending = torch.empty_like(k), torch.arange(len(k), device=k.device)
    for _ in range(ROUNDS):
        proposal = beta.sample((len(pending),))
        share[pending] = proposal
        concentration, x0 = k[pending], mode[pending]
        cosine = _cosine(proposal, concentration, dimension)
        excess = torch.log1p(-x0 * cosine) - log_height[pending]
        accepted = concentration * (cosine - x0) + (dimension - 1) * excess >= torch.rand_like(cosine).log()
        pending = pending[~accepted]
        if not len(pending):
            break
    return share


def _circle_ends(k: Tensor) -> Tensor:
    """(m,) shares of the two directions of one dimension: 0 is mu, with the probability sigmoid(2k), and 1 is -mu."""
    return (torch.rand_like(k) >= torch.sigmoid(2 * k)).to(k.dtype)
