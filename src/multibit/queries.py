"""Queries: raw texts, images and files of them -> codes, by the encoders of a run's features."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from multibit.codes import Codes, Modality
from multibit.data.images import open_image
from multibit.errors import DataError, MismatchError, QueryNote, require_kind, require_opened
from multibit.features.base import TextEncoder, unread
from multibit.hashing.encode import part_at
from multibit.search import Index
from multibit.search.batches import BLOCK, Queries, QueryFile
from multibit.texts import is_blank

if TYPE_CHECKING:
    from multibit.pipeline import AnyRun
    from multibit.search.remote import RemoteIndex

SHOWN = 60  # characters of a text that a message repeats


def encode_text(run: AnyRun, text: str, bits: int | None = None, *, download: bool = False) -> NDArray[np.float32]:
    """Relaxed code (1, B) of a text, by the text encoder of the run's features.

    Args:
        run: with the model. text: any. bits: length to be searched at, where the run has a code for each length; the
            longest when None.
        download: whether the hub may be asked for an encoder that is not on this disk; the user's token is not sent.

    A text that the encoder reads only in part, such as one in a script that it has not learned, gives a `QueryNote`.

    Raises:
        DataError: an empty text, one of which the encoder knows nothing, or a run that was trained on ready-made
            features. MismatchError: the installed encoder differs from that of the features.

    Example:
        >>> code = encode_text(run, "a red flower")
        >>> code.shape, len(index.search(Codes.binarize(code), k=3, bits=4).hits())
        ((1, 8), 3)
    """
    require_opened(run, "run", "open_run")
    require_kind(text, str, "text", "Code several texts with encode_texts.")
    if is_blank(text):
        raise DataError("is empty.", option="query", hint="Give a text or the path of an image.")
    encoder = run.text_encoder(download=download)
    if note := unread_note(encoder, text):
        warnings.warn(note, QueryNote, stacklevel=2)
    return _code(run, encoder, [text], "text", bits)


def encode_texts(run: AnyRun, texts: Sequence[str]) -> NDArray[np.float32]:
    """Relaxed codes (n, B) of texts that are to be stored, by the text encoder of the run's features.

    Args:
        run: with one nested code. texts: any, an empty one included.

    Raises:
        DataError: a run that was trained on ready-made features. MismatchError: as `encode_text`.
    """
    if isinstance(texts, str):
        raise DataError("need several texts, got one.", option="texts", hint="Code one with encode_text.")
    encoder = run.text_encoder()
    size = encoder.batch_size
    blocks = [_code(run, encoder, texts[start : start + size], "text", None) for start in range(0, len(texts), size)]
    return np.concatenate([np.empty((0, run.model.bits), np.float32), *blocks])


def unread_note(encoder: TextEncoder, text: str) -> str:
    """What an encoder cannot read in a query; "" where it reads all of it.

    Args:
        encoder: of a run. text: not empty.

    Raises:
        DataError: it knows nothing of the text, so all such texts would have the same hits.
    """
    found = unread(encoder, text)
    if found is None:
        return ""
    name = encoder.recipe.name
    if found.unknown == found.tokens:
        raise DataError(
            f"the text encoder {name} knows no word of {text[:SHOWN]!r}, so all such texts have the same hits.",
            option="query",
            hint="Part emoji and other signs from the words, or use features by an encoder of this language.",
        )
    if found.unknown:
        problem = f"does not know {found.unknown} of the {found.tokens} parts of the query"
    else:
        problem = "spells the query letter by letter: it has hardly learned this script"
    return f"The text encoder {name} {problem}; the hits may mean little."


def encode_image(
    run: AnyRun, path: Path | str, bits: int | None = None, *, download: bool = False
) -> NDArray[np.float32]:
    """Relaxed code (1, B) of an image file, by the image encoder of the run's features.

    Args:
        run: with the model. path: of the image. bits, download: as for `encode_text`.

    Raises:
        DataError: an unreadable image, or the run was trained on ready-made features. MismatchError: as `encode_text`.

    Example:
        >>> encode_image(run, data.images[0]).shape
        (1, 8)
    """
    require_opened(run, "run", "open_run")
    require_kind(path, (str, os.PathLike), "path", "Code pictures in memory with encode_images of a portable model.")
    encoder = run.image_encoder(download=download)
    return _code(run, encoder, [encoder.prepare(open_image(Path(path)))], "image", bits)


def read_queries(
    run: AnyRun,
    queries: QueryFile,
    bits: int | None = None,
    *,
    stored: Callable[[], Index | RemoteIndex] | None = None,
    download: bool = False,
) -> Iterator[Queries]:
    """The codes of a file of queries, block by block.

    Args:
        run: with the model, whose encoders read texts and images. queries: the file. bits: as for `encode_text`.
        stored: opens the index that has the items, for a file of their ids. download: as for `encode_text`.

    Raises:
        DataError: an unreadable image or an unknown id, or as `encode_text`. MismatchError: packed codes of another
            model.
    """
    model = queries.facts.model or run.record.model
    if model != run.record.model:
        problem = f"holds codes of model {model}, the run is model {run.record.model}."
        raise MismatchError(problem, file=queries.path)
    encode = _reader_of_queries(run, queries, bits, stored, download)
    for first, ids, values in queries.blocks(BLOCK):
        yield Queries(encode(values, first), ids)


def _reader_of_queries(
    run: AnyRun, queries: QueryFile, bits: int | None, stored: Callable[[], Index | RemoteIndex] | None, download: bool
) -> Callable[[Any, int], Codes]:
    """The function that makes codes of the queries of a block, which begins at a row."""
    if queries.given == "code":
        return functools.partial(_given_codes, run, queries, bits)
    if queries.given == "id":
        if stored is None:
            raise DataError("holds ids, so an index that has these items is needed.", file=queries.path)
        return functools.partial(_stored_codes, queries, stored())
    encoder: Any = (run.text_encoder if queries.given == "text" else run.image_encoder)(download=download)
    return functools.partial(_encoded, run, queries, encoder, bits)


def _given_codes(run: AnyRun, queries: QueryFile, bits: int | None, values: Any, first: int) -> Codes:
    codes, layout = queries.codes(values, first), run.model.layout
    wanted = bits or layout.longest
    if codes.bits >= layout.longest + 8 or (layout.nested and codes.bits < wanted):
        problem = f"holds codes of {codes.bits} bits; need {wanted} to {layout.longest}."
        raise DataError(problem, file=queries.path, field="code")
    return codes


def _stored_codes(queries: QueryFile, index: Index | RemoteIndex, values: Any, first: int) -> Codes:
    try:
        return index.codes_of(values.to_pylist())
    except DataError as error:
        raise error.within(queries.path) from None


def _encoded(run: AnyRun, queries: QueryFile, encoder: Any, bits: int | None, values: Any, first: int) -> Codes:
    """Codes of texts or images, read and encoded in batches of the encoder."""
    layout, modality = run.model.layout, queries.modality()
    parts = [Codes.from_bits(np.zeros((0, layout.views, layout.serving(bits or layout.longest)), np.uint8))]
    for start in range(0, len(values), encoder.batch_size):
        inputs = []
        for row, value in enumerate(values[start : start + encoder.batch_size].to_pylist(), start=first + start + 1):
            try:
                image = modality == "image"
                if not image and is_blank(value):
                    raise DataError("is empty.")
                inputs.append(encoder.prepare(open_image(queries.path.parent / value)) if image else value)
            except DataError as error:
                raise DataError(error.render(), file=queries.path, row=row, field=modality) from None
        parts.append(Codes.binarize(_code(run, encoder, inputs, modality, bits)))
    return Codes.concatenate(parts)


def relaxed_codes(model: Any, encoder: Any, inputs: Sequence[Any], modality: Modality) -> NDArray[np.float32]:
    """What an encoder takes, n texts or prepared images -> relaxed codes (n, stored bits) of a model."""
    vectors, tokens = encoder.encode_tokens(inputs) if model.reads_tokens else (encoder.encode(inputs), None)
    relaxed: NDArray[np.float32] = model.encode(vectors, modality, tokens)
    return relaxed


def _code(
    run: AnyRun, encoder: Any, inputs: Sequence[Any], modality: Modality, bits: int | None
) -> NDArray[np.float32]:
    """The relaxed codes of Q queries at a length: (Q, B), or (Q, V, B) where an item has V codes."""
    model = run.model.serving(run.model.bits if bits is None else bits)
    return part_at(model, relaxed_codes(model, encoder, inputs, modality), bits)
