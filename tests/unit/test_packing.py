"""Packed nested codes: what goes in comes out, and a prefix of the packed code is the packed prefix."""

import numpy as np
import pytest

from multibit.codes import Codes
from multibit.errors import DataError, FormatError
from multibit.relation import RelationTeacher

LENGTHS = [1, 7, 8, 16, 17, 32, 33, 63, 64, 65, 127, 128, 129, 256, 1024]
every_length = pytest.mark.parametrize("length", LENGTHS)


def random_bits(items, length, seed=0):
    return np.random.default_rng(seed).integers(0, 2, size=(items, length), dtype=np.uint8)


@every_length
@pytest.mark.parametrize("items", [1, 9])
def test_unpacking_gives_back_what_was_packed(items, length):
    bits = random_bits(items, length)
    codes = Codes.from_bits(bits)
    assert (len(codes), codes.bits) == (items, length)
    np.testing.assert_array_equal(codes.to_bits(), bits)
    np.testing.assert_array_equal(codes.to_signs(), np.where(bits, 1, -1))
    assert Codes.binarize(codes.to_signs()) == codes


@every_length
def test_words_of_16_bits_hold_the_code_lowest_bit_first(length):
    bits = random_bits(4, length)
    words = Codes.from_bits(bits).words
    expected = [
        [sum(int(bit) << place for place, bit in enumerate(row[start : start + 16])) for row in bits]
        for start in range(0, length, 16)
    ]
    assert words.tolist() == expected
    assert words.dtype == np.uint16


@every_length
def test_a_cut_word_equals_packing_the_prefix(length):
    bits = random_bits(5, length)
    codes = Codes.from_bits(bits)
    for cut in range(1, length + 1):
        prefix = codes.prefix(cut)
        assert prefix == Codes.from_bits(bits[:, :cut])
        assert prefix.bits == cut


def test_a_prefix_of_a_prefix_is_the_shorter_prefix():
    codes = Codes.from_bits(random_bits(6, 200))
    assert codes.prefix(130).prefix(70).prefix(20) == codes.prefix(20)


@pytest.mark.parametrize("cut", [16, 32, 64, 128, 250])
def test_a_prefix_of_whole_words_copies_nothing(cut):
    codes = Codes.from_bits(random_bits(6, 250))
    assert np.shares_memory(codes.prefix(cut).words, codes.words)


def test_a_cut_word_leaves_the_longer_code_alone():
    bits = random_bits(6, 100)
    codes = Codes.from_bits(bits)
    codes.prefix(70)
    assert codes == Codes.from_bits(bits)


@pytest.mark.parametrize("length", [16, 32, 64, 128, 256, 1024])
def test_the_usual_lengths_take_one_byte_per_eight_bits(length):
    assert Codes.from_bits(random_bits(11, length)).nbytes == 11 * length // 8


def test_the_sign_of_zero_is_plus_one():
    signs = Codes.binarize([[0.0, -0.0, 1e-300, -1e-300, np.inf, -np.inf]]).to_signs()
    assert signs.tolist() == [[1, 1, 1, -1, 1, -1]]


@pytest.mark.parametrize("kind", [np.int8, np.int64, np.float16, np.float32, np.float64])
def test_signs_of_any_signed_type_give_the_same_code(kind):
    signs = np.where(random_bits(5, 40), 1, -1)
    assert Codes.binarize(signs.astype(kind)) == Codes.binarize(signs)


@pytest.mark.parametrize("kind", [bool, np.uint8, np.int32, np.float32])
def test_bits_of_any_type_give_the_same_code(kind):
    bits = random_bits(5, 40)
    assert Codes.from_bits(bits.astype(kind)) == Codes.from_bits(bits)


@every_length
def test_bytes_are_those_of_numpy_and_come_back(length):
    bits = random_bits(5, length)
    codes = Codes.from_bits(bits)
    np.testing.assert_array_equal(codes.to_bytes(), np.packbits(bits, axis=1))
    assert Codes.from_bytes(codes.to_bytes(), length) == codes


def test_bytes_without_a_length_are_used_whole():
    codes = Codes.from_bytes(np.array([[129, 128]], np.uint8))
    assert codes.to_bits().tolist() == [[1, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0]]


def test_bits_past_the_length_are_dropped_when_reading_bytes():
    noisy, clean = np.array([[0b10111111]], np.uint8), np.array([[0b10100000]], np.uint8)
    assert Codes.from_bytes(noisy, 3) == Codes.from_bytes(clean, 3)


@every_length
def test_taking_rows_takes_the_codes_of_those_rows(length):
    bits, rows = random_bits(7, length), [6, 0, 0, 3]
    assert Codes.from_bits(bits).take(rows) == Codes.from_bits(bits[rows])
    assert Codes.from_bits(bits).take([]) == Codes.from_bits(bits[:0])


@pytest.mark.parametrize("rows", [[7], [-1], [1.5], [True, False], [[0, 1]], "0"])
def test_rows_that_do_not_exist_are_refused(rows):
    with pytest.raises(DataError) as caught:
        Codes.from_bits(random_bits(7, 20)).take(rows)
    assert caught.value.field == "rows"


def test_a_mask_takes_the_rows_where_it_is_true():
    bits, kept = random_bits(7, 20), np.arange(7) % 2 == 0
    assert Codes.from_bits(bits).take(kept) == Codes.from_bits(bits[kept])


@every_length
def test_joined_codes_are_the_codes_of_the_joined_bits(length):
    one, two = random_bits(3, length, seed=1), random_bits(5, length, seed=2)
    empty = Codes.from_bits(one[:0])
    joined = Codes.concatenate([Codes.from_bits(one), empty, Codes.from_bits(two)])
    assert joined == Codes.from_bits(np.vstack([one, two]))


def test_codes_are_equal_by_length_and_content():
    bits = random_bits(3, 20)
    changed = bits.copy()
    changed[2, 19] ^= 1
    codes = Codes.from_bits(bits)
    assert codes == Codes.from_bits(bits)
    assert codes != Codes.from_bits(changed)
    assert Codes.from_bits(np.zeros((3, 20))) != Codes.from_bits(np.zeros((3, 19)))
    assert codes != codes.take([0, 1])
    assert codes != "codes"
    assert repr(codes) == "Codes(3 items, 20 bits)"


def test_codes_cannot_be_used_as_a_key():
    with pytest.raises(TypeError):
        hash(Codes.binarize([[1, -1]]))


@every_length
@pytest.mark.parametrize("items", [0, 5])
def test_saving_and_loading_keeps_the_codes(tmp_path, items, length):
    codes = Codes.from_bits(random_bits(items, length))
    codes.save(tmp_path / "codes.safetensors")
    loaded = Codes.load(tmp_path / "codes.safetensors")
    assert loaded == codes
    assert loaded.words.dtype == codes.words.dtype
    assert loaded.fingerprint() == codes.fingerprint()


def test_a_file_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "teacher.safetensors"
    RelationTeacher.fit([[1, 1], [0, 1]]).save(path)
    with pytest.raises(FormatError) as caught:
        Codes.load(path)
    assert caught.value.file == path and "relation teacher" in caught.value.problem


def test_the_fingerprint_tells_content_and_length_apart():
    zeros = np.zeros((3, 20), np.uint8)
    changed = zeros.copy()
    changed[1, 4] = 1
    kinds = [zeros, changed, zeros[:2], zeros[:, :19]]
    assert len({Codes.from_bits(bits).fingerprint() for bits in kinds}) == 4
    assert Codes.from_bits(zeros).fingerprint() == Codes.from_bits(zeros.copy()).fingerprint()


@every_length
def test_no_items_unpack_to_no_rows_of_the_full_length(length):
    empty = Codes.from_bits(np.zeros((0, length)))
    assert len(empty) == 0
    assert empty.to_bits().shape == empty.to_signs().shape == (0, length)
    assert Codes.from_bytes(empty.to_bytes(), length) == empty


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([1, -1], "(2,)"),
        (np.zeros((3, 0)), "(3, 0)"),
        ([["a", "b"]], "<U1"),
        (np.zeros((1, 1025)), "1025"),
        ([[0.0, 1.0], [0.0, np.nan]], "[1, 1]"),
        (np.array([[0, 1]], np.uint8), "uint8"),
        ([[0, 1]], "int64"),
        ([[True, False]], "bool"),
    ],
)
def test_values_without_a_sign_are_refused(values, found):
    with pytest.raises(DataError) as caught:
        Codes.binarize(values)
    assert caught.value.field == "values" and found in caught.value.problem


@pytest.mark.parametrize("values", [[[1, -1]], [[1, 0.5]], [[0, 2]], [[1, np.nan]]])
def test_values_other_than_0_and_1_are_refused_as_bits(values):
    with pytest.raises(DataError) as caught:
        Codes.from_bits(values)
    assert caught.value.field == "values" and "[0, 1]" in caught.value.problem
    assert "binarize" in caught.value.hint


@pytest.mark.parametrize(
    ("packed", "bits", "field", "option"),
    [
        ([[1, 2]], None, "packed codes", ""),
        (np.zeros((2, 2), np.uint8), 17, "", "bits"),
        (np.zeros((2, 2), np.uint8), 0, "", "bits"),
        (np.zeros(2, np.uint8), None, "packed codes", ""),
        (np.zeros((1, 129), np.uint8), None, "", "bits"),
    ],
)
def test_invalid_bytes_are_refused(packed, bits, field, option):
    with pytest.raises(DataError) as caught:
        Codes.from_bytes(packed, bits)
    assert (caught.value.field, caught.value.option) == (field, option)


def test_only_codes_of_one_length_can_be_concatenated():
    short, long = Codes.from_bits(random_bits(2, 20)), Codes.from_bits(random_bits(2, 30))
    with pytest.raises(DataError) as caught:
        Codes.concatenate([long, short])
    assert "[20, 30]" in caught.value.problem
    with pytest.raises(DataError) as caught:
        Codes.concatenate([])
    assert "none" in caught.value.problem


@pytest.mark.parametrize("bits", [16.5, 2.0, True, "8", 0, -1, 21])
def test_a_length_that_the_codes_do_not_have_is_refused(bits):
    with pytest.raises(DataError) as caught:
        Codes.from_bits(np.ones((3, 20))).prefix(bits)
    assert caught.value.option == "bits"
    assert "1 to 20" in caught.value.problem and repr(bits) in caught.value.problem


@pytest.mark.parametrize("dtype", ["?", "u1", "i1", "i8", "f2", "f4", "f8"])
def test_zeros_and_ones_of_any_type_have_no_sign(dtype):
    for values in ([[0, 1], [1, 0]], [[[0, 1], [1, 1]]]):
        with pytest.raises(DataError) as caught:
            Codes.binarize(np.array(values, dtype))
        assert caught.value.field == "values" and "from_bits" in caught.value.hint
