"""Two small assessed runs on one split, shared by the tests of the report."""

from __future__ import annotations

import numpy as np
import pytest

from commands import Words
from conftest import plant
from multibit import Config, FeatureStore, Run, Split, measurement
from multibit.evaluation import cost
from multibit.measurement import assess_run, measure

CONFIG = Config(epochs=3, lengths=(8, 16), scales=3, hidden=32, dimension=8, learning_rate=0.01)


def assessed_runs(folder, label_names):
    """Assessments of two runs, "first" and "second", on planted data."""
    np.savez(folder / "ready.npz", **plant(120), label_names=label_names)
    store = FeatureStore.open(folder / "ready.npz")
    split = Split.draw(120, query=20, train=60, validation=10)
    runs = [
        Run.create(folder / name, store, split, CONFIG.override({"seed": seed}))
        for name, seed in (("first", 42), ("second", 7))
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measurement, "load_text_encoder", Words)
        patch.setattr(cost, "TIMED", 3)
        first, second = (measure(run, store) for run in runs)
        return [assess_run(first, store), assess_run(second, store, first)]
