"""Selection of alpha and eta: early stopping with known scores, resumption, what it reads, and its folder."""

from __future__ import annotations

import csv
import inspect
import itertools
import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import multibit.hashing.select as selecting
import multibit.hashing.train as training_module
from conftest import plant
from multibit import METHODS, Config, FeatureStore, Pairs, Split, train
from multibit.errors import BusyError, ConfigError, DataError, FormatError
from multibit.evaluation.protocol import selection_score
from multibit.folders import only_writer
from multibit.hashing.encode import encode
from multibit.hashing.select import MARGIN, Choice, Setting, grid_of, halve, select, stages_of, survivors
from multibit.paper import accuracy_cells
from multibit.paper.cells import Alpha, Eta
from multibit.paper.reproduction import Reproduction, Subject
from multibit.report import selection as drawing
from multibit.report.selection import scores_table, surface_table, write_selection
from multibit.selection import RECORD, SelectionRecord, select_in

pytestmark = pytest.mark.slow  # models are trained

TINY = Config(lengths=(8, 16), scales=2, hidden=16, dimension=8, epochs=8, batch_size=64)
ALPHA, ETA = (0.3, 0.9), (0.1, 0.2)
PRINTED = json.loads((Path(accuracy_cells.__file__).parent / "printed.json").read_text())["sensitivity"]
GRID = grid_of()


def pairs_of(first, last):
    data = plant(60)
    image, text, labels = (data[name][first:last] for name in ("image", "text", "labels"))
    return Pairs(image, text, np.arange(last - first + 1), labels)


@pytest.fixture
def sides():
    """Training and validation pairs."""
    return pairs_of(0, 45), pairs_of(45, 60)


@pytest.fixture
def trained(monkeypatch):
    """Setting and last epoch of every training, and the epochs that were trained."""
    calls, epochs = [], []
    real, score = selecting.train, training_module.selection_score

    def counted(*args, **kwargs):
        config = args[2]
        calls.append((Setting(config.alpha, config.eta), kwargs["until"]))
        return real(*args, **kwargs)

    def scored(*args):
        epochs.append(calls[-1][0])
        return score(*args)

    monkeypatch.setattr(selecting, "train", counted)
    monkeypatch.setattr(training_module, "selection_score", scored)
    return SimpleNamespace(calls=calls, epochs=epochs)


# The rule


def known(curves, stages=(1, 2, 4, 8)):
    """Halving with known scores: setting -> score at each stage. Returns the scores that were asked for."""
    asked, stopped = [], []

    def score(setting, epochs):
        assert setting not in stopped
        asked.append((epochs, setting))
        return curves[setting][stages.index(epochs)]

    scores = halve(list(curves), stages, score, stopped.append)
    assert sorted(stopped) == sorted(curves) and [stage for stage, _ in asked] == sorted(stage for stage, _ in asked)
    return scores


@pytest.mark.parametrize("column", ["mirflickr", "iapr", "coco", "nuswide"])
def test_the_best_cell_of_the_papers_grids_is_never_stopped(column):
    final = {each: PRINTED[column][f"eta {each.eta:.2f}"][f"alpha {each.alpha}"] / 100 for each in GRID}
    curves = {each: [0.8 * value, 0.9 * value, 0.95 * value, value] for each, value in final.items()}
    found = Choice(64, (1, 2, 4, 8), known(curves))
    assert found.best == max(final, key=final.get) and found.best_score == max(final.values())
    finished = [each for each in GRID if found.epochs(each) == 8]
    assert 4 <= len(finished) < 12
    assert 8 * 25 * 0.3 < sum(map(found.epochs, GRID)) < 8 * 25 * 0.7


levels = st.lists(st.integers(0, 30), min_size=2, max_size=12)


@given(levels, st.randoms(use_true_random=False))
def test_no_order_of_the_grid_changes_what_is_stopped(values, random):
    curves = {Setting(1 + i, 1.0): [value / 10, value / 20, value / 15, value / 30] for i, value in enumerate(values)}
    shuffled = list(curves)
    random.shuffle(shuffled)
    assert known(curves) == known({each: curves[each] for each in shuffled})


@given(levels)
def test_the_best_is_found_wherever_learning_keeps_the_order(values):
    curves = {Setting(1 + i, 1.0): [value / 100, value / 50, value / 40, value / 30] for i, value in enumerate(values)}
    scores = known(curves)
    assert all(len(scores[each]) == 4 for each in curves if curves[each][-1] == max(values) / 30)


@given(st.lists(st.lists(st.floats(0.1, 0.9), min_size=4, max_size=4), min_size=1, max_size=12))
def test_a_setting_just_within_the_margin_at_every_stage_is_never_stopped(curves):
    others = [Setting(1 + i, 1.0) for i in range(len(curves))]
    slow, now = Setting(99.0, 1.0), []

    def score(setting, epochs):
        if setting == slow:
            ranked = sorted(now, reverse=True)
            now.clear()
            return 1.0 if epochs == 8 or not ranked else ranked[len(ranked) // 2] - 0.9 * MARGIN
        now.append(curves[others.index(setting)][(1, 2, 4, 8).index(epochs)])
        return now[-1]

    scores = halve([*others, slow], (1, 2, 4, 8), score, lambda setting: None)
    assert scores[slow][-1] == 1.0 and len(scores[slow]) == 4


def test_equal_scores_and_scores_within_the_margin_continue():
    a, b, c, d = grid_of([1.0, 2.0, 3.0, 4.0], [1.0])
    assert survivors(dict.fromkeys((a, b, c, d), 0.5)) == [a, b, c, d]
    assert survivors({a: 0.5, b: 0.6, c: 0.5 - 0.9 * MARGIN, d: 0.5 - 1.1 * MARGIN}) == [a, b, c]
    assert survivors({a: 0.5, b: 0.4, c: 0.3}) == [a, b] and survivors({a: 0.5}) == [a]


def test_a_late_bloomer_far_below_the_better_half_is_stopped():
    slow, *others = grid_of([1.0, 2.0, 3.0, 4.0], [1.0])
    curves = {slow: [0.1, 0.2, 0.3, 0.9], **{each: [0.5, 0.6, 0.7, 0.8] for each in others}}
    assert known(curves)[slow] == (0.1,)


def test_the_best_was_trained_to_the_end_and_is_the_first_of_equals():
    a, b, c = grid_of([1.0, 2.0, 3.0], [1.0])
    assert Choice(8, (1, 2), {a: (0.9,), b: (0.5, 0.6), c: (0.7, 0.6)}).best == b


@pytest.mark.parametrize(
    ("epochs", "stages"), [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (8, (1, 2, 4, 8)), (100, (13, 25, 50, 100))]
)
def test_stages_are_shares_of_the_epochs(epochs, stages):
    assert stages_of(epochs) == stages and stages_of(epochs, full=True) == (epochs,)


def test_the_grid_is_that_of_the_paper():
    assert len(GRID) == 25 and GRID[0] == (0.3, 0.05) and GRID[1] == (0.6, 0.05) and GRID[-1] == (1.5, 1.0)


# Training


@pytest.mark.slow
def test_a_setting_that_is_not_stopped_is_trained_as_alone(sides):
    choice = select(*sides, TINY, alpha=ALPHA, eta=ETA)
    assert list(choice.scores) == grid_of(ALPHA, ETA) and choice.stages == (1, 2, 4, 8) and choice.bits == 16
    finished = [each for each in choice.scores if choice.epochs(each) == 8]
    assert choice.best in finished
    for setting in finished:
        model = train(*sides, TINY.override(setting._asdict())).model
        assert choice.scores[setting][-1] == selection_score(encode(model, sides[1]), encode(model, sides[0]), [16])


@pytest.mark.slow
def test_the_full_surface_is_the_papers_sensitivity_table(tmp_path, monkeypatch):
    np.savez(tmp_path / "planted.npz", **plant(60))
    store = FeatureStore.open(tmp_path / "planted.npz")
    monkeypatch.setattr(accuracy_cells, "GRID_ALPHA", ALPHA)
    monkeypatch.setattr(accuracy_cells, "GRID_ETA", ETA)
    config = TINY.override({"epochs": 2})
    r = Reproduction(Subject(store.dataset.labels, store.dataset.label_names, store), tmp_path, config)
    cells = accuracy_cells.sensitivity(r, 42)
    record = select_in(
        tmp_path / "s", store, r.split, METHODS["multibit"].config(config), alpha=ALPHA, eta=ETA, full=True
    )
    assert record.stages == [2]
    for setting, (score,) in record.scores.items():
        assert cells[Eta(setting.eta), Alpha(setting.alpha)] == pytest.approx(100 * score, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [1, 4, 5, 7])
def test_an_interrupted_selection_continues_without_training_anything_twice(stop, sides, trained, tmp_path):
    whole = select(*sides, TINY, alpha=ALPHA, eta=ETA)
    expected = len(trained.epochs)
    trained.epochs.clear()
    scores: dict[Setting, list[float]] = {}

    def keep(setting, score):
        scores.setdefault(setting, []).append(score)
        if sum(map(len, scores.values())) == stop:
            raise KeyboardInterrupt

    options = {"alpha": ALPHA, "eta": ETA, "folder": tmp_path, "keep": keep}
    with pytest.raises(KeyboardInterrupt):
        select(*sides, TINY, **options)
    assert select(*sides, TINY, **options, earlier=dict(scores)).scores == whole.scores
    assert len(trained.epochs) == expected and list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_half_finished_training_is_resumed_from_its_state(sides, trained, tmp_path, monkeypatch):
    scores: dict[Setting, list[float]] = {}
    options = {"alpha": [0.9], "eta": ETA, "folder": tmp_path}
    whole = select(*sides, TINY, **options)
    expected = len(trained.epochs)
    trained.epochs.clear()
    monkeypatch.setattr(selecting, "train", partial(selecting.train, save_every=0))
    with monkeypatch.context() as patch:
        score = training_module.selection_score

        def interrupted(*args):
            if len(trained.epochs) == expected - 2:
                raise KeyboardInterrupt
            return score(*args)

        patch.setattr(training_module, "selection_score", interrupted)
        with pytest.raises(KeyboardInterrupt):
            select(*sides, TINY, **options, keep=lambda each, score: scores.setdefault(each, []).append(score))
    states = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert select(*sides, TINY, **options, earlier=scores).scores == whole.scores
    assert states and len(trained.epochs) == expected
    for name, content in states.items():
        (tmp_path / name).write_bytes(content)
    assert select(*sides, TINY, **options).scores == whole.scores  # states whose scores are lost are not used


def test_states_of_stopped_settings_are_removed(sides, trained, tmp_path):
    config = TINY.override({"epochs": 2})
    names = []
    select(
        *sides,
        config,
        alpha=ALPHA,
        eta=ETA,
        folder=tmp_path,
        keep=lambda *_: names.append(len(list(tmp_path.iterdir()))),
    )
    left = len(names) - 4
    assert names[:4] == [1, 2, 3, 4] and names[4:] == [left] * left and list(tmp_path.iterdir()) == []


def test_equal_selections_are_equal(sides):
    config = TINY.override({"epochs": 2})
    first, second = (select(*sides, config, alpha=ALPHA, eta=[0.2]) for _ in range(2))
    other = select(*sides, config.override({"seed": 1}), alpha=ALPHA, eta=[0.2])
    assert first == second and first.scores != other.scores


def test_only_pairs_to_train_and_to_validate_can_be_passed():
    names = list(inspect.signature(select).parameters)
    assert names[:3] == ["training", "validation", "config"]
    assert not {"query", "database", "store", "split"} & set(names)


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"alpha": []}, "alpha"),
        ({"eta": [0.1, 0.1]}, "eta"),
        ({"alpha": [0.3, -1.0]}, "alpha"),
        ({"eta": [float("nan")]}, "eta"),
        ({"device": "tpu"}, "device"),
        ({"config": METHODS["baseline"].config(TINY)}, "method"),
    ],
    ids=str,
)
def test_selections_that_make_no_sense_are_refused(options, option, sides):
    with pytest.raises(ConfigError) as caught:
        select(*sides, **{"config": TINY, **options})
    assert caught.value.option == option


def test_validation_pairs_are_needed(sides):
    with pytest.raises(DataError) as caught:
        select(sides[0], pairs_of(45, 45), TINY)
    assert caught.value.option == "validation"


def test_progress_is_shown_when_asked_for(sides, capsys):
    config = TINY.override({"epochs": 1})
    select(*sides, config, alpha=ALPHA, eta=[0.2])
    assert capsys.readouterr() == ("", "")
    select(*sides, config, alpha=ALPHA, eta=[0.2], progress=True)
    shown = capsys.readouterr().err
    assert "Stage 1 of 1, to epoch 1" in shown and "2/2" in shown and "settings/s" in shown


# The folder


@pytest.fixture
def store(tmp_path):
    np.savez(tmp_path / "planted.npz", **plant(60))
    return FeatureStore.open(tmp_path / "planted.npz")


QUICK = TINY.override({"epochs": 2})
chosen_in = partial(select_in, config=QUICK, method="multibit", alpha=ALPHA, eta=ETA)


def test_a_selection_is_kept_with_what_made_it(store, tmp_path):
    split = Split.usual(60)
    record = chosen_in(tmp_path / "s", store, split)
    assert [path.name for path in (tmp_path / "s").iterdir()] == [RECORD]
    assert SelectionRecord.read(tmp_path / "s") == record
    content = json.loads((tmp_path / "s" / RECORD).read_text())
    assert (content["format"], content["version"], content["method"]) == ("multibit selection", 1, "multibit")
    assert (content["alpha"], content["eta"], content["stages"], content["bits"]) == (
        [0.3, 0.9],
        [0.1, 0.2],
        [1, 2],
        16,
    )
    assert (content["data"], content["split"]) == (store.fingerprint(), split.fingerprint())
    assert content["config"]["seed"] == 42 and not {"alpha", "eta"} & set(content["config"])
    assert {"multibit", "torch", "numpy", "python"} <= set(content["versions"])
    assert Setting(record.chosen.alpha, record.chosen.eta) == record.choice.best
    assert [(each["eta"], each["alpha"]) for each in content["settings"]] == list(itertools.product(ETA, ALPHA))


def test_it_reads_train_and_validation_rows_only(store, tmp_path, monkeypatch):
    split, taken, take = Split.usual(60), [], FeatureStore.take
    monkeypatch.setattr(FeatureStore, "take", lambda self, rows: taken.append(np.array(rows)) or take(self, rows))
    chosen_in(tmp_path / "s", store, split)
    assert [rows.tolist() for rows in taken] == [split.train.tolist(), split.validation.tolist()]


def test_a_finished_selection_is_only_read(store, tmp_path, trained):
    record = chosen_in(tmp_path / "s", store, Split.usual(60))
    trained.calls.clear()
    assert chosen_in(tmp_path / "s", store, Split.usual(60)) == record and trained.calls == []


@pytest.mark.parametrize("stop", [1, 3, 5])
def test_a_killed_selection_is_resumed(stop, store, tmp_path, trained, monkeypatch):
    whole = chosen_in(tmp_path / "whole", store, Split.usual(60))
    expected = len(trained.calls)
    trained.calls.clear()
    with monkeypatch.context() as patch:
        write = SelectionRecord.write

        def killed(record, folder):
            write(record, folder)
            if sum(len(each.scores) for each in record.settings) == stop:
                raise KeyboardInterrupt

        patch.setattr(SelectionRecord, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            chosen_in(tmp_path / "s", store, Split.usual(60))
    assert SelectionRecord.read(tmp_path / "s").chosen is None and len(trained.calls) == stop
    assert chosen_in(tmp_path / "s", store, Split.usual(60)) == whole and len(trained.calls) == expected


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"config": QUICK.override({"epochs": 3})}, "epochs 2 there, 3 here"),
        ({"config": QUICK.override({"seed": 1})}, "seed 42 there, 1 here"),
        ({"alpha": (0.3, 0.6)}, "alpha"),
        ({"full": True}, "stages"),
        ({"split": Split.usual(60, 1)}, "split"),
    ],
    ids=str,
)
def test_a_selection_of_something_else_is_refused(changed, named, store, tmp_path):
    given = {"store": store, "split": Split.usual(60)}
    chosen_in(tmp_path / "s", **given)
    before = (tmp_path / "s" / RECORD).read_bytes()
    with pytest.raises(DataError) as caught:
        chosen_in(tmp_path / "s", **{**given, **changed})
    assert (caught.value.file, caught.value.option) == (tmp_path / "s", "folder") and named in caught.value.problem
    assert (tmp_path / "s" / RECORD).read_bytes() == before


def test_the_alpha_and_eta_of_a_preset_do_not_matter(store, tmp_path, trained):
    chosen_in(tmp_path / "s", store, Split.usual(60))
    trained.calls.clear()
    chosen_in(tmp_path / "s", store, Split.usual(60), config=QUICK.override({"alpha": 1.2, "eta": 7.0}))
    assert trained.calls == []


@pytest.mark.parametrize(
    "edit",
    [
        lambda content: content | {"alpha": "many"},
        lambda content: content | {"alpha": [0.3, 0.8]},
        lambda content: content | {"settings": content["settings"][1:]},
        lambda content: content | {"stages": []},
    ],
)
def test_an_edited_record_is_refused(edit, store, tmp_path):
    chosen_in(tmp_path / "s", store, Split.usual(60))
    path = tmp_path / "s" / RECORD
    path.write_text(json.dumps(edit(json.loads(path.read_text()))))
    with pytest.raises(FormatError) as caught:
        chosen_in(tmp_path / "s", store, Split.usual(60))
    assert caught.value.file == path


def test_two_processes_do_not_select_in_one_folder(store, tmp_path):
    (tmp_path / "s").mkdir()
    with only_writer(tmp_path / "s"), pytest.raises(BusyError):
        chosen_in(tmp_path / "s", store, Split.usual(60))


def test_a_refused_selection_leaves_no_folder(store, tmp_path):
    split = Split.draw(60, query=20, train=20, validation=0)
    for config in (QUICK, METHODS["baseline"].config(QUICK)):
        with pytest.raises((DataError, ConfigError)):
            chosen_in(tmp_path / "s", store, split, config=config)
        assert not (tmp_path / "s").exists()


# Its table, file and figure


A, B, C, D = grid_of(ALPHA, ETA)
SHOWN = Choice(16, (1, 2), {A: (0.5, 0.61), B: (0.4,), C: (0.6, 0.6234), D: (0.3,)})


def test_the_table_has_the_layout_of_the_paper_and_marks_the_best():
    table = surface_table(SHOWN)
    assert table.header == ("", "alpha 0.3", "alpha 0.9")
    assert [[str(cell) for cell in row] for row in table.rows] == [
        ["eta 0.1", "61.00", "40.00 @1"],
        ["eta 0.2", "62.34", "30.00 @1"],
    ]
    assert table.marks == {(1, 1): "best"} and "@N" in table.note
    assert "@N" not in surface_table(Choice(16, (2,), dict.fromkeys((A, B, C, D), (0.5,)))).note


def test_the_file_has_a_row_per_setting(tmp_path):
    written = write_selection(SHOWN, tmp_path)
    assert [path.name for path in written] == [f"response-surface.{ending}" for ending in ("csv", "png", "pdf")]
    rows = list(csv.DictReader(written[0].read_text().splitlines()))
    assert rows[0] == {"alpha": "0.3", "eta": "0.1", "epochs": "2", "mAP epoch 1": "0.5", "mAP epoch 2": "0.61"}
    assert rows[1] == {"alpha": "0.9", "eta": "0.1", "epochs": "1", "mAP epoch 1": "0.4", "mAP epoch 2": ""}
    assert len(scores_table(SHOWN).rows) == 4


def test_the_figure_is_the_surface_with_a_star_at_the_best(tmp_path, monkeypatch):
    figures, draw = [], drawing.draw_surface
    monkeypatch.setattr(drawing, "draw_surface", lambda *args: figures.append(args[0]) or draw(*args))
    write_selection(SHOWN, tmp_path)
    panel = figures[0].axes[0]
    np.testing.assert_allclose(panel.images[0].get_array(), [[61, 40], [62.34, 30]])
    (star,) = [line for line in panel.lines if line.get_marker() == "*"]
    assert (int(star.get_xdata()[0]), int(star.get_ydata()[0])) == (0, 1)
    assert [text.get_text() for text in panel.texts].count("epoch 1") == 2
    assert [tick.get_text() for tick in panel.get_yticklabels()] == ["0.1", "0.2"]


def test_without_the_extra_there_is_no_figure(tmp_path, monkeypatch):
    monkeypatch.setattr(drawing, "missing_for_figures", lambda: True)
    assert [path.name for path in write_selection(SHOWN, tmp_path)] == ["response-surface.csv"]
