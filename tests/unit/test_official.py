"""The original layouts: small ones that the tests write, and real labels and texts in them."""

import json
import warnings
from collections import Counter

import numpy as np
import pytest

from multibit.data.sources import DataNote
from multibit.data.sources.coco import read_coco
from multibit.data.sources.iapr import read_iapr
from multibit.data.sources.mirflickr import read_mirflickr
from multibit.data.sources.nuswide import read_nuswide
from multibit.errors import DataError


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


def reading(reader, root, **options):
    """The data set, and all that was noted."""
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always", DataNote)
        data = reader(root, **options)
    return data, " ".join(str(each.message) for each in notes)


def by_id(data):
    return {key: (data.texts[row], data.label_names_of(row)) for row, key in enumerate(data.ids)}


# MIRFlickr-25K


def mirflickr(root, tags, labels):
    for number, each in tags.items():
        write(root / f"mirflickr/meta/tags/tags{number}.txt", "".join(f"{tag}\r\n" for tag in each))
        write(root / f"mirflickr/im{number}.jpg", b"")
    for label, numbers in {"animals": [], **labels}.items():
        write(root / f"mirflickr25k_annotations_v080/{label}.txt", "".join(f"{number}\n" for number in numbers))
    write(root / "mirflickr25k_annotations_v080/README.txt", "not numbers\n")
    return root


def test_a_pair_needs_a_label_and_a_frequent_tag(tmp_path):
    tags = {number: ["sky", f"own{number}"] for number in range(1, 21)} | {30: ["rare"], 31: [], 32: ["sky", "sky"]}
    labels = {"sky": [*range(2, 21), 30, 31], "clouds": [2], "sky_r1": [32]}
    data, notes = reading(read_mirflickr, mirflickr(tmp_path, tags, labels))
    assert data.ids == tuple(f"im{number}" for number in range(2, 21))  # 1 and 32 have no label, 30 and 31 no tag
    assert data.label_names == ("clouds", "sky") and data.texts[0] == ("sky own2",)
    assert data.images[0] == tmp_path / "mirflickr/im2.jpg"
    assert all(each in notes for each in ("MIRFlickr-25K", "19 pairs with 2 labels", "20,015 with 24"))


def test_a_tag_of_nineteen_images_is_not_frequent(tmp_path):
    tags = {number: ["sky", "sky"] for number in range(1, 20)}
    with pytest.raises(DataError) as caught:
        read_mirflickr(mirflickr(tmp_path, tags, {"sky": range(1, 20)}))
    assert caught.value.file == tmp_path and "20 images" in caught.value.problem


def test_tags_in_latin1_are_read(tmp_path):
    root = mirflickr(tmp_path, {number: ["sky"] for number in range(1, 21)}, {"sky": range(1, 21)})
    write(root / "mirflickr/meta/tags/tags3.txt", "sky\ncafé\n".encode("latin-1"))
    assert reading(read_mirflickr, root)[0].texts[2] == ("sky café",)


def test_missing_images_are_noted_and_their_folder_can_be_given(tmp_path):
    root = mirflickr(tmp_path, {number: ["sky"] for number in range(1, 21)}, {"sky": range(1, 21)})
    data, notes = reading(read_mirflickr, root, images=tmp_path / "elsewhere")
    assert data.images[4] == tmp_path / "elsewhere/im5.jpg"
    assert "20 of 20" in notes and "im1.jpg" in notes


def test_an_annotation_that_is_not_a_number_is_named(tmp_path):
    root = mirflickr(tmp_path, {1: ["sky"]}, {"sky": [1, "two"]})
    with pytest.raises(DataError) as caught:
        read_mirflickr(root)
    assert (caught.value.file.name, caught.value.row) == ("sky.txt", 2) and "'two'" in caught.value.problem


@pytest.mark.parametrize("reader", [read_mirflickr, read_coco, read_nuswide, read_iapr])
def test_a_folder_without_the_files_is_refused_with_what_is_needed(tmp_path, reader):
    with pytest.raises(DataError) as caught:
        reader(tmp_path)
    assert caught.value.file == tmp_path


@pytest.mark.slow
def test_real_tags_and_labels_give_the_pairs_of_the_paper(shared_data, tmp_path):
    """The 4,985 images outside of the subset are unlabelled and have the missing occurrences of each tag."""
    real = np.load(shared_data / "mirflickr/mirflickr25k_20015.npz")
    lines = (shared_data / "mirflickr/mirflickr25k_20015_tags.txt").read_text(encoding="utf-8").splitlines()
    tags = {int(number): text.split() for number, _, text in (line.partition("\t") for line in lines)}
    inside = Counter(tag for each in tags.values() for tag in set(each))
    missing = dict(zip(real["tag_vocab"].tolist(), real["tag_vocab_count_25000"].tolist(), strict=True))
    outside = sorted(set(range(1, 25_001)) - tags.keys())
    for number in outside:
        tags[number] = []
    for tag, count in missing.items():
        for number in outside[: count - inside[tag]]:
            tags[number].append(tag)
    folder = tmp_path / "mirflickr/meta/tags"
    folder.mkdir(parents=True)
    for number, each in tags.items():
        (folder / f"tags{number}.txt").write_text("\n".join(each), encoding="utf-8")
    for column, label in enumerate(real["label_names"].tolist()):
        numbers = real["image_id"][real["L24"][:, column] == 1]
        write(tmp_path / f"mirflickr25k_annotations_v080/{label}.txt", "\n".join(map(str, numbers)))
    data, notes = reading(read_mirflickr, tmp_path)
    assert "the paper has" not in notes and "20,015 of 20,015" in notes
    assert data.ids == tuple(f"im{number}" for number in real["image_id"])
    assert data.label_names == tuple(real["label_names"]) and (data.labels == real["L24"]).all()
    counts = Counter(tag for each in tags.values() for tag in set(each))
    assert sum(count >= 20 for count in counts.values()) == 1_386
    row = data.ids.index(f"im{int(lines[777].partition(chr(9))[0])}")
    assert data.texts[row] == (lines[777].partition("\t")[2],)


# MS-COCO


def coco(root, parts, names=("cat", "dog", "ant"), captions=None):
    """Parts: name -> {image id: list of label columns}."""
    for part, images in parts.items():
        instances = {
            "images": [{"id": number, "file_name": f"{number:012d}.jpg"} for number in reversed(images)],
            "categories": [{"id": i * 10, "name": name} for i, name in enumerate(names)],
            "annotations": [
                {"image_id": number, "category_id": column * 10} for number, each in images.items() for column in each
            ],
        }
        texts = captions or {number: [f"caption {number} \n", "another"] for number in images}
        written = [(number, text) for number in images for text in texts[number]]
        told = {
            "annotations": [{"image_id": number, "id": i, "caption": text} for i, (number, text) in enumerate(written)][
                ::-1
            ]
        }
        write(root / f"annotations/instances_{part}.json", json.dumps(instances))
        write(root / f"annotations/captions_{part}.json", json.dumps(told))
    return root


def test_coco_takes_images_with_an_object_training_first(tmp_path):
    root = coco(tmp_path, {"train2017": {9: [0], 5: [], 7: [1, 1, 0]}, "val2017": {3: [2]}})
    data, notes = reading(read_coco, root)
    assert data.ids == ("7", "9", "3") and data.label_names == ("ant", "cat", "dog")
    assert by_id(data)["7"] == (("caption 7", "another"), ["cat", "dog"])
    assert data.images[2] == root / "val2017/000000000003.jpg"
    assert "3 pairs with 3 labels; the paper has 122,218 with 80." in notes


def test_coco_of_two_years_takes_the_newer_with_a_note(tmp_path):
    root = coco(tmp_path, {"train2014": {1: [0]}, "val2014": {2: [0]}, "train2017": {3: [0]}, "val2017": {4: [0]}})
    data, notes = reading(read_coco, root)
    assert data.ids == ("3", "4") and "2014 and 2017; 2017" in notes


def test_coco_without_the_training_part_is_noted(tmp_path):
    assert "no instances_train2017.json" in reading(read_coco, coco(tmp_path, {"val2017": {1: [0]}}))[1]


@pytest.mark.parametrize(
    ("name", "content", "file", "field", "found"),
    [
        ("instances", "{", "instances_val2017.json", "", "JSON"),
        ("instances", "[]", "instances_val2017.json", "images", "images, annotations, categories"),
        ("captions", '{"images": []}', "captions_val2017.json", "annotations", "annotations"),
        ("captions", '{"annotations": [{"id": 1}]}', "annotations", "", "val2017"),
        ("captions", None, "captions_val2017.json", "", ""),
        (
            "instances",
            '{"images": [], "categories": [], "annotations": [{"image_id": 1, "category_id": 5}]}',
            "annotations",
            "",
            "lack 5",
        ),
    ],
)
def test_invalid_coco_files_are_named(tmp_path, name, content, file, field, found):
    path = coco(tmp_path, {"val2017": {1: [0]}}) / f"annotations/{name}_val2017.json"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(DataError) as caught:
        reading(read_coco, tmp_path)
    assert (caught.value.file.name, caught.value.field) == (file, field) and found in caught.value.problem


def test_real_captions_and_labels_are_joined(shared_data, tmp_path):
    lines = (shared_data / "coco/coco_val2017_pairs.jsonl").read_text(encoding="utf-8").splitlines()
    pairs = [json.loads(line) for line in lines]
    names = np.load(shared_data / "coco/coco2014_labels_122218.npz")["label_names"].tolist()
    captions = {pair["id"]: pair["captions"] for pair in pairs}
    coco(tmp_path, {"val2017": {pair["id"]: pair["labels"] for pair in pairs}}, names, captions)
    data, notes = reading(read_coco, tmp_path)
    assert "4,952 pairs with 80 labels; the paper has 122,218 with 80" in notes
    found = by_id(data)
    for pair in pairs:
        texts, labels = found[str(pair["id"])]
        assert list(texts) == [" ".join(text.split()) for text in pair["captions"]]
        assert labels == sorted(names[column] for column in pair["labels"])


# NUS-WIDE


def nuswide(root, rows, concepts=25):
    """Rows: concept numbers of each image."""
    for concept in range(concepts):
        column = "".join(f"{int(concept in row)} \n" for row in rows)
        write(root / f"Groundtruth/AllLabels/Labels_c{concept:02d}.txt", column)
    write(root / "ImageList/Imagelist.txt", "".join(f"actor\\{i:04d}_{900 + i}.jpg\r\n" for i in range(len(rows))))
    tags = (f"{900 + i}      tag{i} blue sky \r\n".encode() for i in range(len(rows)))
    write(root / "NUS_WID_Tags/All_Tags.txt", b"".join(tags))
    return root


def test_nuswide_takes_the_most_frequent_concepts_and_their_images(tmp_path):
    rows = [[c for c in range(25) if i % (c + 1) == 0] for i in range(1, 60)] + [[24]]
    data, notes = reading(read_nuswide, nuswide(tmp_path, rows))
    counts = [sum(c in row for row in rows) for c in range(25)]
    frequent = sorted(sorted(range(25), key=lambda c: (-counts[c], c))[:21])
    kept = [i for i, row in enumerate(rows) if set(row) & set(frequent)]
    assert data.label_names == tuple(f"c{c:02d}" for c in frequent)
    assert data.ids == tuple(f"actor/{i:04d}_{900 + i}" for i in kept)
    assert data.texts[0] == ("tag0 blue sky",)
    assert data.labels.tolist() == [[int(c in rows[i]) for c in frequent] for i in kept]
    assert data.images[0] == tmp_path / "actor/0000_900.jpg"
    assert "the paper has 195,834 with 21" in notes


def test_a_line_of_tags_without_the_number_is_kept_unchanged(tmp_path):
    root = nuswide(tmp_path, [[0]] * 2)
    write(root / "NUS_WID_Tags/All_Tags.txt", "blue sky\n\n")
    assert reading(read_nuswide, root)[0].texts == (("blue sky",), ("",))


@pytest.mark.parametrize(
    ("name", "content", "row", "found"),
    [
        ("NUS_WID_Tags/All_Tags.txt", "901 a\n", None, "1 lines"),
        ("Groundtruth/AllLabels/Labels_c03.txt", "1\n0\n1\n", None, "2 lines of 0 or 1, as in the image list; found 3"),
        ("Groundtruth/AllLabels/Labels_c03.txt", "1\n2\n", None, "2 lines of 0 or 1"),
        ("ImageList/Imagelist.txt", "a.jpg\n\nb.jpg\n", 2, ""),
    ],
)
def test_nuswide_files_that_do_not_match_are_named(tmp_path, name, content, row, found):
    write(nuswide(tmp_path, [[0], [1]]) / name, content)
    with pytest.raises(DataError) as caught:
        read_nuswide(tmp_path)
    assert (caught.value.file, caught.value.row) == (tmp_path / name, row) and found in caught.value.problem


# IAPR TC-12


def iapr(root, items, words=("sky", "tree", "dog")):
    """Items: part -> {name: keyword columns}."""
    write(root / "lists/iaprtc12_dictionary.txt", "\n".join(words) + "\n")
    for part, each in items.items():
        write(root / f"lists/iaprtc12_{part}_list.txt", "\n".join(each) + "\n")
        rows = [[len(words), *(int(i in columns) for i in range(len(words)))] for columns in each.values()]
        write(root / f"lists/iaprtc12_{part}_annot.hvecs", np.array(rows, "<i2").tobytes())
        for name in each:
            xml = f"<DOC>\n<TITLE>t</TITLE>\n<DESCRIPTION>a café &amp; {name};\n a tree;</DESCRIPTION>\n</DOC>"
            write(root / f"iaprtc12/annotations_complete_eng/{name}.eng", xml.encode("latin-1"))
    return root


def test_iapr_joins_descriptions_and_keywords(tmp_path):
    root = iapr(tmp_path, {"train": {"00/116": [0, 2], "00/25": [1]}, "test": {"01/3": []}})
    data, notes = reading(read_iapr, root)
    assert data.ids == ("00/25", "00/116", "01/3") and data.label_names == ("dog", "sky", "tree")
    assert by_id(data)["00/116"] == (("a café & 00/116; a tree;",), ["dog", "sky"])
    assert data.images[0] == tmp_path / "iaprtc12/images/00/25.jpg"
    assert "the paper has 19,627 with 291" in notes


def test_iapr_images_without_a_description_are_noted(tmp_path):
    root = iapr(tmp_path, {"train": {"00/25": [1], "00/26": [1]}, "test": {"01/3": [0]}})
    (root / "iaprtc12/annotations_complete_eng/00/26.eng").unlink()
    data, notes = reading(read_iapr, root)
    assert data.texts[1] == ("",) and "1 image has" in notes and "00/26" in notes


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda raw: raw[:-2], "truncated"),
        (lambda raw: b"", "truncated"),
        (lambda raw: raw[:-8], "1 rows of 3 keywords; the list has 2 images"),
        (lambda raw: np.array([2, 1, 0, 2, 0, 1], "<i2").tobytes(), "2 rows of 2 keywords"),
    ],
)
def test_iapr_keywords_that_do_not_match_are_refused(tmp_path, change, found):
    path = iapr(tmp_path, {"train": {"00/25": [1], "00/26": [1]}, "test": {}}) / "lists/iaprtc12_train_annot.hvecs"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError) as caught:
        read_iapr(tmp_path)
    assert caught.value.file == path and found in caught.value.problem
