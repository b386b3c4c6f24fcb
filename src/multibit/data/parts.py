"""Data in an object store, in parts that are fetched one at a time: WebDataset shards, or manifests and their images.

A part is a shard, or some rows of a manifest. Whoever works on a part fetches it to a folder of its own; so the data
may be larger than any disk, and many machines can share the work.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from multibit.data.dataset import PairedDataset
from multibit.data.manifest import read_manifest
from multibit.data.objects import fetch, is_url, joined, listed, parent_of, place_of, sizes_of
from multibit.data.rows import READ
from multibit.data.sources.webdataset import SHARDS, read_webdataset
from multibit.errors import DataError

ROWS = 2_000  # of a manifest in a part
TRANSFERS = 8  # images that are fetched at the same time


@dataclass(frozen=True)
class Part:
    """A shard, or rows `start` to `stop` of a manifest; `size` is that of the object in bytes."""

    url: str
    size: int
    start: int = 0
    stop: int = 0


@dataclass(frozen=True)
class Parts:
    r"""The parts of some data, in order.

    Attributes:
        parts: of all objects. images: folder that image paths are relative to; that of each manifest when None.
        columns, separator: as for `read_manifest`. download: fetch images of other stores than that of their manifest,
            which is asked for without credentials.

    Example:
        >>> written = Path("items.csv").write_text("id,image,text\n1,a.png,a cat\n2,b.png,a dog\n")
        >>> parts = Parts.of(f"file://{Path.cwd()}/items.csv", Path("local"))
        >>> [part.stop - part.start for part in parts.parts]
        [2]
    """

    parts: tuple[Part, ...]
    images: str | None = None
    columns: Mapping[str, str] | None = None
    separator: str = "|"
    download: bool = False

    @classmethod
    def of(
        cls, source: str, folder: Path, *, images: str | None = None, columns: Mapping[str, str] | None = None,
        separator: str = "|", download: bool = False,
    ) -> Parts:  # fmt: skip
        """Find the parts.

        Args:
            source: URL of a manifest or shard, of a folder of them, or with *. folder: for manifests, which are read
                to count their rows. images, columns, separator, download: see the class.

        Raises:
            DataError: nothing there, an unreadable manifest, or `images` with shards, which have their own.
        """
        urls = listed(source, (*READ, *SHARDS))
        found = cls((), images, columns, separator, download)
        parts: list[Part] = []
        for url, size in zip(urls, sizes_of(urls), strict=True):
            if url.lower().endswith(SHARDS):
                if images is not None:
                    raise DataError("has no effect: the shards contain the images.", option="images")
                parts.append(Part(url, size))
                continue
            rows = len(found._read(url, folder, {}))
            parts += [Part(url, size, start, min(start + ROWS, rows)) for start in range(0, rows, ROWS)]
        return replace(found, parts=tuple(parts))

    def fetch(self, number: int, folder: Path) -> PairedDataset:
        """Fetch a part: its items, with images in the folder.

        An image that is not there has a path without a file. Ids of shards begin with the name of the shard.

        Raises:
            DataError: cannot be read; the object has changed since; or an image of another store.
        """
        part = self.parts[number]
        if sizes_of([part.url]) != [part.size]:
            raise DataError("has changed since its parts were counted.", field=part.url, hint="Use another folder.")
        if not part.stop:
            local = folder / part.url.rpartition("/")[2]
            fetch(part.url, local)
            with _named(local, part.url):
                return read_webdataset(local, images=folder / "images", prefix_ids=True)
        wanted: dict[Path, str] = {}
        whole = self._read(part.url, folder, wanted)
        chosen = whole.take(range(part.start, part.stop))
        pairs = [(wanted[path], path) for path in chosen.images if path is not None]
        with ThreadPoolExecutor(TRANSFERS) as pool:
            list(pool.map(lambda pair: self._fetch_image(pair[0], pair[1], part.url), pairs))
        return chosen

    def _read(self, url: str, folder: Path, wanted: dict[Path, str]) -> PairedDataset:
        """Read a manifest; `wanted` gets the URL of the image that is to be at each path."""
        local = folder / url.rpartition("/")[2]
        fetch(url, local)
        base = self.images or parent_of(url)

        def locate(name: str) -> Path:
            path = folder / "images" / f"{len(wanted)}{Path(name).suffix[:10]}"
            wanted[path] = self._checked(name if is_url(name) else joined(base, name), url)
            return path

        with _named(local, url):
            return read_manifest(local, images=locate, columns=self.columns, separator=self.separator)

    def _checked(self, image: str, manifest: str) -> str:
        """Refuse an image of another store: a manifest of strangers must not choose what this machine connects to."""
        if not self.download and place_of(image) not in (place_of(manifest), self.images and place_of(self.images)):
            problem = f"{image[:100]} is in another store than the manifest."
            raise DataError(problem, hint="Allow it with `download`; credentials are not sent.")
        return image

    def _fetch_image(self, url: str, path: Path, manifest: str) -> None:
        own = (place_of(manifest), self.images and place_of(self.images))
        try:
            fetch(url, path, stranger=place_of(url) not in own)
        except FileNotFoundError:
            return  # listed as skipped, like a file that is not there


@contextlib.contextmanager
def _named(local: Path, url: str) -> Iterator[None]:
    """Errors and notes about a fetched file name its URL."""
    try:
        with warnings.catch_warnings(record=True) as told:
            yield
    except DataError as error:
        problem, hint = (text.replace(str(local), url) for text in (error.problem, error.hint))
        raise DataError(problem, file=url, row=error.row, field=error.field, option=error.option, hint=hint) from None
    for each in told:
        warnings.warn(str(each.message).replace(str(local), url), each.category, stacklevel=2)


def describe(parts: Sequence[Part]) -> list[list[object]]:
    """The parts as plain values, to compare."""
    return [[part.url, part.size, part.start, part.stop] for part in parts]
