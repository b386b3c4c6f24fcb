"""Data from raw files to a trained run on the command line: import, label, check, splits."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
import scipy.io
from PIL import Image, ImageColor
from typer.main import get_command

from commands import TINY, assert_names, cli, done, refused
from conftest import plant
from multibit import FeatureStore, Run
from multibit.cli import Kind, app
from multibit.cli.app import flags_of
from multibit.data.manifest import read_manifest
from multibit.data.sources import READERS, read
from multibit.errors import ConfigError
from multibit.features import packaged as encoders
from multibit.features.recipe import EncoderRecipe


class Colours:
    """A joint encoder: the mean colour of an image, the colour that a text names."""

    batch_size = 2
    recipe = EncoderRecipe("colours", "", 3, "mean")

    def prepare(self, image):
        return np.asarray(image)

    def encode(self, items):
        values = [np.array(ImageColor.getrgb(i.split()[-1])) if isinstance(i, str) else i.mean((0, 1)) for i in items]
        return np.array(values, np.float32)


@pytest.fixture
def pairs(tmp_path):
    """A folder of pairs: three images, two of them equal."""
    folder = tmp_path / "pairs"
    folder.mkdir()
    for name, color, text in (("a", "red", "a red dog"), ("b", "red", "the red car"), ("c", "blue", "a blue dog")):
        Image.new("RGB", (16, 16), color).save(folder / f"{name}.png")
        (folder / f"{name}.txt").write_text(text)
    return folder


@pytest.fixture
def parts(tmp_path):
    """Features with a split of their own, in one .mat file."""
    data = plant(60)
    rows = {"tr": slice(0, 40), "te": slice(40, 60)}
    letters = {"I": "image", "T": "text", "L": "labels"}
    path = tmp_path / "mir.mat"
    scipy.io.savemat(
        path, {f"{letter}_{part}": data[name][rows[part]] for letter, name in letters.items() for part in rows}
    )
    return path


def test_every_kind_of_source_is_an_option():
    assert {kind.value for kind in Kind} == set(READERS)


def test_a_folder_becomes_a_manifest(tmp_path, pairs):
    (pairs / "d.heic").touch()
    printed = done("import", "pairs", pairs, "--out", tmp_path / "items.csv")
    assert printed.startswith("Note: ") and str(pairs) in printed and ".heic (1)" in printed
    assert "items.csv: 3 items, 0 labels, data " in printed
    data = read_manifest(tmp_path / "items.csv")
    assert data.ids == ("a", "b", "c") and data.images[0] == pairs / "a.png"


def test_a_mat_trio_is_written_and_read_with_other_names(tmp_path):
    (tmp_path / "items.jsonl").write_text('{"id": "x", "image": "/old/x.jpg", "title": "t", "labels": ["dog"]}\n')
    done("import", "manifest", tmp_path / "items.jsonl", "--map", "text=title", "--out", tmp_path / "trio")
    label = tmp_path / "trio" / "label.mat"
    scipy.io.savemat(label, {"mine": scipy.io.loadmat(label)["category"]})
    assert_names(refused("import", "mat", tmp_path / "trio", "--out", tmp_path / "b.csv"), "label.mat", "--map", "mine")
    done("import", "mat", tmp_path / "trio", "--map", "labels=mine", "--root", "/old=/new", "--out", tmp_path / "b.csv")
    data = read_manifest(tmp_path / "b.csv")
    assert str(data.images[0]) == "/new/x.jpg" and data.label_names == ("label 0",)


def test_an_option_of_another_kind_is_refused(tmp_path, pairs):
    said = refused("import", "pairs", pairs, "--root", "a=b", "--out", tmp_path / "items.csv")
    assert_names(said, "pairs", "--root")


@pytest.mark.parametrize("kind", READERS)
def test_the_arguments_of_every_kind_are_options_of_import(tmp_path, kind):
    with pytest.raises(ConfigError) as caught:
        read(kind, tmp_path, nothing="x")
    flag_of = flags_of(get_command(app).commands["import"])
    named = set(re.findall(r"`(\w+)`", caught.value.hint)) - {"nothing"}
    assert [name for name in named if flag_of(name) is None] == []


def test_cells_of_a_manifest_are_split_at_the_given_separator(tmp_path):
    (tmp_path / "items.csv").write_text("id,image,text,labels\na,,x,cat;dog\n")
    done("import", "manifest", tmp_path / "items.csv", "--separator", ";", "--out", tmp_path / "items.jsonl")
    assert read_manifest(tmp_path / "items.jsonl").label_names == ("cat", "dog")


def test_features_become_a_feature_file(tmp_path, parts):
    printed = done("import", "mat-features", parts, "--out", tmp_path / "f.npz")
    assert "image (60, 24), text (60, 16), labels (60, 8); own split: 40 train, 20 query" in printed
    assert len(FeatureStore.open(tmp_path / "f.npz")) == 60
    assert_names(refused("import", "mat-features", parts, "--out", tmp_path / "f.csv"), tmp_path / "f.csv", ".npz")


def test_training_takes_the_split_that_came_with_the_features(tmp_path, parts):
    done("import", "mat-features", parts, "--out", tmp_path / "f.npz")
    printed = done("train", tmp_path / "f.npz", "--out", tmp_path / "run", *TINY)
    assert "Split given: 36 train, 4 validation, 20 query, 40 database\n" in printed
    split = Run.load(tmp_path / "run").split
    assert split.query.tolist() == list(range(40, 60)) and len(split.train) == 36 and len(split.validation) == 4
    done("train", tmp_path / "f.npz", "--out", tmp_path / "other", "--split", tmp_path / "run", "--seed=7", *TINY)
    done("evaluate", tmp_path / "run", "--against", tmp_path / "other", "--no-report")


def test_training_takes_a_seed_of_the_field(tmp_path, parts):
    done("import", "mat-features", parts, "--out", tmp_path / "f.npz")
    done("train", tmp_path / "f.npz", "--out", tmp_path / "run", "--split=1814", *TINY)
    run = Run.load(tmp_path / "run")
    assert run.split.query.tolist() == np.random.RandomState(1814).permutation(60)[:15].tolist()
    assert run.split.seed == 1814 and run.config.seed == 42
    said = refused("train", tmp_path / "f.npz", "--out", tmp_path / "x", "--split=usual")
    assert_names(said, "usual", ".npz, .mat, .json")


def test_a_check_is_printed_and_written(tmp_path, pairs):
    done("import", "pairs", pairs, "--out", tmp_path / "items.jsonl")
    (pairs / "c.png").write_bytes(b"corrupt")
    printed = done(
        "check", tmp_path / "items.jsonl", "--html", tmp_path / "page.html", "--groups", tmp_path / "groups.csv"
    )
    assert f"cannot be read: c: {pairs / 'c.png'}: " in printed
    assert "items without a label" in printed
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "items without a label" in page
    assert page.partition('id="look-alikes"')[2].count("data:image/jpeg;base64,") == 2  # a and b side by side
    assert (tmp_path / "groups.csv").read_text() == "id,group\na,0\nb,0\n"


def test_features_are_checked_and_options_without_effect_refused(tmp_path):
    data = plant(40)
    data["image"][3, 2], data["text"][5] = np.nan, 0
    np.savez(tmp_path / "f.npz", **data)
    printed = done("check", tmp_path / "f.npz")
    assert "image features" in printed and "finite" in printed and "text features" in printed
    said = refused("train", tmp_path / "f.npz", "--out", tmp_path / "run")
    assert_names(said, tmp_path / "f.npz", "image features", "[3, 2]", "nan")
    assert_names(refused("check", tmp_path / "f.npz", "--groups", tmp_path / "g.csv"), "--groups", tmp_path / "f.npz")
    assert not (tmp_path / "g.csv").exists()
    for option, value in (("--images", tmp_path), ("--map", "id=key"), ("--separator", ";")):
        assert_names(refused("check", tmp_path / "f.npz", option, value), option, tmp_path / "f.npz")


def test_features_are_checked_with_their_own_split(tmp_path, parts):
    done("import", "mat-features", parts, "--out", tmp_path / "f.npz")
    printed = done("check", tmp_path / "f.npz")
    assert [line.split()[:2] for line in printed.splitlines() if line.split()[:1] == ["train"]] == [["train", "36"]]
    assert_names(refused("check", tmp_path / "f.npz", "--split=x"), "x", ".npz, .mat, .json")


def test_a_matlab_file_is_described_with_the_command_that_reads_it(tmp_path, parts):
    described = done("info", parts)
    assert "I_tr" in described and f"multibit import mat-features {parts}" in described
    scipy.io.savemat(tmp_path / "caption.mat", {"category": np.eye(3)})
    assert f"multibit import mat {tmp_path} " in done("info", tmp_path / "caption.mat")
    codes = {key: np.array([[1, -1], [1, 1]]) for key in ("q_img", "q_txt", "r_img", "r_txt")}
    scipy.io.savemat(tmp_path / "codes.mat", {**codes, "q_l": np.eye(2), "r_l": np.eye(2)})
    described = done("info", tmp_path / "codes.mat")
    assert "2 queries" in described and "2 bits" in described


def test_describing_data_imports_no_torch(tmp_path):
    (tmp_path / "items.csv").write_text("id,text\n1,a cat\n")
    program = "import sys; from multibit.cli import main; sys.argv[1:] = ['info', 'items.csv']\ntry: main()\n"
    program += "except SystemExit: pass\nprint('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert out.stdout.splitlines()[-1] == "False" and "items:" in out.stdout


def test_data_without_labels_are_checked_labelled_and_imported(tmp_path):
    (tmp_path / "items.tsv").write_text(
        "id\ttext\n" + "".join(f"{i}\ta {'cat' if i % 2 else 'dog'}\n" for i in range(8))
    )
    assert "items without a label" in done("check", tmp_path / "items.tsv")
    assert "0 labels" in done("import", "manifest", tmp_path / "items.tsv", "--out", tmp_path / "items.jsonl")
    assert "2 labels" in done("label", tmp_path / "items.tsv", "--out", tmp_path / "new.csv")


def test_an_npz_dataset_is_described(tmp_path, pairs):
    done("import", "pairs", pairs, "--out", tmp_path / "items.npz")
    assert "dataset" in done("info", tmp_path / "items.npz")
    assert "labels of" not in done("check", tmp_path / "items.npz")


def test_labels_are_created_from_texts(tmp_path, pairs):
    done("import", "pairs", pairs, "--out", tmp_path / "items.jsonl")
    printed = done("label", tmp_path / "items.jsonl", "--max-share=1", "--out", tmp_path / "labelled.jsonl")
    assert printed.endswith("labelled.jsonl: 3 items, 1 label, 1 item without one\n")
    data = read_manifest(tmp_path / "labelled.jsonl")
    assert data.label_names == ("dog",) and data.images == read_manifest(tmp_path / "items.jsonl").images
    (tmp_path / "names.txt").write_text("car\nblue dog\n")
    done("label", tmp_path / "items.jsonl", "--vocabulary", tmp_path / "names.txt", "--out", tmp_path / "l.csv")
    assert read_manifest(tmp_path / "l.csv").label_names == ("blue dog", "car")


def test_labels_are_created_from_images_by_a_joint_encoder(tmp_path, pairs, monkeypatch):
    monkeypatch.setitem(encoders.IMAGE_ENCODERS, "colours", lambda _: Colours())
    monkeypatch.setitem(encoders.TEXT_ENCODERS, "colours", lambda _: Colours())
    done("import", "pairs", pairs, "--out", tmp_path / "items.jsonl")
    (tmp_path / "names.txt").write_text("red\nblue\n")
    both = ["--image-encoder=colours", "--text-encoder=colours"]
    out = tmp_path / "l.csv"
    done("label", tmp_path / "items.jsonl", "--vocabulary", tmp_path / "names.txt", *both, "--out", out)
    assert [read_manifest(out).label_names_of(row) for row in range(3)] == [["red"], ["red"], ["blue"]]
    said = refused("label", tmp_path / "items.jsonl", *both, "--out", out)
    assert_names(said, "--image-encoder", "--text-encoder", "--vocabulary")
    refused("label", tmp_path / "items.jsonl", "--min-share=0.5", "--out", out)


@pytest.mark.parametrize("kind", sorted(READERS))
@pytest.mark.parametrize("state", ["absent", "empty folder", "empty file", "junk", "folder of junk"])
def test_a_bad_source_of_any_kind_is_named(tmp_path, kind, state):
    source = tmp_path / "source.npz" if kind == "npz" else tmp_path / "source.csv"
    if state == "empty folder":
        source.mkdir()
    elif state == "folder of junk":
        for name in ("index.mat", "0.tar", "AllLabels/Labels_a.txt", "Imagelist.txt", "All_Tags.txt", "animals.txt",
                     "meta/tags/tags1.txt", "annotations/instances_val2017.json", "annotations_complete_eng/a.eng",
                     "iaprtc12_dictionary.txt", "iaprtc12_train_list.txt", "iaprtc12_train_annot.hvecs", "state.json",
                     "dataset_info.json"):  # fmt: skip
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes(b"\xff\x00junk {[\n\n,")
    elif state != "absent":
        source.write_bytes(b"" if state == "empty file" else b"\xff\x00junk {[\n\n,")
    assert_names(refused("import", kind, source, "--out", tmp_path / "out.npz"), source)
    assert not (tmp_path / "out.npz").exists()


@pytest.mark.parametrize("verb", [("import", "pairs"), ("label",)])
def test_an_output_that_cannot_be_written_is_refused_before_the_work(tmp_path, verb):
    (tmp_path / "there").mkdir()
    said = refused(*verb, tmp_path / "absent", "--out", tmp_path / "x.xlsx")
    assert_names(said, tmp_path / "x.xlsx", ".csv, .jsonl")
    assert_names(refused(*verb, tmp_path / "absent", "--out", tmp_path / "there"), tmp_path / "there", "exists")


@pytest.mark.parametrize("verb", [["import", "manifest"], ["label"]], ids=" ".join)
def test_a_source_is_never_replaced(verb, tmp_path):
    source = tmp_path / "m.jsonl"
    source.write_text('{"id": "a", "text": "a red dog", "labels": ["dog"], "photographer": "x"}\n')
    assert_names(refused(*verb, source, "--out", source), source)
    assert "photographer" in source.read_text()


@pytest.mark.parametrize(
    ("options", "option"),
    [
        (["--out", "a.csv", "--out", "b.csv"], "--out"),
        (["--out", "a.csv", "--separator", ",", "--separator=;"], "--separator"),
        (["--out", "a.csv", "--map", "text=a", "--map", "text=b"], "--map"),
    ],
)
def test_an_option_never_overwrites_itself(tmp_path, pairs, options, option, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_names(refused("import", "manifest", pairs, *options), option, "twice")
    assert not (tmp_path / "a.csv").exists() and not (tmp_path / "b.csv").exists()


def test_what_was_left_out_is_told_even_when_an_error_follows(tmp_path, pairs):
    (pairs / "alone.png").touch()
    (pairs / "a.txt").write_bytes("日本語".encode("shift-jis"))
    result = cli("import", "pairs", pairs, "--out", tmp_path / "items.csv")
    assert result.code == 1 and "alone.png" in result.out and "--encoding" in result.err
    done("import", "pairs", pairs, "--out", tmp_path / "items.csv", "--encoding", "shift-jis")
    assert read_manifest(tmp_path / "items.csv").texts[0] == ("日本語",)


def test_control_characters_and_markup_of_the_data_are_only_text(tmp_path):
    folder = tmp_path / "r[/x]"
    folder.mkdir(parents=True)
    row = {"image": "no[/y].png", "text": "a", "labels": ["\x9bX"]}
    rows = [json.dumps({"id": f"{number}\x1b[2J", **row}) for number in range(6)]
    (folder / "m.jsonl").write_text("\n".join(rows))
    result = cli("check", folder / "m.jsonl")
    assert result.code == 0 and not set("\x1b\x9b") & set(result.out) and "\\u001b[2J" in result.out
    assert_names(refused("info", folder / "gone\x1b[2J"), "\\u001b[2J", "r[/x]")


def test_plurals_are_an_option_of_a_vocabulary(tmp_path, pairs):
    (pairs / "a.txt").write_text("two dogs")
    done("import", "pairs", pairs, "--out", tmp_path / "items.csv")
    (tmp_path / "names.txt").write_bytes("dog\r\ncar\r\n".encode("utf-16"))
    options = ["label", tmp_path / "items.csv", "--out", tmp_path / "new.csv"]
    done(*options, "--vocabulary", tmp_path / "names.txt")
    assert read_manifest(tmp_path / "new.csv").label_names_of(0) == []
    done(*options, "--vocabulary", tmp_path / "names.txt", "--plurals")
    assert read_manifest(tmp_path / "new.csv").label_names_of(0) == ["dog"]
    assert_names(refused(*options, "--plurals"), "--plurals")
