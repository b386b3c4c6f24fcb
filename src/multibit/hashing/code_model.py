"""What every method trains: a network that maps features of either modality to relaxed codes."""

from __future__ import annotations

import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Self, cast, get_origin, get_type_hints

import msgspec
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from multibit.arrays import as_float32, as_matrix
from multibit.codes.items import MODALITIES, Modality
from multibit.codes.layout import Layout
from multibit.config import MAX_BITS
from multibit.errors import ConfigError, DataError, FormatError, require_known
from multibit.features.tokens import Tokens
from multibit.files import Arrays, building, fingerprint, read_arrays, typed, write_arrays
from multibit.hashing.encode import ENCODE_ROWS, KIND, VERSION

FIRST_NETWORK = "multibit"  # of a file that names no network, as those of earlier versions
ENCODE_TOKEN_ROWS = 256  # rows per forward pass, as ENCODE_ROWS, for networks that read tokens


class TokenBatch(NamedTuple):
    """Token features of a batch.

    Attributes:
        values: (b, t, d) float32. mask: (b, t) bool, true where a token is real and not padding.
    """

    values: Tensor
    mask: Tensor


class CodeModel(nn.Module, ABC):
    """Maps features of either modality to the relaxed codes of all its lengths.

    A subclass names its network, `class Linear(CodeModel, network="linear")`, so that `load` finds it; takes
    `image_dim` and `text_dim` first; and defines `forward`.

    Args:
        layout: where the code of each length is in the output.
        sizes: all arguments of the subclass's constructor by name, as plain values for JSON. With `tokens`, number and
            length of the tokens of each modality, it reads tokens.

    Attributes:
        layout: as given. sizes: as given, with lists for tuples. image_dim, text_dim: lengths of the feature vectors.
        blocks: bits of each diffusion scale; empty for all methods but MultiBit.
    """

    networks: ClassVar[dict[str, type[CodeModel]]] = {}
    network: ClassVar[str]

    blocks: tuple[int, ...] = ()

    def __init_subclass__(cls, network: str, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.network = network
        CodeModel.networks[network] = cls

    def __init__(self, layout: Layout, **sizes: Any) -> None:
        super().__init__()
        self.layout, self.sizes = layout, json.loads(json.dumps(sizes))  # as a file has them: lists, no tuples
        self.image_dim: int = sizes["image_dim"]
        self.text_dim: int = sizes["text_dim"]

    def __repr__(self) -> str:
        """One line; `children()` has the layers."""
        return f"{type(self).__name__}({self.image_dim}-d image, {self.text_dim}-d text, {self.bits} bits)"

    @abstractmethod
    def forward(self, features: Tensor, modality: Modality, tokens: TokenBatch | None = None) -> Tensor:
        """(n, d_m) features -> (n, stored bits) relaxed codes, whose signs are the codes."""

    def embed(self, features: Tensor, modality: Modality) -> Tensor | None:
        """(n, d_m) features -> (n, d) feature shared by both modalities, before the code; None without one."""
        return None

    def stacks(self, modality: Modality) -> list[list[nn.Module]] | None:
        """The network of one modality as stacks of layers, whose outputs side by side are the relaxed code.

        The input of each is the features with rows scaled by `scale_rows`. None for a network that is more than that,
        which cannot be exported to other runtimes.
        """
        return None

    @property
    def reads_tokens(self) -> bool:
        """Whether `forward` needs token features."""
        return self.sizes.get("tokens") is not None

    @property
    def dimensions(self) -> dict[Modality, int]:
        """Modality -> length of the feature vectors."""
        return {"image": self.image_dim, "text": self.text_dim}

    @property
    def bits(self) -> int:
        """The longest code length."""
        return self.layout.longest

    def serving(self, bits: int) -> CodeModel:
        """The network that makes the code of a length: itself, except where each length has one of its own."""
        return self

    @property
    def models(self) -> int:
        """Number of separately trained networks."""
        return 1

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        weights: Tensor = next(iter(self.state_dict().values()))
        return weights.device

    @property
    def parameter_count(self) -> int:
        """Number of trained weights."""
        return sum(weights.numel() for weights in self.parameters())

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return sum(weights.numel() * weights.element_size() for weights in self.state_dict().values())

    @property
    def flops(self) -> int:
        """Floating-point operations to code one image and one text from their features: of all matrices, each once."""
        return 2 * sum(module.weight.numel() for module in self.modules() if isinstance(module, nn.Linear))

    def encode(self, features: ArrayLike, modality: Modality, tokens: Tokens | None = None) -> NDArray[np.float32]:
        """Relaxed codes of (n, d_m) features, without dropout: (n, stored bits) float32.

        Each row is coded independently; rounding differs by about 1e-6 with the number of rows coded together.

        Args:
            features: (n, d_m). modality: "image" or "text". tokens: of the same n items, where the network reads them.

        Raises:
            DataError: features of another dimension, a value that is not finite as float32, or no tokens.
            ConfigError: unknown modality.
        """
        require_known("modality", modality, MODALITIES)
        array = as_matrix(features, self.dimensions[modality], f"{modality} features")
        if self.reads_tokens and tokens is None:
            raise DataError(
                "this model reads tokens, but the features have none.",
                field=f"{modality} tokens",
                hint="Extract the features with tokens.",
            )
        out = np.empty((len(array), self.layout.stored), np.float32)
        step = ENCODE_TOKEN_ROWS if self.reads_tokens else ENCODE_ROWS
        was_training = self.training
        self.eval()
        try:
            with torch.inference_mode():
                for start in range(0, len(array), step):
                    rows = np.arange(start, min(start + step, len(array)))
                    block = as_float32(array[rows], f"{modality} features", rows)  # a copy that torch may write to
                    inputs: list[Any] = [torch.from_numpy(block).to(self.device), modality]
                    if self.reads_tokens:
                        inputs.append(token_batch(cast(Tokens, tokens).take(rows), self.device))
                    out[rows] = self(*inputs).cpu().numpy()
        finally:
            self.train(was_training)
        return out

    def fingerprint(self) -> str:
        """Hash of the weights (16 hexadecimal digits), which identifies the codes of this model."""
        return fingerprint(*(tensor.cpu().numpy() for tensor in self.state_dict().values()))

    def save(self, path: Path | str) -> None:
        """Write weights and sizes to one safetensors file, atomically."""
        first = self.network == FIRST_NETWORK
        header, version = ({}, 1) if first else ({"network": self.network}, VERSION)
        weights = {name: tensor.cpu().numpy() for name, tensor in self.state_dict().items()}
        write_arrays(Path(path), weights, {**header, **self.sizes}, kind=KIND, version=version)

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a model that `save` wrote, of this class or a subclass.

        Raises:
            FormatError: corrupt, newer, another kind of file, or another network.
        """
        path = Path(path)
        weights, sizes = read_arrays(path, kind=KIND, version=VERSION)
        network = typed(sizes.pop("network", FIRST_NETWORK), str, path)
        found = CodeModel.networks.get(network)
        if found is None or not issubclass(found, cls):
            raise FormatError(
                f"has the network {network!r}, which is not known here.", file=path, hint="Upgrade multibit."
            )
        with building(path):
            with torch.device("meta"):  # sizes that are not those of the weights take no memory
                model = found.of_sizes(sizes)
            model.load_state_dict(_tensors(weights, model.state_dict()), assign=True)
            layout = model.layout
            if list(layout.lengths) != sorted(set(layout.lengths)) or not 1 <= layout.longest <= MAX_BITS:
                raise ValueError(f"code lengths {layout.lengths}; need 1 to {MAX_BITS} bits, ascending")
            return cast(Self, model.eval())

    @classmethod
    def of_sizes(cls, sizes: Mapping[str, Any]) -> CodeModel:
        """A model with new weights from its `sizes`, checked by the types of the constructor's arguments.

        Raises:
            ValidationError: an argument is missing, unknown, of another type or out of range.
        """
        hints = get_type_hints(cls.__init__, include_extras=True)
        fields: list[Any] = []
        for each in list(inspect.signature(cls.__init__).parameters.values())[1:]:
            hint = hints[each.name]
            kind = hint if get_origin(hint) is Annotated else _CONSTRAINED.get(hint, hint)
            fields.append((each.name, kind, *([] if each.default is each.empty else [each.default])))
        form = msgspec.defstruct(cls.__name__, fields, forbid_unknown_fields=True)
        return cls(**msgspec.structs.asdict(msgspec.convert(sizes, form)))


Size = Annotated[int, msgspec.Meta(ge=1, lt=1 << 24)]
Part = Annotated[list[Size], msgspec.Meta(min_length=1)]
_CONSTRAINED: dict[Any, Any] = {
    int: Size,
    float: Annotated[float, msgspec.Meta(ge=0, lt=1)],
    Sequence[int]: Part,
    Mapping[Modality, Sequence[int]] | None: dict[Modality, tuple[Size, Size]] | None,
}
"""Type of an argument of a network -> what a file may say about it: sizes are positive, floats are dropout rates."""


def _tensors(weights: Arrays, needed: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a file in memory of their own, in the types that the network has.

    Raises:
        ValueError: a weight that is not finite.
    """
    for name, array in weights.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(f"a weight of {name} is not finite")
    return {
        name: torch.from_numpy(array).to(needed[name].dtype if name in needed else None, copy=True)
        for name, array in weights.items()
    }


def token_batch(tokens: Tokens, device: torch.device) -> TokenBatch:
    """Tokens of a few items as tensors."""
    values = torch.from_numpy(np.asarray(tokens.values, np.float32)).to(device)  # (b, t, d)
    mask = np.arange(values.shape[1])[None] < tokens.counts[:, None]
    return TokenBatch(values, torch.from_numpy(mask).to(device))


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
