"""Metric objects: equality, and text that is parsed back to the same metric."""

import itertools

import numpy as np
import pytest

from multibit.errors import ConfigError
from multibit.evaluation.metric import (
    COLLISION,
    INVERSION,
    MAP,
    MAP_TIE_AVERAGED,
    MEDIAN_RANK,
    METRICS,
    NDCG,
    NO_RELEVANT_ITEM,
    PAIR_RECALL,
    PRECISION,
    RESOLUTION,
    TAU_B,
    Metric,
    as_metric,
)

CUTOFFS = (None, 1, 5, 100, 1000)
REFERENCES = ("", "IDF", "label names", "no shared label, graph top 25 %", "best ties")


@pytest.mark.parametrize("metric", METRICS, ids=str)
def test_parse_is_the_inverse_of_str(metric):
    assert Metric.parse(str(metric)) == metric
    for cutoff, reference in itertools.product(CUTOFFS, REFERENCES):
        if metric == MAP and cutoff is None and reference == "best ties":
            continue  # "mAP best ties" is a metric of its own
        changed = Metric(metric.name, cutoff, reference)
        parsed = Metric.parse(str(changed))
        assert parsed == changed
        assert (parsed.larger_is_better, parsed.undefined) == (metric.larger_is_better, metric.undefined)


@pytest.mark.parametrize(
    ("metric", "text"),
    [
        (MAP, "mAP"),
        (MAP.at(50), "mAP@50"),
        (MAP_TIE_AVERAGED, "mAP tie-averaged"),
        (PRECISION.at(5), "precision@5"),
        (NDCG, "NDCG@100"),
        (NDCG.under("IDF"), "NDCG@100 IDF"),
        (NDCG.at(10).under("label names"), "NDCG@10 label names"),
        (PAIR_RECALL, "R@10"),
        (PAIR_RECALL.at(1).under("shared features database"), "R@1 shared features database"),
        (MEDIAN_RANK.under("database"), "median rank database"),
        (TAU_B.under("label names"), "tau-b label names"),
    ],
)
def test_texts_of_metrics(metric, text):
    assert str(metric) == text
    assert Metric.parse(text) == as_metric(text) == as_metric(metric) == metric


def test_metrics_are_equal_by_name_cutoff_and_reference():
    assert Metric("mAP", larger_is_better=False, undefined="never") == MAP
    assert hash(MAP) == hash(Metric("mAP", undefined="never"))
    different = [MAP, MAP.at(5), MAP.at(6), MAP.under("IDF"), MAP_TIE_AVERAGED, NDCG, NDCG.under("IDF")]
    assert len(set(different)) == len(different)
    assert len({str(metric) for metric in different}) == len(different)


def test_all_metrics_have_different_names():
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_ranks_collisions_and_inversions_are_better_when_smaller():
    assert [metric for metric in METRICS if not metric.larger_is_better] == [MEDIAN_RANK, COLLISION, INVERSION]
    assert COLLISION.under("IDF").larger_is_better is INVERSION.at(5).larger_is_better is False


def test_derived_metrics_keep_the_rule_for_undefined_queries():
    assert MAP.at(5).undefined == PRECISION.at(5).undefined == NO_RELEVANT_ITEM
    assert all(metric.under("IDF").undefined == metric.undefined for metric in RESOLUTION)


@pytest.mark.parametrize(
    "text",
    ["", "map", "mAP@", "mAP@0", "mAP@-5", "mAP@5.5", "mAP@ 5", "mAPs", "NDCG@100IDF", "recall@5", " mAP", "mAP "],
)
def test_an_unknown_metric_is_refused_with_the_known_ones(text):
    with pytest.raises(ConfigError) as caught:
        Metric.parse(text)
    assert caught.value.option == "metric" and repr(text) in caught.value.problem
    assert all(str(metric) in caught.value.problem for metric in METRICS)


def test_the_values_of_an_evaluation_are_found_by_equal_metrics():
    values = {(NDCG.under("IDF"), "i2t", 16): np.ones(3)}
    assert (Metric("NDCG", 100, "IDF"), "i2t", 16) in values
    assert (Metric("NDCG", 10, "IDF"), "i2t", 16) not in values


def test_ranks_are_summarised_by_their_median_and_shares_by_their_mean():
    values = np.array([1.0, 2.0, 9.0, np.nan])
    assert (MEDIAN_RANK.summary(values), PAIR_RECALL.summary(values)) == (2.0, 4.0)
    assert np.isnan(MEDIAN_RANK.summary(np.array([np.nan])))
    assert (str(MEDIAN_RANK.shown(1234.5)), str(MAP.shown(0.125)), str(MAP.shown(0.01, "+"))) == (
        "1,234.5",
        "12.50",
        "+1.00",
    )
