"""Codes in files of other tools: those tools read them, and other files are refused."""

import datetime
import errno
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import scipy.io

from multibit import Codes, Index
from multibit.codes import CodedItems
from multibit.codes.distance import nearest
from multibit.errors import DataError, MissingExtraError
from multibit.search.code_files import MAT_KEYS, CodeFile
from multibit.search.exchange import export_codes, export_index, import_index, save_mat

LENGTHS = [1, 7, 8, 9, 16, 17, 63, 64, 65, 128, 250]


@pytest.fixture
def faiss():
    return pytest.importorskip("faiss", reason='faiss is not installed: pip install "multibit[faiss]"')


def random_bits(items, length, seed=0):
    return np.random.default_rng(seed).integers(0, 2, (items, length), np.uint8)


def packed_in(path):
    """The packed codes of an exported file, as numpy or faiss reads it."""
    if path.suffix == ".npy":
        return np.load(path)
    faiss = pytest.importorskip("faiss")
    index = faiss.read_index_binary(str(path))
    return faiss.vector_to_array(index.xb).reshape(index.ntotal, index.code_size)


def sides(query=4, database=9, length=20):
    made = []
    for seed, items in ((1, query), (2, database)):
        image, text = (Codes.from_bits(random_bits(items, length, seed + 5 * side)) for side in (0, 1))
        made.append(CodedItems(image, text, random_bits(items, 3, seed=9)))
    return made


def assert_refused(work, error=DataError, **fields):
    """The work raises an error with these fields; its problem contains `found`."""
    found = fields.pop("found", "")
    with pytest.raises(error) as caught:
        work()
    assert {name: getattr(caught.value, name) for name in fields} == fields
    assert found in caught.value.problem
    return caught.value


# .npy


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("items", [0, 1, 30])
def test_npy_holds_what_packbits_makes_and_comes_back(tmp_path, items, length):
    bits = random_bits(items, length)
    export_codes(Codes.from_bits(bits), tmp_path / "codes.npy")
    assert np.array_equal(np.load(tmp_path / "codes.npy"), np.packbits(bits, axis=1))
    assert Codes.from_bytes(np.load(tmp_path / "codes.npy"), length) == Codes.from_bits(bits)


@pytest.mark.parametrize("ending", [".npy", ".faiss"])
@pytest.mark.parametrize("bits", [1, 8, 13, 40])
def test_a_prefix_can_be_exported(tmp_path, faiss, bits, ending):
    values = random_bits(12, 40)
    export_codes(Codes.from_bits(values), str(tmp_path / f"codes{ending}"), bits)
    assert Codes.from_bytes(packed_in(tmp_path / f"codes{ending}"), bits) == Codes.from_bits(values[:, :bits])


@pytest.mark.parametrize("ending", [".npy", ".faiss"])
def test_whole_bytes_are_padded_with_zeros(tmp_path, faiss, ending):
    export_codes(Codes.from_bits(np.ones((2, 11))), tmp_path / f"codes{ending}")
    assert np.unpackbits(packed_in(tmp_path / f"codes{ending}"), axis=1).tolist() == [[1] * 11 + [0] * 5] * 2


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
def test_faiss_files_of_any_number_of_codes_are_those_of_faiss(tmp_path, faiss, items):
    codes = Codes.from_bits(random_bits(items, 24))
    export_codes(codes, tmp_path / "codes.faiss")
    index = faiss.IndexBinaryFlat(24)
    index.add(codes.to_bytes())
    faiss.write_index_binary(index, str(tmp_path / "made.faiss"))
    assert (tmp_path / "codes.faiss").read_bytes() == (tmp_path / "made.faiss").read_bytes()


def test_without_faiss_its_files_name_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    codes = Codes.from_bits(random_bits(2, 8))
    error = assert_refused(
        lambda: export_codes(codes, tmp_path / "new.faiss"), MissingExtraError, module="faiss", extra="faiss"
    )
    assert "multibit[faiss]" in error.hint and list(tmp_path.iterdir()) == []


# Files that are refused


@pytest.mark.parametrize("name", ["codes.txt", "codes", "codes.npz", "codes.mbx", "codes.NPY"])
def test_another_file_extension_is_refused(tmp_path, name):
    path, codes = tmp_path / name, Codes.from_bits(random_bits(2, 8))
    assert_refused(lambda: export_codes(codes, path), file=path, found=".npy or .faiss")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bits", [0, 25])
def test_a_length_that_the_codes_do_not_have_is_refused(tmp_path, bits):
    codes = Codes.from_bits(random_bits(2, 20))
    assert_refused(lambda: export_codes(codes, tmp_path / "new.npy", bits), option="bits", found=str(bits))
    assert not (tmp_path / "new.npy").exists()


@pytest.mark.parametrize("ending", [".npy", ".faiss"])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_an_error(tmp_path, monkeypatch, faiss, ending):
    opened = Path.open

    def on_full_disk(path, *options):
        return opened(Path("/dev/full") if path.suffix == ending else path, *options)

    monkeypatch.setattr(Path, "open", on_full_disk)
    with pytest.raises(OSError) as caught:
        export_codes(Codes.from_bits(random_bits(300_000, 128)), tmp_path / f"codes{ending}")
    assert caught.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ending", [".npy", ".faiss"])
def test_an_export_that_fails_leaves_the_old_file(tmp_path, monkeypatch, faiss, ending):
    target = tmp_path / f"codes{ending}"
    target.write_bytes(b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("multibit.files.os.fsync", full)
    with pytest.raises(OSError):
        export_codes(Codes.from_bits(random_bits(2, 8)), target)
    assert target.read_bytes() == b"old" and list(tmp_path.iterdir()) == [target]


# .mat


@pytest.mark.parametrize("bits", [None, 1, 13, 20])
def test_a_mat_file_has_the_six_keys_that_the_field_reads(tmp_path, bits):
    query, database = sides()
    save_mat(tmp_path / "codes.mat", query, database, bits)
    content = scipy.io.loadmat(tmp_path / "codes.mat")
    assert {key for key in content if not key.startswith("__")} == set(MAT_KEYS)
    for side, items in (("q", query), ("r", database)):
        for name, codes in (("img", items.image), ("txt", items.text)):
            stored = content[f"{side}_{name}"]
            assert np.array_equal(stored, codes.to_bits()[:, :bits] * 2.0 - 1.0) and stored.dtype == np.float32
        assert np.array_equal(content[f"{side}_l"], items.labels)
    assert content["q_img"].shape == (4, bits or 20) and content["r_l"].shape == (9, 3)


def assert_sides(file, expected):
    for side, wanted in zip((file.query, file.database), expected, strict=True):
        assert (side.image, side.text) == (wanted.image, wanted.text)
        assert np.array_equal(side.labels, wanted.labels) and side.labels.dtype == np.uint8


def test_a_mat_file_comes_back(tmp_path):
    save_mat(str(tmp_path / "codes.mat"), *sides())
    assert_sides(CodeFile.read(str(tmp_path / "codes.mat")), sides())


@pytest.mark.parametrize("low", [0, -1])
@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.float64, bool])
@pytest.mark.parametrize("compressed", [False, True])
def test_codes_of_zeros_and_ones_or_of_signs_are_read_in_any_type(tmp_path, low, kind, compressed):
    if low < 0 and kind in (np.uint8, bool):
        pytest.skip("this type has no sign")
    arrays = {}
    for side, items in zip("qr", sides(), strict=True):
        for name, codes in (("img", items.image), ("txt", items.text)):
            arrays[f"{side}_{name}"] = np.where(codes.to_bits(), 1, low).astype(kind)
        arrays[f"{side}_l"] = items.labels.astype(np.float64)
    scipy.io.savemat(tmp_path / "theirs.mat", arrays, do_compression=compressed)
    assert_sides(CodeFile.read(tmp_path / "theirs.mat"), sides())


def test_missing_keys_are_listed_with_the_keys_that_exist(tmp_path):
    path = tmp_path / "theirs.mat"
    scipy.io.savemat(path, {"q_img": np.ones((2, 4)), "r_l": np.ones((3, 5)), "B": np.ones((1, 6))})
    error = assert_refused(lambda: CodeFile.read(path), file=path, field="q_txt", found="q_txt, r_img, r_txt, q_l")
    assert all(found in error.problem for found in ("q_img (2, 4)", "r_l (3, 5)", "B (1, 6)"))
    scipy.io.savemat(path, {})
    assert_refused(lambda: CodeFile.read(path), file=path, field="q_img", found=", ".join(MAT_KEYS))


OF_7_3 = b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(384) + b"\x89HDF\r\n\x1a\n" + bytes(64)


@pytest.mark.parametrize(("content", "why"), [(OF_7_3, "v7.3"), (b"garbage" * 99, "Unknown mat file type"), (None, "")])
def test_a_mat_file_that_is_of_another_version_or_kind_or_missing_is_refused(tmp_path, content, why):
    path = tmp_path / "theirs.mat"
    if content is not None:
        path.write_bytes(content)
    assert_refused(lambda: CodeFile.read(path), file=path, found=why)


@pytest.mark.parametrize("cut", [127, 200, -30])
def test_a_truncated_mat_file_is_refused(tmp_path, cut):
    path = tmp_path / "codes.mat"
    save_mat(path, *sides())
    path.write_bytes(path.read_bytes()[:cut])
    assert_refused(lambda: CodeFile.read(path), file=path)


@pytest.mark.parametrize("damage", ["empty", "a few bytes", "header only in part", "flipped byte"])
def test_a_corrupt_mat_file_is_refused(tmp_path, damage):
    path = tmp_path / "codes.mat"
    save_mat(path, *sides())
    raw = path.read_bytes()
    flipped = raw[:160] + bytes([raw[160] ^ 8]) + raw[161:]
    damaged = {"empty": b"", "a few bytes": raw[:19], "header only in part": raw[:100], "flipped byte": flipped}
    path.write_bytes(damaged[damage])
    assert_refused(lambda: CodeFile.read(path), file=path, found="v5")


def replace_key(path, key, value):
    """Write the usual six arrays, one of them replaced."""
    save_mat(path, *sides())
    content = scipy.io.loadmat(path)
    scipy.io.savemat(path, {**{name: content[name] for name in MAT_KEYS}, key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("q_img", "text"),
        ("q_img", np.full((4, 20), np.nan)),
        ("r_txt", np.full((9, 20), 0.3)),
        ("q_l", np.full((4, 3), 2)),
        ("r_l", "text"),
    ],
    ids=["text", "NaN", "0.3", "label 2", "labels of text"],
)
def test_values_other_than_bits_signs_and_labels_are_refused(tmp_path, key, value):
    path = tmp_path / "codes.mat"
    replace_key(path, key, value)
    assert_refused(lambda: CodeFile.read(path), file=path, field=key)


@pytest.mark.parametrize(("key", "shape"), [("q_txt", (5, 20)), ("r_txt", (9, 19)), ("q_l", (3, 3)), ("r_l", (9, 2))])
def test_arrays_that_do_not_fit_each_other_are_refused(tmp_path, key, shape):
    path = tmp_path / "codes.mat"
    replace_key(path, key, np.ones(shape))
    assert_refused(lambda: CodeFile.read(path), file=path, found=f"{key} {shape}")


@pytest.mark.parametrize("bits", [0, 21])
def test_a_length_that_the_codes_do_not_have_is_refused_and_nothing_written(tmp_path, bits):
    assert_refused(lambda: save_mat(tmp_path / "codes.mat", *sides(), bits), option="bits", found=str(bits))
    assert list(tmp_path.iterdir()) == []


def test_a_mat_file_needs_its_extension(tmp_path):
    path = tmp_path / "codes.txt"
    assert_refused(lambda: save_mat(path, *sides()), file=path, found=".mat")


# Parquet


def described(views: int = 1) -> Index:
    bits = np.random.default_rng(5).integers(0, 2, (4, views, 20))
    index = Index("model a", modality="image")
    payloads = [
        {"labels": ["a", "b"], "year": 2001, "day": datetime.date(2020, 1, 1), "json": {"a": [1]}},
        {"labels": [], "text": "日本"},
        {"json": "text", "f": 0.5},
        {},
    ]
    index.add(["w", "x", "y", "z"], Codes.from_bits(bits if views > 1 else bits[:, 0]), payloads)
    index.remove(["y"])
    return index


def whole(index: Index):
    rows = range(len(index))
    return [index.ids[row] for row in rows], [index.payloads[row] for row in rows], index.codes, index.fields


@pytest.mark.parametrize("views", [1, 2])
def test_an_index_comes_back_from_parquet(tmp_path, views):
    export_index(described(views), tmp_path / "a.parquet")
    back = import_index(tmp_path / "a.parquet")
    ids, payloads, codes, fields = whole(described(views))
    fields = {name: kind for name, kind in fields.items() if name != "f"}  # no item that is left has it
    assert whole(back) == (ids, payloads, codes, fields)
    assert (back.model, back.modality) == ("model a", "image")


def test_other_tools_read_the_columns_and_the_bytes(tmp_path):
    export_index(described(), tmp_path / "a.parquet", bits=12)
    table = pyarrow.parquet.read_table(tmp_path / "a.parquet")
    assert table.column("labels").to_pylist() == [["a", "b"], [], None]
    assert table.schema.field("code").type == pyarrow.binary(2)
    expected = np.packbits(described().codes.prefix(12).to_bits(), axis=1)
    assert np.array_equal(np.frombuffer(b"".join(table.column("code").to_pylist()), np.uint8).reshape(3, 2), expected)
    assert import_index(tmp_path / "a.parquet").codes == described().codes.prefix(12)


def test_a_parquet_file_of_another_tool_is_read(tmp_path):
    table = pyarrow.table({"code": pyarrow.array([b"\x80", b"\x01"]), "year": [1, 2]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    index = import_index(tmp_path / "a.parquet")
    assert index.codes.to_bytes().tolist() == [[128], [1]] and index.ids.values == range(2)
    assert index.payloads[1] == {"year": 2}


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ({"year": [1]}, "'code'"),
        ({"code": [b"a", b"bc"]}, "one size"),
        ({"code": [b"a", None]}, "null"),
        ({"code": ["a"]}, "packed"),
        ({"code": [b"a", b"b"], "id": ["x", "x"]}, "'x'"),
    ],
)
def test_a_parquet_file_that_is_no_index_is_named(tmp_path, columns, found):
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    with pytest.raises(DataError) as caught:
        import_index(tmp_path / "a.parquet")
    assert caught.value.file == tmp_path / "a.parquet" and found in caught.value.problem


def test_an_export_that_cannot_be_written_is_refused(tmp_path):
    index = described()
    for bad, path in ((Index(), "a.parquet"), (index, "a.csv")):
        with pytest.raises(DataError):
            export_index(bad, tmp_path / path)
    index.upsert(["w"], index.codes.take([0]), [{"id": "x"}])
    with pytest.raises(DataError) as caught:
        export_index(index, tmp_path / "a.parquet")
    assert caught.value.field == "id" and not list(tmp_path.iterdir())
    (tmp_path / "b.parquet").write_text("x")
    for name in ("b.parquet", "c.parquet"):
        with pytest.raises(DataError):
            import_index(tmp_path / name)
