"""Rankings among the items of a batch: products of their codes, and divergences from the rankings of a teacher."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple, Self, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class Segments(nn.Module):
    """Mean products of two codes on several segments of their bits.

    The ends of the segments cut a code into pieces. The product on a segment is the sum of those on its pieces, so that
    each bit is multiplied once, however many segments it belongs to.

    Args:
        segments: of the bits 0 to the last that any of them has.

    Example:
        >>> segments = Segments([slice(0, 1), slice(0, 3)])
        >>> code = torch.tensor([[1.0, 1.0, -1.0], [1.0, -1.0, 1.0]])
        >>> segments(code, code)
        tensor([[[ 1.0000,  1.0000],
                 [ 1.0000,  1.0000]],
        <BLANKLINE>
                [[ 1.0000, -0.3333],
                 [-0.3333,  1.0000]]])
    """

    member: Tensor  # (S, pieces) 1 where a piece belongs to a segment
    bits: Tensor  # (S, 1) of each segment

    def __init__(self, segments: Sequence[slice]) -> None:
        super().__init__()
        ends = sorted({0, *(end for each in segments for end in (each.start, each.stop))})
        pieces = list(itertools.pairwise(ends))
        self.widths = [stop - start for start, stop in pieces]
        member = [[each.start <= start and stop <= each.stop for start, stop in pieces] for each in segments]
        self.register_buffer("member", torch.tensor(member, dtype=torch.float32), persistent=False)
        bits = torch.tensor([[each.stop - each.start] for each in segments])
        self.register_buffer("bits", bits, persistent=False)

    def forward(self, left: Tensor, right: Tensor, factors: Tensor | float = 1.0) -> Tensor:
        """<left, right> / bits of each two rows, times a factor.

        Args:
            left, right: (..., b, B) codes. factors: one, or (S, 1) of each segment.

        Returns:
            (S, ..., b, b), rows of `left` by rows of `right`.
        """
        pieces = zip(*(torch.split(each, self.widths, dim=-1) for each in (left, right)), strict=True)
        products = torch.stack([one @ other.mT for one, other in pieces])  # (pieces, ..., b, b)
        shares = self.member.to(left) * (factors / self.bits)
        return (shares @ products.flatten(1)).view(len(shares), *products.shape[1:])


class Goals(NamedTuple):
    """Rankings of a teacher, which others follow.

    Attributes:
        chances: (K, b, b) P*(r|q) of each query q, a row, that sum to 1; with those of each column as a query added
            where `both`.
        negative_entropy: (K,) sum of P* log P* over all queries.
        both: whether rows and columns are queries.
    """

    chances: Tensor
    negative_entropy: Tensor
    both: bool

    @classmethod
    def of(cls, logits: Tensor, *, both: bool) -> Self:
        """The softmax of the logits (K, b, b); symmetric where `both`, so that the columns rank as the rows do."""
        chances = torch.softmax(logits, dim=-1)
        negative_entropy = (chances * torch.log_softmax(logits, dim=-1)).sum(dim=(1, 2))
        return cls(chances + chances.mT, 2 * negative_entropy, both) if both else cls(chances, negative_entropy, both)

    def take(self, rows: list[int]) -> Self:
        """Some of the rankings, in this order."""
        return self._replace(chances=self.chances[rows], negative_entropy=self.negative_entropy[rows])

    def divergence(self, logits: Tensor) -> Tensor:
        """KL divergence of the softmax of logits (..., K, b, b) from these rankings, mean over the queries of a side.

        Where `both`, it is the sum of the two sides. One ranking serves for any number of logits.

        Returns:
            (..., K).
        """
        of_chances = (self.chances * logits).sum(dim=(-2, -1))
        return (log_sums(logits, both=self.both) - of_chances + self.negative_entropy) / logits.shape[-1]


def log_sums(logits: Tensor, *, both: bool) -> Tensor:
    """Sum over the rows, and over the columns where `both`, of the logarithm of the sum of exponentials.

    Args:
        logits: (..., b, b).

    Returns:
        (...).

    Example:
        >>> logits = torch.log(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        >>> log_sums(logits, both=True).exp().round()  # (1 + 2) (3 + 4) times (1 + 3) (2 + 4)
        tensor(504.)
    """
    return cast(Tensor, _LogSums.apply(logits, both))  # type: ignore[no-untyped-call]


class _LogSums(torch.autograd.Function):
    """`log_sums`, whose gradient is the softmax: it is at hand, and one for rows and columns together."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, both: bool) -> Tensor:
        shares = torch.softmax(logits, dim=-1)
        sums = _log_sums_by(logits, shares, dim=-1)
        if both:
            of_columns = torch.softmax(logits, dim=-2)
            sums += _log_sums_by(logits, of_columns, dim=-2)
            shares += of_columns
        ctx.save_for_backward(shares)
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (shares,) = ctx.saved_tensors
        return shares * gradient[..., None, None], None


def _log_sums_by(logits: Tensor, shares: Tensor, dim: int) -> Tensor:
    """(...) from the softmax: the largest logit less the logarithm of its share, which is at least 1/b."""
    return (logits.amax(dim) - shares.amax(dim).log()).sum(dim=-1)


def leave_out(pairs: Tensor) -> Tensor:
    """What is added to logits (..., b, b) to leave pairs out: so low that their softmax is exactly 0; for the others 0.

    It is finite, so that a query that no pair is left for has no NaN.

    Args:
        pairs: (b, b) bool, to leave out.

    Example:
        >>> torch.softmax(torch.zeros(2) + leave_out(torch.tensor([False, True])), dim=0)
        tensor([1., 0.])
    """
    return pairs * (torch.finfo(torch.float32).min / 4)
