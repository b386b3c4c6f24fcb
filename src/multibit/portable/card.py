"""The model card of a run: a header for the Hugging Face Hub, then what the codes are, how good, and what for."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from multibit.codes.items import DIRECTION_NAMES, DIRECTIONS
from multibit.errors import ConfigError
from multibit.evaluation.evaluation import Evaluation
from multibit.evaluation.metric import MAP, MAP_TIE_AVERAGED, PAIRS, Metric
from multibit.evaluation.tables import values_table
from multibit.table import Cell, Table

if TYPE_CHECKING:
    from multibit.runs import Run

LIBRARY = "multibit"
TAGS = ("cross-modal-retrieval", "hashing", "image-text-search", "binary-codes", "onnx")
METRICS = (MAP, MAP_TIE_AVERAGED)
_MODEL_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]*")


def model_card(
    run: Run, *, name: str | None = None, license: str | None = None, evaluations: Sequence[Evaluation] = ()
) -> str:
    """The model card in markdown.

    Args:
        run: to describe. name: of the model; that of the run folder when None.
        license: identifier for the header, such as apache-2.0; left out when None.
        evaluations: of the run, one per protocol.

    Raises:
        ConfigError: a license that is not an identifier.
    """
    title = name or run.name
    header: dict[str, Any] = {"library_name": LIBRARY, "tags": list(TAGS), "pipeline_tag": "feature-extraction"}
    if license is not None:
        require_license(license)
        header["license"] = license
    models = [each.source or each.name for each in (run.recipe.image, run.recipe.text)]
    header["base_model"] = [each for each in dict.fromkeys(models) if _MODEL_NAME.fullmatch(each)]
    if evaluations:
        header["metrics"] = [str(metric) for metric in METRICS]
        header["model-index"] = [{"name": title, "results": _results(evaluations)}]
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in header.items()]  # JSON is YAML
    return "\n".join(["---", *lines, "---", "", _body(run, title, evaluations)])


def require_license(license: str) -> None:
    """Refuse a license that is not an identifier of the Hub.

    Raises:
        ConfigError: another form.
    """
    if not _LICENSE.fullmatch(license):
        raise ConfigError(f"need an identifier such as apache-2.0, got {license!r}.", option="license")


def _results(evaluations: Sequence[Evaluation]) -> list[dict[str, Any]]:
    """The entries of `model-index`: one for each protocol and direction, with the metrics of every length."""
    return [
        {
            "task": {"type": "feature-extraction", "name": f"{DIRECTION_NAMES[direction]} retrieval"},
            "dataset": {
                "type": "multibit",
                "name": f"data {evaluation.fingerprints.get('data', 'unknown')}",
                "config": evaluation.protocol,
            },
            "metrics": [
                {
                    "type": str(metric),
                    "name": f"{metric}, {bits} bits",
                    "value": round(evaluation.mean(metric, direction, bits), 6),
                    "args": {"bits": bits},
                }
                for metric in _metrics(evaluation)
                for bits in evaluation.lengths
                if (metric, direction, bits) in evaluation.values
            ],
        }
        for evaluation in evaluations
        for direction in DIRECTIONS
    ]


def _body(run: Run, title: str, evaluations: Sequence[Evaluation]) -> str:
    recipe, record = run.recipe, run.record
    facts: tuple[tuple[Cell, ...], ...] = (
        ("method", record.method or "not recorded"),
        ("code", run.model.layout.describe(run.lengths)),
        ("training data", f"{record.dataset.items:,} items, {len(run.label_names)} labels"),
        ("selected epoch", str(record.selection)),
        ("model fingerprint", record.model),
        ("data fingerprint", record.data),
    )
    encoders: tuple[tuple[Cell, ...], ...] = tuple(
        (modality, each.source or each.name, each.weights or "unknown", str(each.dimension), each.preprocessing)
        for modality, each in (("image", recipe.image), ("text", recipe.text))
    )
    limit = f"Texts beyond {recipe.text.text_limit} tokens are cut. " if recipe.text.text_limit else ""
    tables = "\n\n".join(_accuracy(each).markdown() for each in evaluations)
    results = f"\n## Results\n\n{tables}\n\n{TIES}\n" if evaluations else ""
    return f"""# {title}

Binary codes of images and texts in one space, for search by Hamming distance, made by multibit.

{Table("Model", ("", ""), facts).markdown()}

{Table("Encoders", ("", "name", "weights", "features", "input"), encoders).markdown()}
{results}
## Usage

{USAGE}
## Limits

Codes can only be compared with codes of the same model, made from features of these encoders; multibit checks both. The
labels of the training data decide what the codes take for similar: evaluate the model on your own data before you rely
on it. {limit}Items at equal distance are in the order of the index.
"""


TIES = """Tie rule: distance, then database row. The tie-averaged rows are the exact mean over all orders of equal
distances. The floors are rankings that learned nothing."""

USAGE = """Search without torch; INDEX is a folder of indices made with this model:

```sh
pip install "multibit[onnx]"
multibit search MODEL "a red flower" --index INDEX
```

Evaluate it, or encode your own features, in Python:

```python
from multibit import Run

run = Run.from_pretrained("MODEL")  # a folder, or user/name on the Hub
```
"""


def _metrics(evaluation: Evaluation) -> Sequence[Metric]:
    """The metrics that the card shows: mAP, or without labels pair recall."""
    return [metric for metric in (METRICS if evaluation.labelled else PAIRS) if metric in evaluation.metrics]


def _accuracy(evaluation: Evaluation) -> Table:
    title = f"mAP@all, {evaluation.protocol}" if evaluation.labelled else "Pair recall, among the query items"
    note = f"In percent, {evaluation.queries:,} queries, {evaluation.database:,} items searched."
    return values_table(title, evaluation, _metrics(evaluation), note)
