"""Models for sentence-transformers: their packed embeddings are our codes."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from commands import done
from multibit import (
    Codes,
    FeatureStore,
    Run,
    Split,
    extract_features,
    load_image_encoder,
    load_text_encoder,
)
from multibit.data.sample import load_sample
from multibit.errors import ConfigError, DataError
from multibit.hashing.layers import scale_rows
from multibit.integrations import sentence_transformers as export
from multibit.integrations.sentence_transformers import export_sentences

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow

TEXTS = ["a red apple on a wooden table", "", "日本語のテキスト 👁", "x" * 3000, "frog. green, pond", "a b " * 300]


@pytest.fixture(scope="module", autouse=True)
def library():
    """Not imported by every process that collects the tests: it is slow."""
    return pytest.importorskip("sentence_transformers")


def opened(folder):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu", local_files_only=True)


def test_packed_embeddings_of_texts_are_the_codes(packaged_run, tmp_path):
    done("export", packaged_run, "--to", "sentence-transformers", "--out", tmp_path / "model")
    run, encoder = Run.load(packaged_run), load_text_encoder("all-minilm-l6-v2", runtime="torch")
    texts = [*TEXTS, *(text for each in load_sample().texts[:40] for text in each)]
    relaxed = run.model.encode(encoder.encode(texts), "text")
    model = opened(tmp_path / "model")
    assert model.similarity_fn_name == "dot"
    assert model.encode(texts) == pytest.approx(relaxed, abs=2e-5)
    for bits in (8, 16):
        packed = model.encode(texts, precision="ubinary", truncate_dim=bits)
        assert np.array_equal(packed, Codes.binarize(relaxed).prefix(bits).to_bytes())
    modules = json.loads((tmp_path / "model" / "modules.json").read_text())
    names = ["Transformer", "Pooling", "Normalize", "Dense", "Dense", "Dense"]
    assert [each["type"] for each in modules] == [f"sentence_transformers.models.{name}" for name in names]
    assert not [path for path in (tmp_path / "model").rglob("*") if path.suffix in (".bin", ".py", ".pt")]


@pytest.fixture(scope="module", params=["clip", "siglip"])
def joint_run(request, tmp_path_factory):
    """A run on features of a tiny model with random weights; texts are read inside a prompt."""
    pytest.importorskip("sentencepiece")
    from test_joint import write_clip, write_siglip

    folder = tmp_path_factory.mktemp("joint")
    model = (write_clip if request.param == "clip" else write_siglip)(folder / f"tiny-{request.param}")
    data = load_sample().take(np.arange(0, 400, 10))
    encoders = load_image_encoder(str(model)), load_text_encoder(str(model), prompt="a photo of {}")
    store = extract_features(data, *encoders, folder / "features")
    split = Split.draw(len(store), query=8, train=24, validation=4, seed=0)
    return Run.create(folder / "run", store, split, lengths=(8, 16), epochs=2, hidden=16, dimension=8)


def test_both_sides_of_a_joint_model_are_exported(joint_run, tmp_path):
    store = FeatureStore.open(joint_run.folder.parent / "features")
    texts = [text for texts in store.dataset.texts for text in texts]
    export_sentences(joint_run, tmp_path / "text", "text")
    expected = Codes.binarize(joint_run.model.encode(store.text, "text"))
    packed = opened(tmp_path / "text").encode(texts, precision="ubinary", truncate_dim=8)
    assert np.array_equal(packed, expected.prefix(8).to_bytes())
    export_sentences(joint_run, tmp_path / "image", "image")
    images = [Image.open(path).convert("RGB") for path in store.dataset.images]
    model = opened(tmp_path / "image")
    bits = np.unpackbits(model.encode(images, precision="ubinary"), axis=1)
    differing = bits != Codes.binarize(joint_run.model.encode(store.image, "image")).to_bits()
    assert differing.mean() < 0.03  # the library scales images in its own way
    with pytest.raises(ValueError):
        model.encode(["a text, which this side cannot read"])


def test_what_the_library_cannot_do_is_refused(packaged_run, finished, joint_run, tmp_path, monkeypatch):
    run = Run.load(packaged_run)
    with pytest.raises(ConfigError) as caught:
        export_sentences(run, tmp_path / "model", "image")
    assert caught.value.option == "modality"
    with pytest.raises(DataError):
        export_sentences(finished, tmp_path / "model")  # ready-made features
    with pytest.raises(DataError):
        export_sentences(run, tmp_path)
    with pytest.raises(ConfigError):
        export_sentences(run, tmp_path / "model", "sound")
    with pytest.raises(ConfigError):
        export._prefix("a photo of {}, taken in summer")
    assert not (tmp_path / "model").exists()


def test_a_code_for_each_length_is_refused(store, split, tmp_path):
    small = {"lengths": (6, 16), "scales": 2, "hidden": 8, "dimension": 8, "epochs": 1, "batch_size": 16}
    run = Run.create(tmp_path / "run", store, split, method="separate", **small)
    with pytest.raises(ConfigError) as caught:
        export_sentences(run, tmp_path / "model")
    assert caught.value.option == "run"


def test_layers_of_every_kind_are_those_of_the_network(library):
    from torch import nn

    from multibit.hashing.layers import Columns, UnitRows

    torch.manual_seed(0)
    normal = nn.BatchNorm1d(7)
    normal(torch.randn(50, 7) * 3 + 1)  # running mean and variance
    order = torch.randperm(5)
    stack = [nn.Linear(6, 7), normal, nn.ReLU(), nn.Dropout(), UnitRows(), nn.Linear(7, 5), nn.Tanh(), Columns(order)]
    network = nn.Sequential(*stack).eval()
    rows = torch.randn(20, 6)
    head = export._head(library.sentence_transformer.modules, export._layers(stack, 6))
    features = {"sentence_embedding": nn.functional.normalize(rows)}
    for module in head:
        features = module(features)
    assert features["sentence_embedding"].detach().numpy() == pytest.approx(
        network(scale_rows(rows)).detach().numpy(), abs=1e-6
    )
