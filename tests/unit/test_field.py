"""The files that the field's scripts read: codes, top-N precision, precision-recall points, log."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy.io import loadmat

from conftest import plant
from multibit import Config, FeatureStore, Run, Split
from multibit.errors import FormatError, MismatchError
from multibit.evaluation.ranking import Ranking
from multibit.measurement import measure
from multibit.report import field
from multibit.report.field import field_record, top_ranks, write_field_files

pytestmark = pytest.mark.slow  # a run is trained
CONFIG = Config(epochs=4, lengths=(6, 16), scales=3, hidden=32, dimension=8, learning_rate=0.01)
MODES = {"i2t": ("image", "text"), "t2i": ("text", "image")}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("field")
    np.savez(folder / "planted.npz", **plant(160))
    store = FeatureStore.open(folder / "planted.npz")
    split = Split.draw(160, query=20, train=60, validation=10)
    return Run.create(folder / "run", store, split, CONFIG), store


@pytest.fixture(scope="module")
def record(trained):
    return field_record(measure(*trained, depth=100), trained[1])


@pytest.fixture(scope="module")
def sides(record):
    return record.query, record.database


@pytest.fixture(scope="module")
def made(record, tmp_path_factory):
    folder = tmp_path_factory.mktemp("result") / "coco"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(field, "STEP", 30)
        patch.setattr(field, "LAST", 100)
        return folder, write_field_files(record, folder)


def rows_of(path):
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def signs(pairs, modality, bits):
    return pairs.codes(modality).to_signs()[:, :bits].astype(float)


def distances(sides, mode, bits):
    asked, searched = MODES[mode]
    return 0.5 * (bits - signs(sides[0], asked, bits) @ signs(sides[1], searched, bits).T)


def relevance(sides):
    return sides[0].labels.astype(int) @ sides[1].labels.T > 0


def slow_map(distance, relevant):
    """The loop of the field's repositories, with a stable sort."""
    found = []
    for row, wanted in zip(distance, relevant, strict=True):
        positions = np.flatnonzero(wanted[np.argsort(row, kind="stable")]) + 1
        found.append(np.mean(np.arange(1, len(positions) + 1) / positions))
    return np.mean(found)


def test_files_have_the_names_of_the_field(made):
    folder, written = made
    stems = [f"PR_cruve/{bits}-ours-planted-{mode}" for bits in (6, 16) for mode in ("i2t", "t2i")]
    expected = {f"{stem}{ending}" for stem in stems for ending in (".mat", "-topN.csv", "-PR.csv")}
    expected |= {"planted-6-train.log", "planted-16-train.log"}
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == expected
    assert {str(path.relative_to(folder)) for path in written} == expected


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bits", [6, 16])
def test_mat_files_hold_the_codes_of_the_prefix(made, sides, bits, mode):
    content = loadmat(made[0] / "PR_cruve" / f"{bits}-ours-planted-{mode}.mat")
    for side, pairs in zip("qr", sides, strict=True):
        np.testing.assert_array_equal(content[f"{side}_img"], signs(pairs, "image", bits))
        np.testing.assert_array_equal(content[f"{side}_txt"], signs(pairs, "text", bits))
        np.testing.assert_array_equal(content[f"{side}_l"], pairs.labels)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bits", [6, 16])
def test_precision_of_the_first_ranks_by_sorting(made, sides, bits, mode):
    relevant = relevance(sides)
    order = np.argsort(distances(sides, mode, bits), axis=1, kind="stable")
    rows = rows_of(made[0] / "PR_cruve" / f"{bits}-ours-planted-{mode}-topN.csv")
    assert [int(row["N"]) for row in rows] == [30, 60, 90]
    for row in rows:
        first = order[:, : int(row["N"])]
        expected = np.mean([wanted[ranked].mean() for wanted, ranked in zip(relevant, first, strict=True)])
        assert float(row["precision"]) == pytest.approx(expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bits", [6, 16])
def test_precision_and_recall_within_each_radius_pair_by_pair(made, sides, bits, mode):
    """Recall counts relevant pairs that were retrieved: at most 1, and 1 at the largest radius."""
    distance, relevant = distances(sides, mode, bits), relevance(sides)
    rows = rows_of(made[0] / "PR_cruve" / f"{bits}-ours-planted-{mode}-PR.csv")
    assert [int(row["radius"]) for row in rows] == list(range(bits + 1))
    for row in rows:
        within = distance <= int(row["radius"])
        correct = (within & relevant).sum()
        assert float(row["recall"]) == pytest.approx(correct / relevant.sum())
        if within.any():
            assert float(row["precision"]) == pytest.approx(correct / within.sum())
        else:
            assert row["precision"] == ""
    assert float(rows[-1]["recall"]) == 1


@pytest.mark.parametrize("bits", [6, 16])
def test_the_log_has_the_lines_of_the_field(trained, made, sides, bits):
    run, _ = trained
    lines = (made[0] / f"planted-{bits}-train.log").read_text(encoding="utf-8").splitlines()
    best = run.record.selection.epoch
    assert lines[0].startswith(f"Namespace(method='MultiBit', dataset='planted', output_dim={bits}, query_num=20, ")
    assert "MAP(validation) is multibit's own" in lines[1]
    epochs = [line for line in lines if re.match(r">>>>>> \[\d/4\] loss: \d+\.\d+, lr: \d+\.\d+$", line)]
    assert len(epochs) == 4
    selection = re.findall(
        r">>>>>> \[\d/4\], MAP\(validation\): ([\d.]+), MAX MAP\(validation\): ([\d.]+)\n", "\n".join(lines)
    )
    assert len(selection) == 4
    assert float(selection[-1][1]) == max(float(value) for value, _ in selection)
    relevant = relevance(sides)
    within = {
        side: slow_map(0.5 * (bits - signs(sides[0], side, bits) @ signs(sides[1], side, bits).T), relevant)
        for side in ("image", "text")
    }
    i2t, t2i = (slow_map(distances(sides, mode, bits), relevant) for mode in MODES)
    assert lines[-2:] == [
        f">>>>>> [{best}/4], MAP(i->t): {i2t:.4f}, MAP(t->i): {t2i:.4f}, MAP(t->t): {within['text']:.4f}, "
        f"MAP(i->i): {within['image']:.4f}, MAX MAP(i->t): {i2t:.4f}, MAX MAP(t->i): {t2i:.4f}",
        f">>>>>>> FINISHED >>>>>> Best epoch, I-T: {best}, mAP: {i2t:.4f}, T-I: {best}, mAP: {t2i:.4f}",
    ]


def test_ranks_go_to_ten_thousand_or_to_the_database():
    assert top_ranks(1_000_000) == list(range(200, 10_001, 200))
    assert top_ranks(200) == [200] and top_ranks(399) == [200] and top_ranks(3577)[-1] == 3400
    assert top_ranks(199) == [199] and top_ranks(1) == [1]


def test_queries_without_a_relevant_item_are_left_out_of_the_precision(sides):
    query, database = sides
    labels = query.labels.copy()
    labels[3] = 0
    curve = Ranking(query.image, database.text, labels, database.labels, bits=16, depth=50).first.precision
    rest = np.delete(np.arange(len(query)), 3)
    order = np.argsort(distances(sides, "i2t", 16), axis=1, kind="stable")[rest, :50]
    hits = np.take_along_axis(relevance(sides)[rest], order, axis=1)
    np.testing.assert_allclose(curve, [hits[:, :n].mean() for n in range(1, 51)])
    nothing = Ranking(query.image, database.text, labels * 0, database.labels, bits=16, depth=50).first.precision
    assert np.isnan(nothing).all()


def test_features_of_other_data_are_refused(trained, tmp_path):
    np.savez(tmp_path / "other.npz", **plant(160, seed=3))
    with pytest.raises(MismatchError) as caught:
        measure(trained[0], FeatureStore.open(tmp_path / "other.npz"))
    assert caught.value.file == tmp_path / "other.npz"


@pytest.mark.parametrize("content", [None, b"", b'{"epoch": 1}\n', b"no json\n"], ids=str)
def test_a_missing_or_corrupt_history_is_refused(trained, content):
    run, store = trained
    path = run.folder / "history.jsonl"
    before, measured = path.read_bytes(), measure(run, store)
    try:
        path.unlink()
        if content is not None:
            path.write_bytes(before[:-9] if content == b"" else content)
        with pytest.raises(FormatError) as caught:
            field_record(measured, store)
        assert caught.value.file == path
    finally:
        path.write_bytes(before)


def test_a_store_without_a_file_is_named_data(trained):
    run, store = trained
    assert field_record(measure(run, store), replace(store, source=None)).dataset == "data"


def test_a_model_for_each_length_has_a_log_and_codes_of_its_own(trained, tmp_path):
    run, store = trained
    separate = Run.create(tmp_path / "run", store, run.split, CONFIG, method="separate")
    measured = measure(separate, store, depth=100)
    write_field_files(field_record(measured, store), tmp_path / "out")
    history = [json.loads(line) for line in (separate.folder / "history.jsonl").read_text().splitlines()]
    for bits in CONFIG.lengths:
        log = (tmp_path / "out" / f"planted-{bits}-train.log").read_text()
        rows = [row for row in history if row["bits"] == bits]
        assert [f"{row['total']:.6f}" for row in rows] == re.findall(r"loss: ([\d.]+)", log) and len(rows) == 4
        best = separate.record.selection.by_length[str(bits)]
        assert "'MultiBit-Sep'" in log and f"Best epoch, I-T: {best}, " in log
        codes = loadmat(tmp_path / "out" / "PR_cruve" / f"{bits}-ours-planted-i2t.mat")
        np.testing.assert_array_equal(codes["q_img"], measured.query.at(bits).image.to_signs())
