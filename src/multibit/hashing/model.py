"""The hash model: a projection per modality, then one linear head per diffusion scale."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.nn import functional

from multibit.arrays import as_float32
from multibit.codes.items import MODALITIES, Modality
from multibit.errors import ConfigError, DataError, require_known
from multibit.files import fingerprint, read_arrays, write_arrays

KIND, VERSION = "hash model", 1
ENCODE_ROWS = 4096  # rows per forward pass of `encode`: bounds its memory


class HashModel(nn.Module):
    """Maps feature vectors of either modality to relaxed codes in (-1, 1).

    The M scale heads are independent linear maps of the shared feature (`eq:scale-subblocks`); stacked they are one
    matrix, whose output is already the concatenation of the blocks, local to long range.

    Attributes:
        image_dim, text_dim: lengths of the feature vectors.
        blocks: bits of each scale, local to long range; their sum is the code length.
        hidden: width of the hidden layer of each projection. dimension: d, width of the shared feature.

    Example:
        >>> model = HashModel(image_dim=20, text_dim=12, blocks=(5, 2, 1), hidden=16, dimension=8)
        >>> model.encode(np.zeros((3, 12)), "text").shape
        (3, 8)
    """

    def __init__(
        self,
        image_dim: int,
        text_dim: int,
        blocks: Sequence[int],
        hidden: int = 1280,
        dimension: int = 512,
        dropout: float = 0.0,
        input_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if min(image_dim, text_dim, hidden, dimension, *blocks) < 1:
            sizes = {"image_dim": image_dim, "text_dim": text_dim, "hidden": hidden, "dimension": dimension}
            wrong = next((name for name, size in sizes.items() if size < 1), "blocks")
            raise ConfigError(f"must be at least 1, got {sizes.get(wrong, blocks)}.", option=wrong)
        self.image_dim, self.text_dim = image_dim, text_dim
        self.blocks = tuple(int(width) for width in blocks)
        self.hidden, self.dimension, self.dropout, self.input_dropout = hidden, dimension, dropout, input_dropout
        self.projections = nn.ModuleDict(
            {
                "image": Projection(image_dim, hidden, dimension, dropout, input_dropout),
                "text": Projection(text_dim, hidden, dimension, dropout, input_dropout),
            }
        )
        self.heads = nn.Linear(dimension, sum(self.blocks))

    @property
    def bits(self) -> int:
        """B_max, the length of the code."""
        return sum(self.blocks)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.heads.weight.device

    @property
    def parameter_count(self) -> int:
        """Number of weights."""
        return sum(weights.numel() for weights in self.parameters())

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return sum(weights.numel() * weights.element_size() for weights in self.state_dict().values())

    @property
    def flops(self) -> int:
        """Floating-point operations to code one image and one text from their features."""
        inputs = self.image_dim + self.text_dim
        return 2 * (inputs * self.hidden + 2 * self.hidden * self.dimension + 2 * self.dimension * self.bits)

    def forward(self, features: Tensor, modality: Modality) -> Tensor:
        """(n, d_m) features -> (n, B_max) relaxed code in (-1, 1)."""
        z = self.projections[modality](features)  # (n, d)
        return torch.tanh(self.heads(z))  # (n, B_max)

    def encode(self, features: ArrayLike, modality: Modality) -> NDArray[np.float32]:
        """Relaxed codes of (n, d_m) features, without dropout: (n, B_max) float32 in [-1, 1].

        Each row is coded independently; rounding differs by about 1e-6 with the number of rows coded together.

        Args:
            features: (n, d_m). modality: "image" or "text".

        Raises:
            DataError: features of another dimension, or a value that is not finite as float32. ConfigError: unknown
                modality.
        """
        require_known("modality", modality, MODALITIES)
        array = np.asarray(features)
        needed = self.image_dim if modality == "image" else self.text_dim
        if array.ndim != 2 or array.shape[1] != needed:
            raise DataError(f"need shape (n, {needed}), got {array.shape}.", field=f"{modality} features")
        out = np.empty((len(array), self.bits), np.float32)
        was_training = self.training
        self.eval()
        try:
            with torch.inference_mode():
                for start in range(0, len(array), ENCODE_ROWS):
                    rows = np.arange(start, min(start + ENCODE_ROWS, len(array)))
                    block = as_float32(array[rows], f"{modality} features", rows)  # a copy that torch may write to
                    out[rows] = self(torch.from_numpy(block).to(self.device), modality).cpu().numpy()
        finally:
            self.train(was_training)
        return out

    def fingerprint(self) -> str:
        """Hash of the weights (16 hexadecimal digits), which identifies the codes of this model."""
        return fingerprint(*(tensor.cpu().numpy() for tensor in self.state_dict().values()))

    def save(self, path: Path | str) -> None:
        """Write weights and sizes to one safetensors file, atomically."""
        sizes = {
            "image_dim": self.image_dim,
            "text_dim": self.text_dim,
            "blocks": self.blocks,
            "hidden": self.hidden,
            "dimension": self.dimension,
            "dropout": self.dropout,
            "input_dropout": self.input_dropout,
        }
        weights = {name: tensor.cpu().numpy() for name, tensor in self.state_dict().items()}
        write_arrays(Path(path), weights, sizes, kind=KIND, version=VERSION)

    @classmethod
    def load(cls, path: Path | str) -> HashModel:
        """Read a model that `save` wrote.

        Raises:
            FormatError: corrupt, newer, or another kind of file.
        """
        weights, sizes = read_arrays(Path(path), kind=KIND, version=VERSION)
        model = cls(**sizes)
        model.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
        return model.eval()


class Projection(nn.Module):
    """E^m: input features -> shared feature, a two-layer MLP.

    Input rows are scaled to the length sqrt(d_m), so only their direction counts, as for CLIP features, and the network
    sees values of about unit size from any encoder.
    """

    def __init__(self, inputs: int, hidden: int, outputs: int, dropout: float, input_dropout: float = 0.0) -> None:
        super().__init__()
        self.gain = inputs**0.5
        self.drop = nn.Dropout(input_dropout)
        self.layers = nn.Sequential(
            nn.Linear(inputs, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, outputs),
        )

    def forward(self, features: Tensor) -> Tensor:
        """(n, inputs) -> (n, outputs)."""
        unit = functional.normalize(_of_size_one(features), dim=1)
        return self.layers(self.drop(unit * self.gain))  # type: ignore[no-any-return]


def _of_size_one(features: Tensor) -> Tensor:
    """Rows divided by a power of two, which is exact, so that no square overflows or underflows in their length.

    The largest magnitude of a row is then in [1, 2]; rows of zeros are unchanged.
    """
    peak = features.abs().amax(dim=1, keepdim=True)
    power = peak / (2 * torch.frexp(peak).mantissa)
    return features / torch.where(peak > 0, power, 1)


def check_device(device: str) -> str:
    """The device, if this machine has one.

    Raises:
        ConfigError: unknown, or not available on this machine.
    """
    if device not in ("cpu", "cuda"):
        raise ConfigError(f"must be cpu or cuda, got {device!r}.", option="device")
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("cuda was requested, but torch finds no GPU.", option="device", hint="Use cpu.")
    return device
