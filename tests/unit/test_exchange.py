"""Codes in the files of other tools: those tools read them, and what is no such file is named."""

import sys

import numpy as np
import pytest
import scipy.io

from multibit import Codes
from multibit.codes.distance import nearest
from multibit.errors import DataError, MissingExtraError
from multibit.search.exchange import MAT_KEYS, export_codes, import_codes, load_mat, save_mat

LENGTHS = [1, 7, 8, 9, 16, 17, 63, 64, 65, 128, 250]


@pytest.fixture
def faiss():
    return pytest.importorskip("faiss", reason='faiss is not installed: pip install "multibit[faiss]"')


def random_bits(items, length, seed=0):
    return np.random.default_rng(seed).integers(0, 2, (items, length), np.uint8)


def sides(query=4, database=9, length=20):
    made = []
    for seed, items in ((1, query), (2, database)):
        labels = random_bits(items, 3, seed=9)
        made.append((*(Codes.from_bits(random_bits(items, length, seed + 5 * side)) for side in (0, 1)), labels))
    return made


# .npy


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("items", [0, 1, 30])
def test_npy_holds_what_packbits_makes_and_comes_back(tmp_path, items, length):
    bits = random_bits(items, length)
    export_codes(Codes.from_bits(bits), tmp_path / "codes.npy")
    assert np.array_equal(np.load(tmp_path / "codes.npy"), np.packbits(bits, axis=1))
    assert import_codes(tmp_path / "codes.npy", length) == Codes.from_bits(bits)


@pytest.mark.parametrize("ending", [".npy", ".faiss"])
@pytest.mark.parametrize("bits", [1, 8, 13, 40])
def test_a_prefix_can_be_exported(tmp_path, faiss, bits, ending):
    values = random_bits(12, 40)
    export_codes(Codes.from_bits(values), str(tmp_path / f"codes{ending}"), bits)
    assert import_codes(str(tmp_path / f"codes{ending}"), bits) == Codes.from_bits(values[:, :bits])


@pytest.mark.parametrize("ending", [".npy", ".faiss"])
def test_without_a_length_whole_bytes_come_back_padded_with_zeros(tmp_path, faiss, ending):
    export_codes(Codes.from_bits(np.ones((2, 11))), tmp_path / f"codes{ending}")
    back = import_codes(tmp_path / f"codes{ending}")
    assert back.to_bits().tolist() == [[1] * 11 + [0] * 5] * 2


# .faiss


@pytest.mark.parametrize("length", LENGTHS)
def test_faiss_reads_its_file_and_finds_the_same_distances(tmp_path, faiss, length):
    codes, queries = Codes.from_bits(random_bits(80, length)), Codes.from_bits(random_bits(5, length, seed=1))
    export_codes(codes, tmp_path / "codes.faiss")
    index = faiss.read_index_binary(str(tmp_path / "codes.faiss"))
    assert (index.ntotal, index.d) == (80, -(-length // 8) * 8)
    distances, rows = index.search(queries.to_bytes(), 80)
    by_row = np.lexsort((rows, distances), axis=1)
    found = nearest(queries, codes, 80)
    np.testing.assert_array_equal(np.take_along_axis(rows, by_row, axis=1), found.rows)
    np.testing.assert_array_equal(np.take_along_axis(distances, by_row, axis=1), found.distances)


@pytest.mark.parametrize("items", [0, 1, 50])
def test_an_index_that_faiss_wrote_is_read(tmp_path, faiss, items):
    bits = random_bits(items, 24)
    index = faiss.IndexBinaryFlat(24)
    index.add(np.packbits(bits, axis=1))
    faiss.write_index_binary(index, str(tmp_path / "made.faiss"))
    assert import_codes(tmp_path / "made.faiss") == Codes.from_bits(bits)


def test_without_faiss_its_files_name_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    (tmp_path / "codes.faiss").write_bytes(b"")
    sentence = r'a \.faiss file needs faiss, which is not installed.*pip install "multibit\[faiss\]"'
    with pytest.raises(MissingExtraError, match=sentence):
        export_codes(Codes.from_bits(random_bits(2, 8)), tmp_path / "new.faiss")
    with pytest.raises(MissingExtraError, match=sentence):
        import_codes(tmp_path / "codes.faiss")
    assert [path.name for path in tmp_path.iterdir()] == ["codes.faiss"]


def other_faiss_files(faiss, folder):
    inverted = faiss.IndexBinaryIVF(faiss.IndexBinaryFlat(16), 16, 1)
    inverted.train(random_bits(50, 2))
    numbered = faiss.IndexBinaryIDMap(faiss.IndexBinaryFlat(16))
    for name, index in (("inverted", inverted), ("numbered", numbered)):
        faiss.write_index_binary(index, str(folder / f"{name}.faiss"))
    faiss.write_index(faiss.IndexFlatL2(4), str(folder / "of floats.faiss"))
    (folder / "empty.faiss").write_bytes(b"")
    (folder / "garbage.faiss").write_bytes(b"garbage" * 99)


@pytest.mark.parametrize("name", ["inverted", "numbered", "of floats", "empty", "garbage"])
def test_a_faiss_file_of_another_kind_is_named(tmp_path, faiss, name):
    other_faiss_files(faiss, tmp_path)
    with pytest.raises(DataError, match=rf"{name}\.faiss: no faiss binary flat index \(.+\)"):
        import_codes(tmp_path / f"{name}.faiss")


@pytest.mark.parametrize("cut", [0.1, 0.5, 0.99])
def test_a_torn_faiss_file_is_named(tmp_path, faiss, cut):
    path = tmp_path / "codes.faiss"
    export_codes(Codes.from_bits(random_bits(9, 40)), path)
    raw = path.read_bytes()
    path.write_bytes(raw[: int(len(raw) * cut)])
    with pytest.raises(DataError, match=r"codes\.faiss: no faiss binary flat index"):
        import_codes(path)


# What no file can be


@pytest.mark.parametrize("name", ["codes.txt", "codes", "codes.npz", "codes.mbx", "codes.NPY"])
def test_another_ending_is_refused_and_the_known_ones_are_named(tmp_path, name):
    with pytest.raises(DataError, match=rf"{name}: codes are exported to \.npy or \.faiss"):
        export_codes(Codes.from_bits(random_bits(2, 8)), tmp_path / name)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / name).write_bytes(b"something")
    with pytest.raises(DataError, match=rf"{name}: codes are imported from \.npy or \.faiss"):
        import_codes(tmp_path / name)


def test_a_file_that_is_not_there_is_named(tmp_path):
    (tmp_path / "folder.npy").mkdir()
    for name in ("missing.npy", "missing.faiss", "folder.npy"):
        with pytest.raises(DataError, match=f"{name}: no such file"):
            import_codes(tmp_path / name)


@pytest.mark.parametrize(
    "content",
    [
        np.ones((2, 3)),
        np.ones(3, np.uint8),
        np.ones((2, 0), np.uint8),
        np.ones((2, 2), np.int8),
        np.array([["a"]]),
        np.array([{}], object),
    ],
    ids=["reals", "one row", "no byte", "signed", "text", "objects"],
)
def test_an_array_of_another_kind_is_named(tmp_path, content):
    np.save(tmp_path / "codes.npy", content, allow_pickle=True)
    with pytest.raises(DataError, match=r"codes\.npy: (no packed codes \(.+\)|packed codes must be)"):
        import_codes(tmp_path / "codes.npy")


@pytest.mark.parametrize("cut", [0, 3, 60, 130, -1])
def test_a_torn_array_is_named(tmp_path, cut):
    export_codes(Codes.from_bits(random_bits(9, 40)), tmp_path / "codes.npy")
    (tmp_path / "codes.npy").write_bytes((tmp_path / "codes.npy").read_bytes()[:cut])
    with pytest.raises(DataError, match=r"codes\.npy: no packed codes \(.+\)"):
        import_codes(tmp_path / "codes.npy")


@pytest.mark.parametrize("bits", [0, 25])
def test_a_length_that_the_bytes_do_not_hold_is_refused(tmp_path, bits):
    export_codes(Codes.from_bits(random_bits(2, 20)), tmp_path / "codes.npy")
    with pytest.raises(DataError, match=rf"codes\.npy: bits: asked for {bits}, 3 bytes hold 1 to 24"):
        import_codes(tmp_path / "codes.npy", bits)
    with pytest.raises(DataError, match=f"asked for a prefix of {bits} bits, these codes have 1 to 20"):
        export_codes(Codes.from_bits(random_bits(2, 20)), tmp_path / "new.npy", bits)
    assert not (tmp_path / "new.npy").exists()


def test_a_length_that_a_faiss_index_does_not_hold_is_refused_with_the_name_of_the_file(tmp_path, faiss):
    export_codes(Codes.from_bits(random_bits(2, 20)), tmp_path / "codes.faiss")
    with pytest.raises(DataError, match=r"codes\.faiss: .*asked for 25, 3 bytes hold 1 to 24"):
        import_codes(tmp_path / "codes.faiss", 25)


@pytest.mark.parametrize("ending", [".npy", ".faiss"])
def test_an_export_that_fails_leaves_the_old_file(tmp_path, monkeypatch, faiss, ending):
    target = tmp_path / f"codes{ending}"
    target.write_bytes(b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("multibit.files.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        export_codes(Codes.from_bits(random_bits(2, 8)), target)
    assert target.read_bytes() == b"old" and list(tmp_path.iterdir()) == [target]


# .mat


@pytest.mark.parametrize("bits", [None, 1, 13, 20])
def test_a_mat_file_has_the_six_keys_that_the_field_reads(tmp_path, bits):
    query, database = sides()
    save_mat(tmp_path / "codes.mat", query, database, bits)
    content = scipy.io.loadmat(tmp_path / "codes.mat")
    assert {key for key in content if not key.startswith("__")} == set(MAT_KEYS)
    for side, (image, text, labels) in (("q", query), ("r", database)):
        for name, codes in (("img", image), ("txt", text)):
            stored = content[f"{side}_{name}"]
            assert np.array_equal(stored, codes.to_bits()[:, :bits] * 2.0 - 1.0) and stored.dtype == np.float32
        assert np.array_equal(content[f"{side}_l"], labels)
    assert content["q_img"].shape == (4, bits or 20) and content["r_l"].shape == (9, 3)


def assert_sides(got, expected):
    for side, wanted in zip(got, expected, strict=True):
        assert side[:2] == wanted[:2]
        assert np.array_equal(side[2], wanted[2]) and side[2].dtype == np.uint8


def test_a_mat_file_comes_back(tmp_path):
    save_mat(str(tmp_path / "codes.mat"), *sides())
    assert_sides(load_mat(str(tmp_path / "codes.mat")), sides())


@pytest.mark.parametrize("low", [0, -1])
@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.float64, bool])
@pytest.mark.parametrize("compressed", [False, True])
def test_codes_of_zeros_and_ones_or_of_signs_are_read_in_any_type(tmp_path, low, kind, compressed):
    if low < 0 and kind in (np.uint8, bool):
        pytest.skip("this type has no sign")
    arrays = {}
    for side, (image, text, labels) in zip("qr", sides(), strict=True):
        for name, codes in (("img", image), ("txt", text)):
            arrays[f"{side}_{name}"] = np.where(codes.to_bits(), 1, low).astype(kind)
        arrays[f"{side}_l"] = labels.astype(np.float64)
    scipy.io.savemat(tmp_path / "theirs.mat", arrays, do_compression=compressed)
    assert_sides(load_mat(tmp_path / "theirs.mat"), sides())


def test_missing_keys_are_listed_with_what_is_there(tmp_path):
    scipy.io.savemat(tmp_path / "theirs.mat", {"q_img": np.ones((2, 4)), "r_l": np.ones((3, 5)), "B": np.ones((1, 6))})
    sentence = r"theirs\.mat: no q_txt, r_img, r_txt, q_l; it has q_img \(2, 4\), r_l \(3, 5\), B \(1, 6\)"
    with pytest.raises(DataError, match=sentence):
        load_mat(tmp_path / "theirs.mat")
    scipy.io.savemat(tmp_path / "theirs.mat", {})
    with pytest.raises(DataError, match="no q_img, q_txt, r_img, r_txt, q_l, r_l; it has nothing"):
        load_mat(tmp_path / "theirs.mat")


OF_7_3 = b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(384) + b"\x89HDF\r\n\x1a\n" + bytes(64)


@pytest.mark.parametrize(("content", "why"), [(OF_7_3, "v7.3"), (b"garbage" * 99, "Unknown mat file type")])
def test_a_mat_file_of_another_version_and_garbage_are_named(tmp_path, content, why):
    (tmp_path / "theirs.mat").write_bytes(content)
    with pytest.raises(DataError, match=rf"theirs\.mat: not a readable MATLAB v5 file \(.*{why}"):
        load_mat(tmp_path / "theirs.mat")


def test_a_mat_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DataError, match=r"theirs\.mat: not a readable MATLAB v5 file"):
        load_mat(tmp_path / "theirs.mat")


@pytest.mark.parametrize("cut", [127, 200, -30])
def test_a_torn_mat_file_is_named(tmp_path, cut):
    save_mat(tmp_path / "codes.mat", *sides())
    (tmp_path / "codes.mat").write_bytes((tmp_path / "codes.mat").read_bytes()[:cut])
    with pytest.raises(DataError, match=r"codes\.mat: (not a readable MATLAB v5 file|no r_l)"):
        load_mat(tmp_path / "codes.mat")


@pytest.mark.parametrize("damage", ["empty", "a few bytes", "header only in part", "flipped byte"])
def test_a_mat_file_damaged_in_any_way_is_named(tmp_path, damage):
    path = tmp_path / "codes.mat"
    save_mat(path, *sides())
    raw = path.read_bytes()
    flipped = raw[:160] + bytes([raw[160] ^ 8]) + raw[161:]
    damaged = {"empty": b"", "a few bytes": raw[:19], "header only in part": raw[:100], "flipped byte": flipped}
    path.write_bytes(damaged[damage])
    with pytest.raises(DataError, match=r"codes\.mat: not a readable MATLAB v5 file"):
        load_mat(path)


@pytest.mark.parametrize("wrong", ["text", np.full((4, 20), np.nan), np.full((4, 20), 0.3)], ids=["text", "NaN", "0.3"])
def test_codes_that_are_neither_bits_nor_signs_are_named(tmp_path, wrong):
    save_mat(tmp_path / "codes.mat", *sides())
    content = scipy.io.loadmat(tmp_path / "codes.mat")
    scipy.io.savemat(tmp_path / "codes.mat", {**{key: content[key] for key in MAT_KEYS}, "q_img": wrong})
    with pytest.raises(DataError, match=r"codes\.mat: q_img"):
        load_mat(tmp_path / "codes.mat")


@pytest.mark.parametrize(("key", "shape"), [("q_txt", (5, 20)), ("r_txt", (9, 19)), ("q_l", (3, 3)), ("r_l", (9, 2))])
def test_arrays_that_do_not_fit_each_other_are_named(tmp_path, key, shape):
    save_mat(tmp_path / "codes.mat", *sides())
    content = scipy.io.loadmat(tmp_path / "codes.mat")
    scipy.io.savemat(tmp_path / "codes.mat", {**{name: content[name] for name in MAT_KEYS}, key: np.ones(shape)})
    with pytest.raises(DataError, match=rf"codes\.mat: .*{key}"):
        load_mat(tmp_path / "codes.mat")


@pytest.mark.parametrize("bits", [0, 21])
def test_a_length_that_the_codes_do_not_have_is_refused_and_nothing_written(tmp_path, bits):
    with pytest.raises(DataError, match=f"asked for a prefix of {bits} bits, these codes have 1 to 20"):
        save_mat(tmp_path / "codes.mat", *sides(), bits)
    assert list(tmp_path.iterdir()) == []


def test_a_mat_file_must_be_called_one(tmp_path):
    with pytest.raises(DataError, match=r"codes\.txt: .*\.mat"):
        save_mat(tmp_path / "codes.txt", *sides())
