"""Paths that an evaluation cannot be written to are refused before the work."""

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from multibit.codes import CodedItems
from multibit.errors import DataError, FormatError
from multibit.evaluation.protocol import evaluate
from multibit.evaluation.storage import require_evaluation_target, save_evaluations
from multibit.files import write_json


@pytest.fixture
def evaluation():
    rng = np.random.default_rng(0)
    items = CodedItems.binarize(
        {side: rng.normal(size=(9, 8)) for side in ("image", "text")}, np.eye(3)[np.arange(9) % 3]
    )
    return evaluate(items, items, (4, 8), training_labels=items.labels)


def test_a_new_path_and_an_earlier_evaluation_are_accepted(evaluation, tmp_path):
    path = tmp_path / "new" / "evaluation.json"
    require_evaluation_target(path)
    assert not path.parent.exists()
    save_evaluations(path, [evaluation])
    require_evaluation_target(path)


def test_another_ending_is_refused(tmp_path):
    with pytest.raises(DataError) as caught:
        require_evaluation_target(tmp_path / "evaluation.txt")
    assert caught.value.file == tmp_path / "evaluation.txt" and ".json" in caught.value.problem


def test_a_folder_is_refused(tmp_path):
    (tmp_path / "evaluation.json").mkdir()
    with pytest.raises(DataError) as caught:
        require_evaluation_target(tmp_path / "evaluation.json")
    assert str(tmp_path / "evaluation.json") in str(caught.value)


@pytest.mark.parametrize("content", ["json of another kind", "text", "parquet of another table", "text as parquet"])
def test_another_file_with_one_of_the_names_is_refused(content, tmp_path):
    path = tmp_path / "evaluation.json"
    values = path.with_suffix(".parquet")
    if content == "json of another kind":
        write_json(path, {}, kind="run", version=1)
    elif content == "parquet of another table":
        pyarrow.parquet.write_table(pyarrow.table({"value": [1.0]}), values)
    else:
        (path if content == "text" else values).write_text("not ours")
    with pytest.raises(FormatError) as caught:
        require_evaluation_target(path)
    assert str(values if "parquet" in content else path) in str(caught.value)
