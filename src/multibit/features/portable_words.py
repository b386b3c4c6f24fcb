"""Tokenizers of `transformers` as tokenizers of the library `tokenizers`, which are saved as one JSON file."""

from __future__ import annotations

import string
from typing import Any

from multibit.errors import ConfigError

SPACE = "\u2581"  # how sentencepiece writes a space


def portable_words(library: Any) -> Any:
    """The tokenizer with the same tokens.

    Args:
        library: a tokenizer of `transformers`.

    Raises:
        ConfigError: it runs in Python only, and it is not that of SigLIP.
    """
    from tokenizers import Tokenizer

    words = getattr(library, "backend_tokenizer", None)
    if words is not None:
        return Tokenizer.from_str(words.to_str())
    if type(library).__name__ == "SiglipTokenizer":
        return _siglip(library)
    raise ConfigError(
        f"the tokenizer {type(library).__name__} runs in Python only, so it cannot be made portable.", option="encoder"
    )


def _siglip(library: Any) -> Any:
    """That of SigLIP: lower case, no punctuation, single spaces; then a sentencepiece model, and the end token."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers.convert_slow_tokenizer import SpmConverter

    pieces = library.sp_model
    tokenizer = Tokenizer(
        models.Unigram(
            [(pieces.IdToPiece(number), pieces.GetScore(number)) for number in range(pieces.GetPieceSize())],
            unk_id=pieces.unk_id(),
        )
    )
    steps: list[Any] = [normalizers.Lowercase()] if library.do_lower_case else []
    # the end token written in a text is a plain end token here, as in the other tokenizers
    steps += [
        normalizers.Replace(Regex("[" + "".join(f"\\x{ord(mark):02x}" for mark in string.punctuation) + "]"), ""),
        normalizers.Replace(Regex(r"\s+"), " "),
        normalizers.Strip(),
    ]
    converter: Any = SpmConverter
    charsmap = converter(library).proto.normalizer_spec.precompiled_charsmap
    if charsmap:
        steps += [normalizers.Precompiled(charsmap), normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always", split=False)
    end = str(library.eos_token)
    tokenizer.add_special_tokens([AddedToken(str(token), normalized=False) for token in library.all_special_tokens])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", special_tokens=[(end, int(library.eos_token_id))]
    )
    return tokenizer
