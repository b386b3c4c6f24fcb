"""The rule of every index: it compares codes of one model only."""

from __future__ import annotations

from abc import ABC, abstractmethod

from multibit.codes import Codes
from multibit.codes.packing import require_codes
from multibit.errors import MismatchError


class OfOneModel(ABC):
    """What an index in this process and one in a database have in common.

    Attributes:
        model: fingerprint of the model that made the codes; "" when unknown.
    """

    model: str

    @property
    @abstractmethod
    def _described(self) -> tuple[str, str]:
        """The index in a sentence, and how it is made again."""

    def require_model(self, model: str) -> None:
        """Refuse to compare codes of different models, whose bits have different meanings.

        Raises:
            MismatchError: the fingerprints differ.
        """
        if self.model != model:
            what, hint = self._described
            raise MismatchError(
                f"{what} holds codes of model {self.model or 'unknown'}, not of model {model or 'unknown'}.", hint=hint
            )

    def _require_own(self, codes: Codes, model: str | None = None) -> None:
        """Refuse codes of another model, where that of the codes is given, or both are known."""
        require_codes(codes)
        if model is not None or (codes.model and self.model):
            self.require_model(codes.model if model is None else model)
