"""Codes made elsewhere: files as the field's scripts write them, and files that are refused."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import scipy.io
import scipy.sparse

from multibit import Codes, mean_average_precision
from multibit.codes import CodedItems
from multibit.errors import DataError, MismatchError
from multibit.evaluation.agreement import ranking_agreement
from multibit.evaluation.metric import MAP, MAP_ASYMMETRIC, MAP_BEST_TIES, MAP_TIE_AVERAGED, MAP_WORST_TIES, PRECISION
from multibit.evaluation.metrics import average_precision, precision_at
from multibit.evaluation.protocol import evaluate
from multibit.evaluation.ranking import Rankings
from multibit.measurement import assess_codes, measure_codes
from multibit.search.code_files import CODE_KEYS, CodeFile
from multibit.search.code_sets import CodeSets, is_codes

QUERIES, ITEMS, CLASSES = 12, 60, 5


def six(bits=16, seed=0):
    """The six arrays of DCMHT-style scripts: float32 codes of -1 and +1, float32 labels."""
    rng = np.random.default_rng(bits + 1000 * seed)
    rows = dict(zip(CODE_KEYS, (QUERIES, QUERIES, ITEMS, ITEMS), strict=True))
    codes = {key: rng.choice([-1, 1], (size, bits)).astype(np.float32) for key, size in rows.items()}
    labels = np.random.default_rng(9).integers(0, 2, (QUERIES + ITEMS, CLASSES)).astype(np.float32)
    return {**codes, "q_l": labels[:QUERIES], "r_l": labels[QUERIES:]}


def changed(arrays, change):
    """The arrays with other codes."""
    return {key: change(value) if key in CODE_KEYS else value for key, value in arrays.items()}


def save(path, arrays):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".mat":
        scipy.io.savemat(path, arrays)
    elif path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        path.mkdir()
        for key, value in arrays.items():
            np.save(path / f"{key}.npy", value)
    return path


def save_hdf5(path, arrays, *, matlab):
    """A v7.3 file: as MATLAB writes it, transposed and with the class, or as a Python script does."""
    with h5py.File(path, "w") as file:
        for key, value in arrays.items():
            item = file.create_dataset(key, data=value.T if matlab else value)
            if matlab:
                item.attrs["MATLAB_class"] = np.bytes_("single")
    return path


def coded(arrays):
    """What the signs mean: queries and database."""
    return [
        CodedItems(*(Codes.from_bits(arrays[f"{side}_{name}"] > 0) for name in ("img", "txt")), arrays[f"{side}_l"])
        for side in ("q", "r")
    ]


def assert_holds(file, arrays):
    for items, wanted in zip((file.query, file.database), coded(arrays), strict=True):
        assert np.array_equal(items.image.to_signs(), wanted.image.to_signs())
        assert np.array_equal(items.text.to_signs(), wanted.text.to_signs())
        assert np.array_equal(items.labels, wanted.labels) and items.labels.dtype == np.uint8


def assert_refused(work, error=DataError, **fields):
    found = fields.pop("found", "")
    with pytest.raises(error) as caught:
        work()
    assert {name: getattr(caught.value, name) for name in fields} == fields
    assert str(found) in caught.value.problem
    return caught.value


# Values


@pytest.mark.parametrize("ending", ["mat", "npz", "folder"])
@pytest.mark.parametrize(
    "change",
    [
        lambda codes: codes,
        lambda codes: codes.astype(np.float64),
        lambda codes: codes.astype(np.int8),
        lambda codes: codes > 0,
        lambda codes: (codes > 0).astype(np.uint8),
        lambda codes: (codes > 0).astype(np.float32),
    ],
    ids=["float32 signs", "float64 signs", "int8 signs", "bool", "uint8 0/1", "float32 0/1"],
)
def test_signs_and_bits_of_every_type_are_the_same_codes(tmp_path, ending, change):
    arrays = six()
    file = CodeFile.read(save(tmp_path / f"codes.{ending}", changed(arrays, change)))
    assert_holds(file, arrays)
    assert file.bits == 16 and file.notes == ()


@pytest.mark.parametrize("matlab", [True, False])
def test_a_v73_file_holds_the_same(tmp_path, matlab):
    assert_holds(CodeFile.read(save_hdf5(tmp_path / "codes.mat", six(), matlab=matlab)), six())


@pytest.mark.parametrize("ending", ["npz", "folder"])
@pytest.mark.parametrize("bits", [13, 16, 64])
def test_packed_codes_have_the_length_that_the_file_names(tmp_path, ending, bits):
    arrays = six(bits)
    packed = changed(arrays, lambda codes: np.packbits(codes > 0, axis=1))
    assert_holds(CodeFile.read(save(tmp_path / f"codes.{ending}", {**packed, "bits": bits})), arrays)


def test_packed_codes_without_a_length_have_whole_bytes_and_a_note(tmp_path):
    arrays = six(16)
    packed = changed(arrays, lambda codes: np.packbits(codes > 0, axis=1))
    file = CodeFile.read(save(tmp_path / "codes.folder", packed))
    assert_holds(file, arrays)
    assert len(file.notes) == 1 and "16 bits" in file.notes[0]


def test_a_zero_among_signs_is_counted_and_refused(tmp_path):
    arrays = six()
    arrays["r_txt"][[4, 5], 1] = 0
    with pytest.raises(DataError) as caught:
        CodeFile.read(save(tmp_path / "codes.mat", arrays))
    assert (caught.value.field, caught.value.row) == ("r_txt", 5)
    assert "2 of 960" in caught.value.problem and "column 2" in caught.value.problem


# Labels


@pytest.mark.parametrize("kind", [np.float64, np.int64, np.uint8, bool, scipy.sparse.csc_matrix])
def test_multi_hot_labels_of_every_type_are_the_same(tmp_path, kind):
    arrays = six()
    as_kind = (lambda labels: kind(labels)) if kind is scipy.sparse.csc_matrix else (lambda labels: labels.astype(kind))
    other = {**arrays, **{key: as_kind(arrays[key]) for key in ("q_l", "r_l")}}
    assert_holds(CodeFile.read(save(tmp_path / "codes.mat", other)), arrays)


@pytest.mark.parametrize("empty", [False, True])
def test_sparse_labels_of_a_v73_file_are_read(tmp_path, empty):
    arrays = six()
    if empty:
        arrays["q_l"] = np.zeros_like(arrays["q_l"])
    path = save_hdf5(tmp_path / "codes.mat", {key: arrays[key] for key in (*CODE_KEYS, "r_l")}, matlab=True)
    sparse = scipy.sparse.csc_matrix(arrays["q_l"].astype(np.float64))
    with h5py.File(path, "a") as file:
        group = file.create_group("q_l")
        group.attrs["MATLAB_class"], group.attrs["MATLAB_sparse"] = np.bytes_("double"), np.uint64(QUERIES)
        group["jc"] = sparse.indptr.astype(np.uint64)
        if not empty:  # MATLAB writes neither for a matrix of zeros
            group["data"], group["ir"] = sparse.data, sparse.indices.astype(np.uint64)
    assert_holds(CodeFile.read(path), arrays)


@pytest.mark.parametrize("shape", [(-1,), (-1, 1), (1, -1)])
@pytest.mark.parametrize("kind", [np.int64, np.float32, np.uint8])
@pytest.mark.parametrize("ending", ["mat", "npz"])
def test_class_numbers_become_a_column_per_class(tmp_path, ending, shape, kind):
    arrays = six()
    classes = np.random.default_rng(0).choice([1, 4, 7], QUERIES + ITEMS).astype(kind)
    parts = {"q_l": classes[:QUERIES].reshape(shape), "r_l": classes[QUERIES:].reshape(shape)}
    file = CodeFile.read(save(tmp_path / f"codes.{ending}", {**arrays, **parts}))
    one_hot = (classes[:, None] == [1, 4, 7]).astype(np.uint8)
    assert np.array_equal(file.query.labels, one_hot[:QUERIES])
    assert np.array_equal(file.database.labels, one_hot[QUERIES:])
    assert len(file.notes) == 1 and "3 classes" in file.notes[0]


def test_one_label_that_every_item_has_is_multi_hot(tmp_path):
    labels = {"q_l": np.ones((QUERIES, 1)), "r_l": np.ones((ITEMS, 1))}
    file = CodeFile.read(save(tmp_path / "codes.mat", six() | labels))
    assert file.query.labels.shape == (QUERIES, 1) and file.notes == ()


# Files that are refused


def with_value(key, row, column, value):
    def change(arrays):
        arrays[key] = arrays[key].astype(np.float64)
        arrays[key][row, column] = value

    return change


def replaced(**values):
    return lambda arrays: arrays.update(values)


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        (with_value("q_img", 3, 2, 0.3), {"field": "q_img", "row": 4, "found": "0.3"}),
        (with_value("r_txt", 7, 0, np.nan), {"field": "r_txt", "row": 8, "found": "nan"}),
        (with_value("r_img", 0, 0, 2), {"field": "r_img", "row": 1, "found": "2.0"}),
        (with_value("q_l", 1, 4, 2), {"field": "q_l", "row": 2, "found": "2.0"}),
        (with_value("r_l", 59, 0, -1), {"field": "r_l", "row": 60, "found": "-1"}),
        (replaced(r_img=np.ones((ITEMS, 4, 16))), {"field": "r_img", "found": "(60, 4, 16)"}),
        (replaced(q_txt=np.ones((QUERIES + 1, 16))), {"found": "q_txt (13, 16)"}),
        (replaced(r_txt=np.ones((ITEMS - 1, 16))), {"found": "r_txt (59, 16)"}),
        (replaced(r_txt=np.ones((ITEMS, 15))), {"found": "r_txt (60, 15)"}),
        (replaced(q_l=np.ones((QUERIES + 2, CLASSES))), {"field": "q_l", "found": "q_l (14, 5)"}),
        (replaced(r_l=np.ones((ITEMS, CLASSES + 1))), {"field": "r_l", "found": "r_l (60, 6)"}),
        (replaced(q_img=np.array(["text"])), {"field": "q_img"}),
        (replaced(q_img=np.ones((QUERIES, 16), complex)), {"field": "q_img", "found": "complex"}),
        (replaced(q_txt=np.eye(QUERIES, 16)), {"field": "q_txt", "found": "0 and 1"}),
        (
            replaced(q_l=np.ones((QUERIES, 1)), r_l=np.arange(ITEMS)[:, None] % 2),
            {"field": "q_l", "found": "one label"},
        ),
        (replaced(q_l=np.full((QUERIES, 1), 0.5), r_l=np.ones((ITEMS, 1))), {"field": "q_l", "row": 1, "found": "0.5"}),
        (replaced(q_l=np.ones((QUERIES, 1))), {"field": "r_l", "found": "(12, 1)"}),
        (lambda arrays: arrays.pop("r_txt"), {"field": "r_txt", "found": "q_img (12, 16)"}),
    ],
)
@pytest.mark.parametrize("ending", ["mat", "npz"])
def test_a_file_of_other_content_is_refused_with_its_place(tmp_path, ending, change, fields):
    arrays = six()
    change(arrays)
    path = save(tmp_path / f"codes.{ending}", arrays)
    assert_refused(lambda: CodeFile.read(path), file=path, **fields)


@pytest.mark.parametrize(
    ("bits", "found"), [(9, "9 bits"), (0, "0"), (3.5, "3.5"), ([8, 8], "8, 8"), (np.nan, "nan"), ("x", "x")]
)
def test_a_length_that_packed_codes_do_not_have_is_refused(tmp_path, bits, found):
    packed = changed(six(8), lambda codes: np.packbits(codes > 0, axis=1))
    path = save(tmp_path / "codes.npz", {**packed, "bits": np.array(bits)})
    assert_refused(lambda: CodeFile.read(path), file=path, field="bits", found=found)


@pytest.mark.parametrize("name", ["codes.mat", "codes.npz"])
def test_a_corrupt_or_missing_file_is_refused(tmp_path, name):
    path = save(tmp_path / name, six())
    path.write_bytes(path.read_bytes()[:300])
    assert_refused(lambda: CodeSets.open(path), file=path)
    path.unlink()
    assert_refused(lambda: CodeSets.open(path), file=path, found="no such file")


@pytest.mark.parametrize("share", [0.3, 0.6, 0.99])
def test_a_truncated_mat_is_said_to_be_truncated(tmp_path, share):
    """Of such a file the reader itself lists the variables before the cut."""
    path = save(tmp_path / "codes.mat", six())
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    assert_refused(lambda: CodeSets.open(path), file=path, found="truncated")


@pytest.mark.parametrize("kind", [0, 8, 14, 15, 99])
def test_values_of_an_unknown_type_in_a_mat_are_refused(tmp_path, kind):
    """The reader itself ends the process with a fault of memory."""
    path = tmp_path / "codes.mat"
    scipy.io.savemat(path, {key: np.asarray(value, float) for key, value in six().items()})
    content = bytearray(path.read_bytes())
    assert content[184:188] == (9).to_bytes(4, "little")  # numbers of 8 bytes, after flags, dimensions and name
    content[184:188] = kind.to_bytes(4, "little")
    path.write_bytes(content)
    assert_refused(lambda: CodeSets.open(path), file=path, found="unknown type")


def test_a_mat_with_fewer_values_than_its_flags_say_is_refused(tmp_path):
    """The reader itself takes what follows for the imaginary values, and ends the process."""
    path = tmp_path / "codes.mat"
    scipy.io.savemat(path, {key: np.asarray(value, float) for key, value in six().items()})
    content = bytearray(path.read_bytes())
    content[145] |= 0x08  # complex
    path.write_bytes(content)
    assert_refused(lambda: CodeSets.open(path), file=path, found="elements")


# Several files


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        ("16-ours-flickr25k-i2t.mat", "i2t"),
        ("16-ours-coco-t2i.mat", "t2i"),
        ("16-ours-coco-t2i-0.8123.mat", "t2i"),
        ("16coco-i2t.mat", "i2t"),
        ("64-DGHDGH-coco-i2t-0.8123.mat", "i2t"),
        ("i2t-best.mat", "i2t"),
        ("CMCL-flickr25k-16.mat", None),
        ("last.mat", None),
        ("i2t-and-t2i.mat", None),
        ("hi2task.mat", None),
    ],
)
def test_the_direction_is_read_from_the_names_of_the_field(tmp_path, name, direction):
    assert CodeFile.read(save(tmp_path / name, six())).direction == direction


@pytest.fixture
def dcmht(tmp_path):
    """Folder, and arrays by (direction, bits): a file per direction, each of its own best epoch."""
    made = {(mode, bits): six(bits, seed) for bits in (16, 32) for seed, mode in enumerate(("i2t", "t2i"))}
    for (mode, bits), arrays in made.items():
        save(tmp_path / "coco" / "PR_cruve" / f"{bits}-ours-coco-{mode}.mat", arrays)
    return tmp_path / "coco", made


SIDES = {"i2t": ("q_img", "r_txt"), "t2i": ("q_txt", "r_img")}


@pytest.mark.parametrize(
    ("metric", "ties"),
    [(MAP, "stable"), (MAP_TIE_AVERAGED, "average"), (MAP_BEST_TIES, "best"), (MAP_WORST_TIES, "worst")],
)
def test_each_direction_is_measured_from_its_own_file(dcmht, metric, ties):
    folder, made = dcmht
    (evaluation,) = measure_codes(CodeSets.open(folder)).evaluations
    assert evaluation.lengths == (16, 32) and evaluation.name == "coco"
    for (direction, bits), arrays in made.items():
        query, database = (Codes.from_bits(arrays[key] > 0) for key in SIDES[direction])
        expected = average_precision(query, database, arrays["q_l"], arrays["r_l"], ties=ties)
        assert np.array_equal(evaluation.values[metric, direction, bits], expected, equal_nan=True)
        if metric == MAP:
            whole = mean_average_precision(query, database, arrays["q_l"], arrays["r_l"])
            assert evaluation.mean(MAP, direction, bits) == whole


def test_precision_at_a_rank_is_that_of_the_file(dcmht):
    folder, made = dcmht
    (evaluation,) = measure_codes(CodeSets.open(folder), at=7).evaluations
    for (direction, bits), arrays in made.items():
        query, database = (Codes.from_bits(arrays[key] > 0) for key in SIDES[direction])
        expected = precision_at(query, database, arrays["q_l"], arrays["r_l"], 7)
        assert np.array_equal(evaluation.values[PRECISION.at(7), direction, bits], expected, equal_nan=True)


@pytest.mark.slow
def test_rankings_of_lengths_in_several_files_are_compared_on_the_same_items(dcmht):
    folder, made = dcmht
    assessed = assess_codes(measure_codes(CodeSets.open(folder)))
    for direction, (asked, searched) in SIDES.items():
        sides = {
            bits: tuple(Codes.from_bits(made[direction, bits][key] > 0) for key in (asked, searched))
            for bits in (16, 32)
        }
        ((expected,), (found,)) = ranking_agreement(sides), assessed.agreement[direction]
        assert np.array_equal(found.tau, expected.tau) and found.lengths == (16, 32)


def test_files_of_both_directions_are_one_per_length(tmp_path):
    for bits in (16, 32, 64):  # as CMCL writes them
        save(tmp_path / "PR_curve" / f"CMCL-coco-{bits}.mat", six(bits))
    sets = CodeSets.open(tmp_path)
    assert sets.lengths == (16, 32, 64) and not sets.nested and sets.notes == ()
    evaluation = measure_codes(sets).evaluations[0]
    for bits in (16, 32, 64):
        alone = evaluate(*coded(six(bits)), [bits], training_labels=six()["r_l"])
        for direction in SIDES:
            assert evaluation.mean(MAP, direction, bits) == alone.mean(MAP, direction, bits)


def test_nested_codes_are_measured_at_their_prefixes(tmp_path):
    path = save(tmp_path / "codes.npz", six(64))
    assert CodeSets.open(path).lengths == (64,)
    sets = CodeSets.open(path, [32, 16, 64])
    assert sets.nested and sets.lengths == (16, 32, 64)
    expected = evaluate(*coded(six(64)), (16, 32, 64), training_labels=six()["r_l"])
    (found,) = measure_codes(sets).evaluations
    assert found.values.keys() == expected.values.keys()
    assert all(np.array_equal(found.values[key], expected.values[key], equal_nan=True) for key in found.values)
    assert list(found.floors) == ["random"]


def test_lengths_choose_among_several_files(dcmht):
    folder, _ = dcmht
    assert CodeSets.open(folder, [32]).lengths == (32,)
    assert_refused(lambda: CodeSets.open(folder, [8, 32]), file=folder, option="lengths", found="16, 32")


@pytest.mark.parametrize("wanted", [[0], [16, 65], []])
def test_a_length_that_nested_codes_do_not_have_is_refused(tmp_path, wanted):
    path = save(tmp_path / "codes.mat", six(64))
    assert_refused(lambda: CodeSets.open(path, wanted), file=path, option="lengths", found="1 to 64")


def test_a_direction_without_a_file_is_measured_from_the_other_with_a_note(tmp_path):
    path = save(tmp_path / "16-ours-coco-i2t.mat", six())
    for sets in (CodeSets.open(path), CodeSets.open(tmp_path)):
        (note,) = sets.notes
        assert path.name in note and "t2i" in note
        assert sets.files["t2i", 16] is sets.files["i2t", 16]


def test_two_files_of_one_length_and_direction_are_refused(tmp_path):
    for name in ("i2t-best", "t2i-best", "last"):
        save(tmp_path / "mat_files" / f"{name}.mat", six())
    error = assert_refused(lambda: CodeSets.open(tmp_path), file=tmp_path, found="last.mat")
    assert "i2t-best.mat" in error.problem and "16 bits" in error.problem


def test_files_of_other_items_are_refused_with_the_row(tmp_path):
    save(tmp_path / "a16.mat", six(16))
    other = six(32)
    other["r_l"] = other["r_l"].copy()
    other["r_l"][[20, 30], 1] = 1 - other["r_l"][[20, 30], 1]
    path = save(tmp_path / "b32.mat", other)
    error = assert_refused(lambda: CodeSets.open(tmp_path), file=path, field="r_l", row=21, found="2 rows")
    assert "a16.mat" in error.problem


@pytest.mark.parametrize(
    ("cut", "field", "numbers"),
    [
        (lambda arrays: {key: value[:8] if key[0] == "q" else value for key, value in arrays.items()}, "q_l", (8, 12)),
        (
            lambda arrays: {key: value[:, :4] if key[2:] == "l" else value for key, value in arrays.items()},
            "q_l",
            (4, 5),
        ),
    ],
    ids=["rows", "label columns"],
)
def test_files_of_other_sizes_are_refused_with_both_numbers(tmp_path, cut, field, numbers):
    save(tmp_path / "a16.mat", six(16))
    path = save(tmp_path / "b32.mat", cut(six(32)))
    error = assert_refused(lambda: CodeSets.open(tmp_path), file=path, field=field)
    assert all(str(number) in error.problem for number in numbers)


def test_other_files_in_the_folder_are_left_out_with_a_note(tmp_path):
    save(tmp_path / "codes.mat", six())
    scipy.io.savemat(tmp_path / "label.mat", {"category": np.eye(3)})
    np.savez(tmp_path / "features.npz", image=np.eye(3))
    (note,) = CodeSets.open(tmp_path).notes
    assert "label.mat" in note and "features.npz" in note


def test_a_folder_without_codes_is_refused(tmp_path):
    assert not is_codes(tmp_path)
    scipy.io.savemat(tmp_path / "label.mat", {"category": np.eye(3)})
    assert is_codes(tmp_path)
    assert_refused(lambda: CodeSets.open(tmp_path), file=tmp_path, found="label.mat")


def test_folders_of_arrays_are_one_per_length(tmp_path):
    for bits in (16, 32):
        save(tmp_path / str(bits), changed(six(bits), lambda codes: np.packbits(codes > 0, axis=1)))
    assert is_codes(tmp_path)
    assert CodeSets.open(tmp_path).lengths == (16, 32)


# Comparison and report


def test_other_items_cannot_be_compared(tmp_path):
    sets, arrays = CodeSets.open(save(tmp_path / "codes.mat", six())), six()
    labels = [arrays[key].astype(np.uint8) for key in ("q_l", "r_l")]
    sets.require_same_items(*labels, tmp_path / "run")
    assert_refused(
        lambda: sets.require_same_items(labels[0][:7], labels[1], tmp_path / "run"),
        MismatchError, file=tmp_path / "run", field="q_l", found="7 rows",
    )  # fmt: skip
    labels[1][5] = 1 - labels[1][5]
    assert_refused(
        lambda: sets.require_same_items(*labels, tmp_path / "run"),
        MismatchError, file=tmp_path / "run", field="r_l", row=6, found="1 row differs",
    )  # fmt: skip


def test_label_names_are_one_per_column(tmp_path):
    sets = CodeSets.open(save(tmp_path / "codes.mat", six()))
    sets.require_label_names(["a"] * CLASSES)
    sets.require_label_names([])
    assert "4 names" in assert_refused(lambda: sets.require_label_names(["a"] * 4), option="label_names").problem


def test_what_needs_a_model_is_not_measured(dcmht):
    assessed = assess_codes(measure_codes(CodeSets.open(dcmht[0])))
    assert assessed.cost is None and assessed.teacher is None and assessed.quantization == {} == assessed.strata
    assert MAP_ASYMMETRIC not in assessed.evaluations[0].metrics
    assert assessed.evaluations[0].references == ["IDF"]
    assert assessed.blocks == () and assessed.facts["code lengths"] == "16, 32 bits"


def test_distinct_codes_and_dead_bits_are_those_of_each_file(tmp_path):
    short, long = six(16), six(32)
    short["r_img"][:, [2, 5]] = 1  # dead bits of the shorter images
    long["r_txt"][:] = -1
    save(tmp_path / "16.mat", short)
    save(tmp_path / "32.mat", long)
    assessed = assess_codes(measure_codes(CodeSets.open(tmp_path)))
    for modality, key in (("image", "r_img"), ("text", "r_txt")):
        expected = {bits: len(np.unique(arrays[key], axis=0)) for bits, arrays in ((16, short), (32, long))}
        assert assessed.health[modality].distinct == expected
    assert any("2 of 16 bits" in each and "16-bit image" in each and "[2, 5]" in each for each in assessed.warnings)
    assert "All 32-bit text codes are equal." in assessed.warnings


def test_rankings_by_codes_of_other_items_are_refused():
    query, database = coded(six())
    fewer = database.take(np.arange(ITEMS - 1))
    with pytest.raises(DataError) as caught:
        Rankings(query, database, (16,), own={("t2i", 16): (query, fewer)})
    assert "59 items" in caught.value.problem and "60 items" in caught.value.problem
