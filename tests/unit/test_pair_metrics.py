"""Pair recall of evaluations against loops over every query and candidate."""

import numpy as np
import pytest

from commands import Words
from conftest import SMALL, plant
from multibit import FeatureStore, Run, Split, measurement
from multibit.codes import CodedItems, Codes
from multibit.codes.layout import Layout
from multibit.counterparts import RELAXED, SHARED
from multibit.evaluation import cost
from multibit.evaluation.comparison import compare
from multibit.evaluation.metric import MEDIAN_RANK, NDCG, PAIR_RECALL, PAIRS
from multibit.evaluation.pair_metrics import (
    CONTENT,
    WITH_DATABASE,
    ContentGains,
    RealBlock,
    TextCodes,
    add_pair_recall,
    add_real_pairs,
    compared_queries,
    pair_metrics,
    real_values_of,
)
from multibit.evaluation.protocol import evaluate, evaluate_rankings
from multibit.evaluation.ranking import Rankings
from multibit.evaluation.relevance import GradedRelevance
from multibit.evaluation.resolution import ndcg
from multibit.evaluation.storage import load_evaluations, save_evaluations
from multibit.evaluation.tables import content_table, pair_tables
from multibit.measurement import assess_run, measure

BITS = 6


def items(count, seed):
    rng = np.random.default_rng(seed)
    relaxed = {modality: rng.uniform(-1, 1, (count, BITS)).astype(np.float32) for modality in ("image", "text")}
    labels = (rng.random((count, 4)) < 0.5).astype(np.uint8)
    labels[:, 0] = 1
    return CodedItems.binarize(relaxed, labels)


@pytest.fixture
def rankings():
    return Rankings(items(12, 1), items(30, 2), (3, BITS))


def evaluated(rankings):
    return evaluate_rankings(rankings, training_labels=rankings.query.labels)


def slow(scores, mine):
    """R@1, R@5, R@10 and the rank of the best own candidate; ties by simulation of many orders."""
    rng = np.random.default_rng(0)
    places = np.argsort(-scores + 1e-9 * rng.random((1_000, len(scores))), axis=1)
    ranks = np.argmax(mine[places], axis=1) + 1
    return np.array([*((ranks <= k).mean() for k in (1, 5, 10)), ranks.mean()])


def test_codes_are_ranked_among_the_queries_and_among_everything(rankings):
    evaluation = add_pair_recall(evaluated(rankings), rankings)
    for direction, asked, searched in (("i2t", "image", "text"), ("t2i", "text", "image")):
        for bits in (3, BITS):
            query, own, others = (
                side.codes(modality).to_signs()[:, :bits].astype(float)
                for side, modality in (
                    (rankings.query, asked), (rankings.query, searched), (rankings.database, searched)
                )
            )  # fmt: skip
            for reference, candidates in (("", own), (WITH_DATABASE, np.concatenate([own, others]))):
                expected = [slow(candidates @ code, np.arange(len(candidates)) == q) for q, code in enumerate(query)]
                measured = [evaluation.of(metric.under(reference), direction, bits) for metric in PAIRS]
                np.testing.assert_allclose(np.transpose(measured), expected, atol=0.5, rtol=0.05)
                np.testing.assert_allclose(np.mean(measured[:3]), np.mean(np.transpose(expected)[:3]), atol=0.01)


def test_of_several_texts_any_counts_and_each_is_a_query(rankings):
    rng = np.random.default_rng(5)
    sides = []
    for side in (rankings.query, rankings.database):
        counts = rng.integers(1, 4, len(side))
        bits = rng.integers(0, 2, (counts.sum(), BITS))
        sides.append(TextCodes(Codes.from_bits(bits), counts, Layout((3, BITS))))
    evaluation = add_pair_recall(evaluated(rankings), rankings, tuple(sides))
    texts = [side.codes.to_signs().astype(float) for side in sides]
    images = [side.image.to_signs().astype(float) for side in (rankings.query, rankings.database)]
    owner = np.repeat(np.arange(12), sides[0].counts)
    number = np.append(owner, np.full(len(texts[1]), -1))
    i2t = [slow(np.concatenate(texts) @ image, number == q) for q, image in enumerate(images[0])]
    t2i = [slow(np.concatenate(images) @ text, np.arange(42) == q) for q, text in zip(owner, texts[0], strict=True)]
    t2i = [np.mean([row for row, q in zip(t2i, owner, strict=True) if q == item], axis=0) for item in range(12)]
    for direction, expected in (("i2t", i2t), ("t2i", t2i)):
        measured = [evaluation.of(metric.under(WITH_DATABASE), direction, BITS) for metric in PAIRS]
        np.testing.assert_allclose(np.transpose(measured), expected, atol=0.5, rtol=0.05)


def blocks_of(side, size):
    """Real values of items in blocks, with two texts for each item where `size` is given."""
    for start in range(0, len(side), size):
        part = {modality: side.relaxed[modality][start : start + size] for modality in ("image", "text")}
        count = len(part["image"])
        yield RealBlock({("relaxed", BITS): part, ("real", 0): part}, np.ones(count, np.int64), part)


@pytest.mark.parametrize("size", [1, 7, 30])
def test_real_values_and_content_do_not_depend_on_the_blocks(rankings, size):
    (query,) = blocks_of(rankings.query, 12)
    evaluation = add_real_pairs(evaluated(rankings), rankings, query, blocks_of(rankings.database, size))
    assert real_values_of(evaluation) == ["relaxed", "real"]
    own, others = rankings.query.relaxed, rankings.database.relaxed
    for direction, asked, searched in (("i2t", "image", "text"), ("t2i", "text", "image")):
        for among, candidates in (("", own[searched]), ("database", np.concatenate([own[searched], others[searched]]))):
            scores = own[asked] @ candidates.T
            ranks = (scores > np.diag(scores)[:, None]).sum(axis=1) + 1
            for name, bits in (("relaxed", BITS), ("real", 3), ("real", BITS)):
                *recall, rank = pair_metrics(f"{name} {among}".strip())
                np.testing.assert_array_equal(evaluation.of(rank, direction, bits), ranks)
                for metric in recall:
                    np.testing.assert_array_equal(evaluation.of(metric, direction, bits), ranks <= metric.cutoff)
        gains = content_relevance(rankings)
        for bits in (3, BITS):
            rows = rankings[direction, bits].first.rows
            expected = [ndcg(gain[row], np.sort(gain)[::-1][:100]) for gain, row in zip(gains, rows, strict=True)]
            np.testing.assert_allclose(evaluation.of(NDCG.under(CONTENT), direction, bits), expected, atol=1e-5)


def content_relevance(rankings):
    """(Q, N) by definition."""
    total = np.zeros((len(rankings.query), len(rankings.database)))
    for modality in ("image", "text"):
        mean = rankings.query.relaxed[modality].mean(axis=0)
        query, database = (side.relaxed[modality] - mean for side in (rankings.query, rankings.database))
        total += query @ database.T / np.outer(*(np.linalg.norm(side, axis=1) for side in (query, database)))
    idf = GradedRelevance.idf(rankings.database.labels).scores(rankings.query.labels, rankings.database.labels)
    return idf * np.maximum(total / 2, 0)


def test_a_hundred_of_many_items_are_ideal():
    many = Rankings(items(3, 1), items(400, 2), (BITS,))
    gains = ContentGains(many, many.query.relaxed, 3)
    for block in blocks_of(many.database, 90):
        gains.add(block.content)
    rows = many["i2t", BITS].first.rows
    expected = [
        ndcg(gain[row], np.sort(gain)[::-1][:100]) for gain, row in zip(content_relevance(many), rows, strict=True)
    ]
    np.testing.assert_allclose(gains.ndcg()["i2t", BITS], expected, atol=1e-5)


def test_fewer_queries_are_ranked_by_real_values_in_a_large_database():
    assert compared_queries(1_192, 3_577) == 1_192
    assert compared_queries(5_000, 10_000) == 2_000
    assert compared_queries(5_000, 200_000) == 500
    assert compared_queries(5_000, 10**9) == 100


@pytest.fixture
def report(tmp_path, monkeypatch):
    """Assessment of a run whose items have one to three texts."""
    monkeypatch.setattr(measurement, "load_text_encoder", Words)
    monkeypatch.setattr(cost, "TIMED", 2)
    data, rng = plant(120), np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 4, 120))])
    texts = np.repeat(data["text"], np.diff(offsets), axis=0)
    data["text"] = texts + 0.1 * rng.normal(size=texts.shape).astype(np.float32)
    names = [f"name {i}" for i in range(data["labels"].shape[1])]
    np.savez(tmp_path / "several.npz", **data, text_offsets=offsets, label_names=names)
    store = FeatureStore.open(tmp_path / "several.npz")
    run = Run.create(tmp_path / "run", store, Split.draw(120, query=20, train=60, validation=10), SMALL)
    return assess_run(measure(run, store), store)


def test_a_run_on_items_with_several_texts_is_assessed(report):
    whole, unseen = report.evaluations
    assert real_values_of(whole) == [RELAXED, SHARED] and PAIR_RECALL not in unseen.metrics
    longest = max(report.lengths)
    for direction in ("i2t", "t2i"):
        assert whole.mean(PAIR_RECALL, direction, longest) > 10 / 20  # better than at random
        assert whole.mean(PAIR_RECALL.under(WITH_DATABASE), direction, longest) <= whole.mean(
            PAIR_RECALL, direction, longest
        )
    assert [len(table.rows) for table in pair_tables(whole)] == [24, 24]
    assert len(content_table(whole).rows) == 2


def test_pair_recall_is_stored_and_compared(tmp_path):
    query, database = items(12, 1), items(30, 2)
    first = evaluate(query, database, (BITS,), training_labels=query.labels, name="first")
    second = evaluate(items(12, 3), database, (BITS,), training_labels=query.labels, name="second")
    save_evaluations(tmp_path / "e.json", [first])
    assert load_evaluations(tmp_path / "e.json") == [first]
    for metric in (PAIR_RECALL, MEDIAN_RANK.under(WITH_DATABASE)):
        compared = compare(first, second, metric=str(metric))
        expected = first.of(metric, "i2t", BITS) - second.of(metric, "i2t", BITS)
        np.testing.assert_allclose(compared.differences["second", "i2t", BITS].values, expected)
        assert 0 < compared.differences["second", "i2t", BITS].p <= 1
        assert str(metric) in compared.table().header
