"""The protocol of the paper's tables: nodes of the teachers, label-name evaluator, sizes of the split, shares."""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import json

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import kendalltau

from conftest import plant
from multibit import Config, FeatureStore, measurement, train
from multibit.codes.items import DIRECTIONS
from multibit.errors import ConfigError, DataError
from multibit.evaluation.relevance import PROMPT, GradedRelevance
from multibit.features.recipe import EncoderRecipe
from multibit.hashing.bits import allocate_bits
from multibit.hashing.targets import build_targets
from multibit.paper import accuracy_cells as accuracy
from multibit.paper import ranking_cells as ranking
from multibit.paper.cells import AtLength, Named, Quantity, Searching
from multibit.paper.label_cells import UMH, VALUE
from multibit.paper.reproduce import reproduce_all, require_plan
from multibit.paper.reproduction import Reproduction, Subject
from multibit.paper.tables import TABLES, reproduce
from multibit.relation import TEACHERS, RelationTeacher, load_teacher, teacher_class
from multibit.relation.teacher import quadrature

pytestmark = pytest.mark.usefixtures("quick_words")
TINY = Config(lengths=(8, 16), scales=2, hidden=16, dimension=8, epochs=1, batch_size=64)
NAMES = tuple(f"topic {i}" for i in range(8))
LABEL_NAMES = Quantity("label names")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "planted.npz"
    np.savez(path, **plant(200), label_names=NAMES)
    return FeatureStore.open(path)


@pytest.fixture(scope="module")
def kept(store, tmp_path_factory):
    """Runs that are trained once for all tests."""
    return of(store, tmp_path_factory.mktemp("kept"))


def of(store, folder, column="coco", **options):
    return Reproduction(Subject(store.dataset.labels, NAMES, store, column), folder, TINY, **options)


def labels_alone(folder, column="mirflickr", names=NAMES, **options):
    return Reproduction(Subject(plant(200)["labels"], names, None, column), folder, TINY, **options)


# ---- nodes of a teacher, apart from those of the bit budget ---------------------------------------------------------

LABELS = plant(120)["labels"]


@pytest.mark.parametrize("name", TEACHERS)
def test_scores_have_the_nodes_of_the_teacher_and_the_bit_budget_keeps_its_own(name):
    mixed = teacher_class(name).fit(LABELS, 0.9, 0.2, 4, teacher_alpha=1.2)
    own, other = (teacher_class(name).fit(LABELS, alpha, 0.2, 4) for alpha in (1.2, 0.9))
    np.testing.assert_array_equal(mixed.scores(LABELS[:20], LABELS), own.scores(LABELS[:20], LABELS))
    assert allocate_bits(mixed.rho, 128) == (80, 43, 4, 1)
    np.testing.assert_array_equal(mixed.scale_scores(LABELS[:5], LABELS), other.scale_scores(LABELS[:5], LABELS))
    np.testing.assert_array_equal(mixed.nodes[0], quadrature(1.2, 0.2, 4)[0])


@pytest.mark.parametrize("alpha", [0.0, 1.2])
@pytest.mark.parametrize("name", TEACHERS)
def test_a_saved_teacher_keeps_its_nodes(name, alpha, tmp_path):
    teacher = teacher_class(name).fit(LABELS, 0.9, 0.2, 4, teacher_alpha=alpha)
    teacher.save(tmp_path / "teacher.safetensors")
    loaded = load_teacher(tmp_path / "teacher.safetensors")
    assert loaded.teacher_alpha == alpha and loaded.fingerprint() == teacher.fingerprint()
    np.testing.assert_array_equal(loaded.scores(LABELS[:9], LABELS), teacher.scores(LABELS[:9], LABELS))


def test_a_teacher_without_nodes_of_its_own_is_identified_as_before():
    plain = RelationTeacher.fit(LABELS)
    assert plain._settings() == {"alpha": 0.9, "eta": 0.2}
    assert plain.fingerprint() != RelationTeacher.fit(LABELS, teacher_alpha=1.2).fingerprint()


def test_nodes_that_do_not_exist_are_refused():
    with pytest.raises(ConfigError):
        RelationTeacher.fit(LABELS, teacher_alpha=-1.0)
    with pytest.raises(ConfigError):
        Config(teacher_alpha=-1.0)
    with pytest.raises(ConfigError):
        Config(scale_teacher="other")


@pytest.mark.parametrize("name", ["umh", "learned-weights"])
def test_the_scale_loss_follows_the_heat_of_the_budget_or_of_the_teacher(name):
    import torch

    teacher, rows = teacher_class(name).fit(LABELS, 0.9, 0.2, 4, teacher_alpha=1.2), torch.arange(10)
    expected = {False: teacher.tau, True: quadrature(1.2, 0.2, 4)[0]}
    for own, tau in expected.items():
        scores = build_targets(teacher, LABELS, own)(rows)[1:].detach().numpy()
        for got, time in zip(scores, tau, strict=True):
            heat = teacher.heat(LABELS[:10], time)
            np.testing.assert_allclose(got, heat @ heat.T, atol=1e-6)


def trained(pairs, **settings):
    config = TINY.override({"epochs": 2, "lengths": (8, 16), **settings})
    return train(pairs, config=config).model.state_dict()


def same(a, b):
    return all((a[key] == b[key]).all() for key in a)


def test_without_scales_of_its_own_a_teacher_has_no_scale_loss(planted_pairs):
    off = trained(planted_pairs, teacher="ppmi", scale_teacher="own")
    assert same(off, trained(planted_pairs, teacher="ppmi", scale_weight=0.0))
    assert not same(off, trained(planted_pairs, teacher="ppmi"))


def test_the_scale_loss_of_a_teacher_at_the_nodes_of_the_budget_is_the_same_in_both_readings(planted_pairs):
    assert same(trained(planted_pairs, teacher="umh", scale_teacher="own"), trained(planted_pairs, teacher="umh"))
    own, heat = (trained(planted_pairs, teacher="umh", teacher_alpha=1.2, scale_teacher=e) for e in ("own", "heat"))
    assert not same(own, heat)


@pytest.mark.slow
def test_the_table_of_teachers_shows_both_readings_at_the_nodes_of_the_paper(kept):
    outcome = reproduce(TABLES["teacher-transfer"], kept, [42])
    assert outcome.cells.rows == [*accuracy.TRANSFER, *accuracy.OWN_SCALES]
    for row in (accuracy.UMH_CODES, accuracy.LEARNED):
        run = kept.run(row.method, 42, **row.settings)
        np.testing.assert_array_equal(run.teacher.nodes[0], quadrature(1.2, 0.2, 2)[0])
        np.testing.assert_array_equal(run.teacher.tau, quadrature(0.9, 0.2, 2)[0])
        assert run.model.blocks == kept.run("multibit", 42).model.blocks
    note = outcome.table().note
    assert "replaces g* only" in note and "Baseline" in note and "own scale loss" in note


@pytest.mark.slow
def test_at_the_nodes_of_the_paper_both_readings_are_one_model(store, tmp_path):
    r = dataclasses.replace(of(store, tmp_path, "mirflickr"), config=TINY.override({"alpha": 1.2}))
    cells = reproduce(TABLES["teacher-transfer"], r, [42]).cells
    for first, other in zip((accuracy.UMH_CODES, accuracy.LEARNED), accuracy.OWN_SCALES[3:], strict=True):
        for column in cells.columns:
            assert cells[first, column] == cells[other, column]
    assert len(list((tmp_path / "runs").iterdir())) == 8 + 3


@pytest.mark.slow
def test_several_seeds_of_the_teacher_table_train_the_learned_weights_for_each(kept):
    outcome = reproduce(TABLES["teacher-quality"], kept, [42, 7])
    learned = outcome.cells[Named("Learned-weight Multi-scale Heat"), Quantity("IDF")]
    assert learned.shape == (2,)
    weights = [kept.run("multibit", seed, **accuracy.LEARNED.settings).teacher.mixture for seed in (42, 7)]
    assert (weights[0] != weights[1]).any()
    rows = {row[0]: row[1] for row in outcome.table().rows}
    assert rows["UMH"].spread is None  # it is not trained


# ---- the label-name evaluator ---------------------------------------------------------------------------------------


class Reader:
    """A text encoder that keeps what it reads."""

    def __init__(self):
        self.read = []

    def encode(self, texts):
        self.read += texts
        return np.random.default_rng(1).normal(size=(len(texts), 6))


def test_label_names_are_read_in_the_evaluators_prompt_alone(monkeypatch):
    asked, reader = [], Reader()
    monkeypatch.setattr(measurement, "text_encoder_of", lambda recipe, **_: asked.append(recipe) or reader)
    recipe = EncoderRecipe("clip", "f00", 6, "pooled", prompt="a photo of {}", source="/models/clip")
    relevance = measurement.label_name_relevance(recipe, ["dog", "cat"])
    assert reader.read == [PROMPT.format("dog"), PROMPT.format("cat")] == ["a photo of a dog", "a photo of a cat"]
    assert asked[0].prompt == "{}" and asked[0].source == "/models/clip" and relevance.origin == "clip"


def test_another_encoder_is_loaded_by_name_or_folder(monkeypatch, tmp_path):
    loaded = []
    monkeypatch.setattr(measurement, "load_text_encoder", lambda name: loaded.append(name) or Reader())
    known = EncoderRecipe("clip", "f00", 6, "pooled")
    (tmp_path / "tiny").mkdir()
    origins = [
        measurement.label_name_relevance(recipe, NAMES, text_encoder=encoder).origin
        for recipe, encoder in ((None, None), (known, "words"), (known, str(tmp_path / "tiny")))
    ]
    assert origins == ["all-minilm-l6-v2", "words", "tiny"] and loaded == [*origins[:2], str(tmp_path / "tiny")]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_the_encoder_of_the_features_is_loaded_from_its_source(monkeypatch, tmp_path):
    """Not by the name of its folder, and without the prompt of the features."""
    from test_joint import write_clip

    from multibit.features import load

    monkeypatch.setattr(measurement, "load_text_encoder", load.load_text_encoder)
    folder = write_clip(tmp_path / "tiny-clip")
    encoder = load.load_text_encoder(str(folder), prompt="a photo of {}")
    relevance = measurement.label_name_relevance(encoder.recipe, ["dog", "green frog", "sky"])
    plain = load.load_text_encoder(str(folder))
    expected = GradedRelevance.semantic(["dog", "green frog", "sky"], plain.encode)
    np.testing.assert_allclose(relevance.kernel, expected.kernel, atol=1e-6)
    assert np.abs(
        relevance.kernel - GradedRelevance.semantic(["dog", "green frog", "sky"], encoder.encode).kernel
    ).max()
    assert relevance.origin == encoder.recipe.name


BY_NAMES = [name for name, entry in TABLES.items() if entry.by_label_names(LABEL_NAMES)]


@pytest.mark.parametrize("name", ["teacher-quality", "teacher-aligned"])
def test_a_substituted_encoder_is_named_and_not_compared_with_the_paper(name, tmp_path):
    outcome = reproduce(TABLES[name], labels_alone(tmp_path), [42])
    assert (UMH, Quantity("IDF")) in outcome.printed and (UMH, LABEL_NAMES) in outcome.cells
    assert not outcome.printed.where(lambda column: column == LABEL_NAMES)
    note = outcome.table().note
    assert "all-minilm-l6-v2, which stands in for an unknown one" in note and "not shown" in note


@pytest.mark.parametrize("name", ["teacher-quality", "teacher-aligned"])
def test_an_encoder_that_the_user_names_is_compared_with_the_paper(name, tmp_path):
    outcome = reproduce(TABLES[name], labels_alone(tmp_path, text_encoder="openai/clip"), [42])
    assert (UMH, LABEL_NAMES) in outcome.printed
    assert "by the text encoder openai/clip." in outcome.table().note and "not shown" not in outcome.table().note


def test_no_encoder_is_named_where_there_are_no_label_names(tmp_path):
    assert "encoder" not in reproduce(TABLES["teacher-aligned"], labels_alone(tmp_path, names=()), [42]).table().note


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_NAMES)
def test_every_table_by_label_names_names_its_encoder(name, kept):
    outcome = reproduce(TABLES[name], kept, [42])
    assert "all-minilm-l6-v2" in outcome.table().note
    assert not outcome.printed.where(TABLES[name].by_label_names)


def test_the_tables_by_label_names_are_known():
    assert set(BY_NAMES) == {
        "teacher-quality", "teacher-aligned", "resolution-label-names", "evaluator-agreement", "resolution-strata",
    }  # fmt: skip


# ---- sizes of the split ---------------------------------------------------------------------------------------------


def test_the_split_has_the_sizes_that_are_asked_for(store, tmp_path):
    sizes = {"query": 20, "train": 100, "validation": 10}
    for r in (labels_alone(tmp_path, sizes=sizes), of(store, tmp_path, sizes=sizes)):
        assert {role: len(getattr(r.split, role)) for role in sizes} == sizes
        assert len(r.split.database) == 180 and r.split.query[0] == np.random.RandomState(42).permutation(200)[0]


def test_sizes_that_are_incomplete_are_refused(tmp_path):
    with pytest.raises(ConfigError):
        _ = labels_alone(tmp_path, sizes={"query": 20}).split


@pytest.mark.parametrize(
    ("items", "column", "differing"),
    [(19_627, "iapr", []), (20_015, "mirflickr", []), (19_999, "mirflickr", ["pairs", "database"])],
)
def test_the_data_split_flags_what_differs_from_the_paper(items, column, differing, tmp_path):
    classes = {"iapr": 291, "mirflickr": 24}[column]
    labels = np.zeros((items, classes), np.uint8)
    labels[:, 0] = 1
    note = reproduce(TABLES["data-split"], Reproduction(Subject(labels, (), None, column), tmp_path, TINY), [42]).note
    assert all(f"{name} " in note for name in differing)
    assert note.startswith("Differs from the paper: ") if differing else note == ""
    assert note.count("(paper ") == len(differing)


def test_data_that_the_paper_does_not_have_flag_nothing(tmp_path):
    assert reproduce(TABLES["data-split"], labels_alone(tmp_path, column=None), [42]).note == ""


# ---- measured shares ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_agreement_of_the_evaluators_is_the_mean_tau_b_on_the_first_candidates(kept):
    cells = reproduce(TABLES["evaluator-agreement"], kept, [42]).cells
    run, taus = kept.run("multibit", 42), []
    query, database = (kept.codes(run, side) for side in ("query", "database"))
    for asked, searched in DIRECTIONS.values():
        q_bits, d_bits = (side.codes(m).to_bits().astype(int) for side, m in ((query, asked), (database, searched)))
        distance = (q_bits[:, None] != d_bits[None]).sum(axis=2)
        for q, row in enumerate(distance):
            pool = np.argsort(row, kind="stable")[:100]
            scores = [
                each.scores(query.labels[q : q + 1], database.labels[pool])[0].round(10)
                for each in (kept.idf, kept.semantic)
            ]
            taus.append(np.nan_to_num(kendalltau(*scores).statistic))
    assert cells[Named("IDF and label names"), ranking.TAU].item() == pytest.approx(np.mean(taus), abs=1e-9)


@pytest.mark.slow
def test_the_order_that_the_codes_preserve_is_counted_pair_by_pair(kept):
    cells = reproduce(TABLES["order-preservation"], kept, [42]).cells
    run = kept.run("multibit", 42)
    query, database = (kept.codes(run, side) for side in ("query", "database"))
    g = run.teacher.scores(query.labels, database.labels).round(10)
    for column, form in ((ranking.SOFT, np.float64), (ranking.BINARY, lambda h: np.where(h >= 0, 1.0, -1.0))):
        left, right = form(query.relaxed["image"][:, :8]), form(database.relaxed["text"][:, :8])
        distance, shares = 8 - left @ right.T, []
        for scores, d in zip(g, distance, strict=True):
            higher = scores[:, None] > scores[None]
            if higher.any():
                shares.append((higher & (d[:, None] < d[None])).sum() / higher.sum())
        assert cells[Searching("i2t"), AtLength(column, 8)].item() == pytest.approx(100 * np.mean(shares), abs=1e-6)


@pytest.mark.slow
def test_encoding_times_include_binarisation(kept, monkeypatch):
    binarized = []
    binarize = accuracy.Codes.binarize

    def recorded(cls, values):
        binarized.append(len(values))
        return binarize(values)

    kept.run("multibit", 42)
    monkeypatch.setattr(accuracy.Codes, "binarize", classmethod(recorded))
    accuracy.efficiency(kept, 42)
    assert binarized == [len(kept.split.query)] * 12  # six calls for each modality


@pytest.mark.slow
def test_the_cost_table_has_the_mean_over_lengths_and_what_one_model_saves(kept):
    cells = {key: value.item() for key, value in reproduce(TABLES["multi-length-cost"], kept, [42]).cells.items()}
    for design in accuracy.SERVING:
        lengths = [cells[design, AtLength(accuracy.COST_MAP, bits)] for bits in (8, 16)]
        assert cells[design, accuracy.MEAN_OF_LENGTHS] == pytest.approx(np.mean(lengths))
    one, four = (cells[design, accuracy.MODEL_SIZE] for design in (accuracy.MULTIBIT, accuracy.SEPARATE))
    assert cells[accuracy.MULTIBIT, accuracy.MODEL_SAVED] == pytest.approx(100 * (1 - one / four))
    assert cells[accuracy.MULTIBIT, accuracy.CODE_SAVED] == pytest.approx(100 * (1 - 16 / 24))


@pytest.mark.slow
def test_the_rank_displacement_has_the_deviation_of_tau_b_over_its_queries(kept):
    cells = reproduce(TABLES["rank-displacement"], kept, [42]).cells
    tau = ranking.displacements(kept, 42)[1].tau
    assert cells[accuracy.MULTIBIT, ranking.TAU_DEVIATION].item() == pytest.approx(np.std(tau, ddof=1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("teacher-quality", "500 queries"), ("teacher-aligned", "500 queries"), ("quadrature-fidelity", "200 queries"),
        ("query-gain", "1,500 queries"), ("quantization", "first 500 queries"), ("tie-ceiling", "first 500 queries"),
        ("order-preservation", "200 queries"), ("rank-displacement", "5 queries"),
    ],
)  # fmt: skip
def test_a_table_of_a_sample_of_queries_says_so(name, words, kept):
    assert words in reproduce(TABLES[name], kept, [42]).table().note


def test_the_parameter_register_has_everything_that_follows_from_the_settings(tmp_path):
    r = dataclasses.replace(labels_alone(tmp_path), config=Config.preset("mirflickr"))
    outcome = reproduce(TABLES["parameters"], r, [42])
    assert "Adam with cosine annealing" in outcome.table().note
    values = {str(row): value.item() for (row, _), value in outcome.cells.items()}
    assert [values[f"bits of scale {i}"] for i in range(1, 5)] == [71, 50, 6, 1]
    assert [round(values[f"beta {bits}"], 3) for bits in (16, 32, 64, 128)] == [0.138, 0.195, 0.276, 0.391]
    for (row, column), value in outcome.printed.items():
        assert column == VALUE and values[str(row)] == pytest.approx(value, abs=0.006)


def test_the_optimisers_are_shown_next_to_those_of_the_public_code(tmp_path):
    table = reproduce(TABLES["baseline-optimizers"], labels_alone(tmp_path), [42]).table()
    rows = {row[0]: row for row in table.rows}
    assert len(rows) == 11 and [name for name, row in rows.items() if row[5] == "yes"] == ["DSSH", "DNPH", "CMCL"]
    assert rows["DPBE"][1:5] == ("AdamW", "0.0001", "BertAdam", "0.001") and rows["RCMH"][3:5] == ("none", "-")
    assert "NOT REPRODUCED: the settings are those of the original implementations (here 8 of 11 differ)" in table.note


@pytest.mark.slow
def test_the_rows_with_the_standard_objective_are_named(kept):
    note = reproduce(TABLES["component-ablation"], kept, [42]).table().note
    assert "Baseline (no FRT/SBO/MPA), + FRT." in note and "+ FRT + SBO" not in note.split("weight:")[1].split(".")[0]


def test_a_data_error_is_raised_without_features(tmp_path):
    with pytest.raises(DataError):
        reproduce(TABLES["evaluator-agreement"], labels_alone(tmp_path), [42])


def test_tables_by_another_text_encoder_are_refused_in_the_same_folder(tmp_path):
    console = Console(file=io.StringIO())
    reproduce_all(labels_alone(tmp_path), ["teacher-aligned"], [42], tmp_path, console)
    with pytest.raises(DataError) as caught:
        reproduce_all(labels_alone(tmp_path, text_encoder="openai/clip"), ["teacher-aligned"], [42], tmp_path, console)
    assert "text_encoder" in caught.value.problem


def test_a_folder_of_before_these_settings_is_continued(tmp_path):
    console = Console(file=io.StringIO())
    reproduce_all(labels_alone(tmp_path), ["data-split"], [42], tmp_path, console)
    path = tmp_path / "reproduction.json"
    content = json.loads(path.read_text())
    del content["text_encoder"], content["config"]["teacher_alpha"], content["config"]["scale_teacher"]
    path.write_text(json.dumps(content))
    reproduce_all(labels_alone(tmp_path), ["scale-coverage"], [42], tmp_path, console)
    assert set(json.loads(path.read_text())["tables"]) == {"data-split", "scale-coverage"}


@pytest.mark.parametrize("setting", [{"teacher_alpha": 1.2}, {"scale_teacher": "own"}])
def test_settings_of_the_teachers_are_those_of_the_tables(setting):
    with pytest.raises(ConfigError) as caught:
        require_plan(TINY.override(setting), [42])
    assert caught.value.field in setting
