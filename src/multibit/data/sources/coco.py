"""MS-COCO in its original layout: instances and captions in JSON, 2014 or 2017."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from multibit.data.dataset import Item, PairedDataset
from multibit.data.notes import note, note_left_out
from multibit.data.sources.common import compare, load_json, locate
from multibit.data.values import id_of, texts_of
from multibit.errors import DataError


def read_coco(source: Path | str, *, images: Path | str | None = None) -> PairedDataset:
    """Read the 122,218 images that have at least one object, with their captions and 80 labels.

    Training images come first, then validation, each in ascending order of ids. An id is the image's number, the same
    in both editions.

    Args:
        source: folder with `annotations/instances_train2017.json`, `captions_train2017.json`, the same of val2017, and
            `train2017/`, `val2017/`; or all of 2014. If it has both editions, the newer one is read.
        images: folder that contains `train2017/` and `val2017/`; `source` when None.

    Raises:
        DataError: a file is missing, or its content does not match its name.
    """
    root = Path(source)
    folder = locate(root, "instances_*20*.json", "annotations").parent
    years = sorted({path.stem[-4:] for path in folder.glob("instances_*20*.json")})
    if len(years) > 1:
        note(f"{folder}: has the editions {' and '.join(years)}; {years[-1]} is read.")
    items = []
    for part in ("train", "val"):
        name = part + years[-1]
        if (folder / f"instances_{name}.json").exists():
            items += _items(folder, name, (folder.parent if images is None else Path(images)) / name)
        else:
            note(f"{folder}: no instances_{name}.json, so {part} images are left out.")
    return compare(PairedDataset.of_items(items), "MS-COCO", pairs=122_218, labels=80)


def _items(folder: Path, name: str, images: Path) -> list[Item]:
    """Items of one part."""
    instances = _load(folder / f"instances_{name}.json", ("images", "annotations", "categories"))
    written = _load(folder / f"captions_{name}.json", ("annotations",))
    try:
        names = {category["id"]: id_of(category["name"]) for category in instances["categories"]}
        labels, captions = defaultdict(set), defaultdict(list)
        for annotation in instances["annotations"]:
            labels[annotation["image_id"]].add(names[annotation["category_id"]])
        for annotation in sorted(written["annotations"], key=lambda annotation: annotation["id"]):
            (caption,) = texts_of(annotation["caption"])
            captions[annotation["image_id"]].append(" ".join(caption.split()))
        files = {image["id"]: image["file_name"] for image in instances["images"]}
        without = [str(number) for number in files if number not in labels]
        note_left_out(folder, f"images of {name} without an object", without)
        return [(id_of(number), images / files[number], captions[number], labels[number]) for number in sorted(labels)]
    except DataError as error:
        raise error.within(folder / f"captions_{name}.json") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"instances and captions of {name} do not match or lack {error}.", file=folder) from None


def _load(path: Path, keys: tuple[str, ...]) -> dict[str, Any]:
    content = load_json(path)
    if missing := [key for key in keys if key not in content]:
        raise DataError(f"no {', '.join(missing)}; this is not the file of that name.", file=path, field=missing[0])
    return content
