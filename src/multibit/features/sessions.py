"""Networks in ONNX, run by ONNX Runtime: one thread for each call, so the results do not depend on the machine's load.

A network is a file with its weights next to it. It is optimised once for each machine: the result is kept in the
cache folder of the user, from which it is mapped and not read, so that it is ready in a few milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multibit.errors import FormatError, MissingExtraError, first_line
from multibit.files import checksum_file, fingerprint
from multibit.paths import replacing

NETWORK, WEIGHTS = "network.onnx", "network.onnx.data"
SMALL = 1024  # bytes of a constant that stays in the network file
_QUIET = 3  # only errors are printed


class Network:
    """A network in ONNX. Calls from several threads run at the same time, each on its own thread.

    Attributes:
        folder: with `network.onnx` and `network.onnx.data`. checksum: of both; "" if it is not known.
        many: many calls will follow: the weights are packed for them first, which takes time and memory.
        is_large: kept as an optimised copy, which the checksum names; a small network is opened as it is.

    Raises:
        MissingExtraError: ONNX Runtime is not installed.
    """

    def __init__(self, folder: Path, checksum: str, *, many: bool = False, is_large: bool = True) -> None:
        self.folder, self.checksum, self.many, self.is_large = folder, checksum, many, is_large
        self._session: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_session": None}  # a session belongs to one process

    def __call__(self, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> list[NDArray[Any]]:
        """Run it.

        Args:
            inputs: name -> array. outputs: names of the results.

        Raises:
            FormatError: changed since it was written, or not a network that ONNX Runtime can open and run.
        """
        if self._session is None:
            self._session = _open(self.folder, self.checksum, self.many, self.is_large)
        try:
            found: list[NDArray[Any]] = self._session.run(list(outputs), dict(inputs))
        except Exception as error:  # the library has no common class of errors
            raise FormatError(
                f"does not fit its inputs ({first_line(error):.200}).", file=self.folder / NETWORK
            ) from None
        return found

    def require_whole(self) -> None:
        """Refuse files that differ from those that were written, if their checksum is known.

        Raises:
            FormatError: missing or changed.
        """
        if self.checksum and checksum_of(self.folder) != self.checksum:
            raise FormatError(
                "the content does not match the checksum.", file=self.folder / NETWORK, hint="Export the model again."
            )


def runtime() -> Any:
    """The library.

    Raises:
        MissingExtraError: not installed.
    """
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtraError("onnxruntime", extra="onnx", need="A portable model") from None
    return onnxruntime


def cache_folder() -> Path:
    """Folder for files that can be made again: `$MULTIBIT_CACHE`, or the usual one of the system."""
    given = os.environ.get("MULTIBIT_CACHE")
    if given:
        return Path(given)
    if os.path.expanduser("~") == "~":  # noqa: PTH111 - `Path.home` raises where there is none
        return Path(tempfile.gettempdir()) / "multibit"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "multibit"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "multibit"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "multibit"


def _open(folder: Path, checksum: str, many: bool, is_large: bool) -> Any:
    """A session; of the optimised copy of a large network, which is made first where there is none."""
    library = runtime()
    if checksum and is_large:
        with contextlib.suppress(Exception):  # no copy, the cache cannot be written, or a copy is damaged
            return _open_optimised(library, folder, checksum, many)
    Network(folder, checksum).require_whole()
    try:
        options = _options(library, many)
        options.graph_optimization_level = library.GraphOptimizationLevel.ORT_ENABLE_ALL
        return library.InferenceSession(folder / NETWORK, options, providers=_PROVIDERS)
    except Exception as error:  # the library has no common class of errors
        raise FormatError(
            f"not a network that ONNX Runtime can open ({first_line(error):.200}).", file=folder / NETWORK
        ) from None


_PROVIDERS = ["CPUExecutionProvider"]


def _open_optimised(library: Any, folder: Path, checksum: str, many: bool) -> Any:
    optimised = cache_folder() / "optimised" / f"{checksum}-{library.__version__}-{_processor()}"
    if not optimised.exists():
        Network(folder, checksum).require_whole()  # the copy serves every folder with this checksum
        _optimise(library, folder, optimised)
    return library.InferenceSession(optimised / NETWORK, _options(library, many), providers=_PROVIDERS)


def _optimise(library: Any, folder: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as temporary:
        temporary.mkdir()
        options = _options(library)
        options.graph_optimization_level = library.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.optimized_model_filepath = str(temporary / NETWORK)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", WEIGHTS)
        options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", str(SMALL))
        library.InferenceSession(folder / NETWORK, options, providers=_PROVIDERS)


def _options(library: Any, many: bool = False) -> Any:
    """One thread that does not spin; for a few calls, weights used where they are mapped, and no memory kept."""
    options = library.SessionOptions()
    options.graph_optimization_level = library.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = many
    options.log_severity_level = _QUIET
    options.add_session_config_entry("session.disable_prepacking", str(int(not many)))
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def _processor() -> str:
    """A name of this kind of processor: an optimised network suits one kind."""
    about = ""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0].splitlines()
        about = "".join(line for line in lines if line.startswith(("model name", "flags", "Features")))
    return fingerprint(platform.machine(), about)


def checksum_of(folder: Path) -> str:
    """Checksum of a network and of its weights, which a small one has in the same file.

    Raises:
        FormatError: there is no network.
    """
    if not (folder / NETWORK).is_file():
        raise FormatError("is missing.", file=folder / NETWORK, hint="Export the model again.")
    return fingerprint(*(checksum_file(folder / name) for name in (NETWORK, WEIGHTS) if (folder / name).exists()))


def batch_of(arrays: Sequence[NDArray[Any]], size: int) -> NDArray[Any]:
    """A batch of exactly `size` items, the last one repeated: calls of one shape give bit-identical results."""
    return np.stack([*arrays, *[arrays[-1]] * (size - len(arrays))])
