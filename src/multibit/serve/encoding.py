"""Raw texts and images -> relaxed codes. All encoders of the server come from `load_query_encoder`."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from multibit.codes import MODALITIES, Modality
from multibit.data.images import UPLOADED, decode_image
from multibit.errors import DataError, MismatchError, MultibitError
from multibit.queries import relaxed_codes, unread_note

if TYPE_CHECKING:
    from multibit.pipeline import AnyRun

Raw = tuple[Modality, Any]
"""Modality of a query, and what its encoder takes: a text, or the prepared pixels of an image."""


@dataclass(frozen=True)
class QueryEncoder:
    """The encoders of a run, loaded once.

    Attributes:
        run: with the model. encoders: modality -> its encoder. missing: modality -> why it has none.
    """

    run: AnyRun
    encoders: dict[Modality, Any]
    missing: dict[Modality, MultibitError]

    def prepare(self, content: bytes, max_pixels: int) -> Raw:
        """An image file in memory as a query.

        Raises:
            DataError: not an image, or too many pixels; and as `require`.
        """
        self.require("image")
        image = decode_image(io.BytesIO(content), max_pixels=max_pixels, formats=UPLOADED)
        return "image", self.encoders["image"].prepare(image)

    def require(self, modality: Modality) -> None:
        """Refuse queries of a modality without an encoder."""
        if modality not in self.encoders:
            error = self.missing[modality]
            raise DataError(f"{modality}s cannot be encoded here: {error.problem}", field=modality)

    def note(self, text: str) -> str:
        """What the encoder cannot read in a text that is a query, see `unread_note`."""
        self.require("text")
        return unread_note(self.encoders["text"], text)

    def encode(self, queries: Sequence[Raw]) -> list[NDArray[np.float32]]:
        """The relaxed codes of some queries, each (stored bits,): one pass of the encoder for each modality."""
        out: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(queries)
        for modality in MODALITIES:
            places = [place for place, query in enumerate(queries) if query[0] == modality]
            if places:
                self.require(modality)
                inputs = [queries[place][1] for place in places]
                values = relaxed_codes(self.run.model, self.encoders[modality], inputs, modality)
                for place, row in zip(places, values, strict=True):
                    out[place] = row
        return out


def load_query_encoder(run: AnyRun) -> QueryEncoder:
    """Load the encoders of a run's features. A modality without one (ready-made features) is left out.

    Raises:
        MismatchError: an installed encoder differs from that of the features.
    """
    encoders: dict[Modality, Any] = {}
    missing: dict[Modality, MultibitError] = {}
    for modality in MODALITIES:
        try:
            encoders[modality] = run.image_encoder() if modality == "image" else run.text_encoder()
        except MismatchError:
            raise
        except MultibitError as error:
            missing[modality] = error
    return QueryEncoder(run, encoders, missing)
