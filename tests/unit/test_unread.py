"""What a text encoder cannot read in a query is said, whatever runs it."""

from __future__ import annotations

import pytest

from multibit.codes.layout import Layout
from multibit.errors import DataError
from multibit.features.base import unread
from multibit.features.load import load_text_encoder


@pytest.fixture(scope="module", params=["onnxruntime", "torch"])
def encoder(request: pytest.FixtureRequest):
    return load_text_encoder("all-minilm-l6-v2", runtime=request.param)


def test_a_text_without_a_known_character_is_found(encoder):
    found = unread(encoder, "\N{GRINNING FACE}")
    assert found is not None and found.unknown == found.tokens == 1


def test_a_text_that_is_known_in_part_is_found(encoder):
    found = unread(encoder, "a red flower \N{GRINNING FACE}")
    assert found is not None and found.unknown == 1 and found.tokens == 4


def test_a_text_that_is_known_is_not(encoder):
    assert unread(encoder, "a red flower") is None


@pytest.mark.parametrize("bits", [0, -1, 2.5, True, "16", 17])
def test_a_length_that_no_code_has_is_refused(bits):
    with pytest.raises(DataError) as caught:
        Layout((16,)).serving(bits)
    assert caught.value.option == "bits"
