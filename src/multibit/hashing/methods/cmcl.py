"""CMCL: codes of all lengths side by side, trained together against a memory of the codes of all training items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from multibit.codes.items import Modality
from multibit.codes.layout import Layout
from multibit.config import EpochSettings
from multibit.errors import ConfigError
from multibit.features import Pairs
from multibit.hashing.code_model import CodeModel, TokenBatch
from multibit.hashing.layers import scale_rows, scale_tokens
from multibit.hashing.learner import Batch, Descent, LossLearner, seeded
from multibit.hashing.losses import shared_labels
from multibit.hashing.methods.base import Method
from multibit.hashing.optimizers import bert_descent

LARGEST_PRODUCT = 64.0  # of two codes, in the likelihood
RESIDUAL_BLOCKS = 2
DECAY, WARMUP = 0.01, 0.05  # of the weights; share of the steps with a rising rate
NUMBERS_AT_ONCE = 2**18  # of the products with the memory, which then stay in the processor's cache


@dataclass(frozen=True)
class CmclSettings(EpochSettings):
    """The settings of CMCL.

    Raises:
        ConfigError: a value is out of range, or the heads do not divide the dimension.
    """

    lengths: tuple[int, ...] = (16, 32, 64, 128)  # target code lengths of one model; the longest is the auxiliary one
    dimension: int = 512  # width of the feature that both modalities share
    hidden: int = 2048  # width of the hidden layers in the residual blocks and in the transformers
    concepts: int = 64  # queries to the tokens
    heads: int = 8  # of the attention
    dropout: float = 0.5  # fraction of hidden units of the residual blocks dropped in training
    inter_weight: float = 5.0  # weight of the likelihood of codes with those of the other modality
    intra_weight: float = 0.005  # weight of the likelihood of codes with those of the same modality
    quantization_weight: float = 1.0
    auxiliary_weight: float = 20.0  # mu, of the longest length, and of its reconstruction from the shorter codes
    delta: float = 0.001  # weight of the reconstruction, times mu
    global_weight: float = 5.0  # weight of the contrast of items
    local_weight: float = 1.0  # weight of the contrast of the concepts of an item
    temperature: float = 0.07  # of both contrasts
    epochs: int = 100
    batch_size: int = 128
    learning_rate: float = 1e-3
    seed: int = 42  # of initial weights and memories, batches and dropout; the split has its own

    POSITIVE = ("learning_rate", "temperature")
    SHARES = ("dropout",)
    WIDTHS = ("dimension", "hidden", "concepts")

    def _require_ranges(self) -> None:
        super()._require_ranges()
        if self.dimension % self.heads:
            raise ConfigError(f"must divide the dimension {self.dimension}, got {self.heads}.", option="heads")


class Outputs(NamedTuple):
    """What the network makes of items of one modality.

    Attributes:
        codes: (b, stored bits) relaxed, of all lengths. shared: (b, d) g. concepts: (b, C, d); None without tokens.
    """

    codes: Tensor
    shared: Tensor
    concepts: Tensor | None


class ResidualBlock(nn.Module):
    """x + down(drop(gelu(up(norm(x)))))."""

    def __init__(self, dimension: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(dimension),
            nn.Linear(dimension, hidden),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, dimension),
        )

    def forward(self, features: Tensor) -> Tensor:
        """(b, d) -> (b, d)."""
        return features + self.layers(features)  # type: ignore[no-any-return]


class ConceptReader(nn.Module):
    """The concepts attend to the tokens of one modality, then to each other.

    Attributes:
        query, key, value, output: layers of the attention to the tokens. transformer: of the concepts.
    """

    def __init__(self, inputs: int, dimension: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.output = nn.Linear(dimension, dimension), nn.Linear(dimension, dimension)
        self.key, self.value = nn.Linear(inputs, dimension), nn.Linear(inputs, dimension)
        self.transformer = nn.TransformerEncoderLayer(
            dimension, heads, hidden, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )

    def forward(self, queries: Tensor, tokens: TokenBatch) -> Tensor:
        """(C, d) queries and (b, t, d_tok) tokens -> (b, C, d) concepts; padding takes no part."""
        vectors = scale_tokens(tokens)  # (b, t, d_tok)
        asked, keys, values = (
            each.unflatten(-1, (self.heads, -1)).transpose(-3, -2)  # (..., heads, C or t, d / heads)
            for each in (self.query(queries), self.key(vectors), self.value(vectors))
        )
        real = tokens.mask[:, None, None]  # (b, 1, 1, t)
        read = functional.scaled_dot_product_attention(
            asked.expand(len(vectors), -1, -1, -1), keys, values, attn_mask=real
        )  # (b, heads, C, d / heads)
        return self.transformer(self.output(read.transpose(1, 2).flatten(2)))  # type: ignore[no-any-return]


class ConceptCodes(CodeModel, network="cmcl"):
    """Shared residual blocks of the pooled vector, plus the mean of the concepts, and a hash head for each length.

    Rows and tokens are scaled to the length sqrt(d), as by `scale_rows`. All layers serve both modalities but those of
    the concepts, and a linear layer for pooled vectors that are not of the shared dimension.

    Attributes:
        inputs: modality -> its pooled vectors to the shared dimension. residual: their blocks. codes: hash heads.
        queries: (C, d), of the concepts. readers: modality -> its attention of the concepts.

    Example:
        >>> model = ConceptCodes(image_dim=20, text_dim=12, lengths=(4, 8), dimension=16, hidden=32)
        >>> model.encode(torch.zeros(3, 12), "text").shape, model.layout.part(8)
        ((3, 12), slice(4, 12, None))
    """

    def __init__(
        self,
        image_dim: int,
        text_dim: int,
        lengths: Sequence[int],
        tokens: Mapping[Modality, Sequence[int]] | None = None,
        dimension: int = 512,
        hidden: int = 2048,
        concepts: int = 64,
        heads: int = 8,
        dropout: float = 0.5,
    ) -> None:
        super().__init__(
            Layout(tuple(lengths), nested=False), image_dim=image_dim, text_dim=text_dim, lengths=list(lengths),
            tokens=tokens, dimension=dimension, hidden=hidden, concepts=concepts, heads=heads, dropout=dropout,
        )  # fmt: skip
        self.inputs = nn.ModuleDict({modality: _bridge(size, dimension) for modality, size in self.dimensions.items()})
        self.residual = nn.Sequential(*(ResidualBlock(dimension, hidden, dropout) for _ in range(RESIDUAL_BLOCKS)))
        self.codes = nn.ModuleList(nn.Linear(dimension, bits) for bits in lengths)
        if tokens is not None:
            self.queries = nn.Parameter(torch.randn(concepts, dimension))
            self.readers = nn.ModuleDict(
                {name: ConceptReader(shape[1], dimension, hidden, heads) for name, shape in tokens.items()}
            )

    @property
    def flops(self) -> int:
        """Floating-point operations to code one image and one text: of all matrices, with the most tokens."""
        d, hidden, concepts = (self.sizes[name] for name in ("dimension", "hidden", "concepts"))
        products: int = sum(width * d for width in (self.image_dim, self.text_dim) if width != d)
        products += 2 * (RESIDUAL_BLOCKS * 2 * d * hidden + d * self.layout.stored)
        for count, width in (self.sizes["tokens"] or {}).values():
            products += 2 * count * width * d + 2 * concepts * count * d  # keys and values, attention to the tokens
            products += concepts * (5 * d * d + 2 * d * hidden + 2 * concepts * d)  # output, transformer
        return 2 * products

    def outputs(self, features: Tensor, modality: Modality, tokens: TokenBatch | None = None) -> Outputs:
        """(n, d_m) features and (n, t, d_tok) tokens -> tanh(heads(f)) with f = g + mean concept, g, concepts."""
        shared: Tensor = self.residual(self.inputs[modality](scale_rows(features)))  # (n, d) g
        concepts = self.readers[modality](self.queries, tokens) if self.reads_tokens else None  # (n, C, d)
        feature = shared if concepts is None else shared + concepts.mean(dim=1)  # (n, d) f
        codes = torch.tanh(torch.cat([head(feature) for head in self.codes], dim=1))
        return Outputs(codes, shared, concepts)

    def forward(self, features: Tensor, modality: Modality, tokens: TokenBatch | None = None) -> Tensor:
        """(n, d_m) features and (n, t, d_tok) tokens -> (n, stored bits) relaxed codes in (-1, 1)."""
        return self.outputs(features, modality, tokens).codes


def _bridge(inputs: int, outputs: int) -> nn.Module:
    """A linear layer, or nothing where both lengths are equal."""
    return nn.Identity() if inputs == outputs else nn.Linear(inputs, outputs)


class Cmcl(LossLearner):
    """Likelihood of sharing a label with the remembered codes, at every length; the longest code teaches the shorter.

    Attributes:
        model: features and tokens -> codes. decoders: shorter code -> longest code, of each shorter length.
        image_memory, text_memory: (N, stored bits) relaxed codes of all training items when they were last seen,
            normal random numbers before. binary: (N, stored bits) signs of their sum at the end of the last epoch.
        labels: (N, C) of all training items.
    """

    parts: tuple[str, ...] = ("inter", "intra", "quantization", "reconstruction", "global", "local", "total")
    needs_unrelated = True
    full_batches = True
    reads_tokens: ClassVar[bool] = True
    model: ConceptCodes
    image_memory: Tensor
    text_memory: Tensor
    binary: Tensor
    labels: Tensor

    def __init__(self, training: Pairs, settings: CmclSettings) -> None:
        super().__init__(training, settings)
        self.settings = settings
        tokens = training.require_tokens() if self.reads_tokens else None
        widths: dict[str, Any] = {
            name: getattr(settings, name) for name in ("dimension", "hidden", "concepts", "heads", "dropout")
        }
        longest = settings.code_bits
        with seeded(settings.seed):
            self.model = ConceptCodes(
                training.image.shape[1], training.text.shape[1], settings.lengths, tokens, **widths
            )
            self.decoders = nn.ModuleList(
                nn.Sequential(nn.Linear(bits, longest), nn.ReLU(), nn.Linear(longest, longest), nn.Tanh())
                for bits in settings.lengths[:-1]
            )
            for name in ("image_memory", "text_memory"):
                self.register_buffer(name, torch.randn(len(training), self.model.layout.stored))
        self.register_buffer("binary", torch.empty_like(self.image_memory))
        self.register_buffer("labels", torch.from_numpy(training.labels).float(), persistent=False)
        self.end_epoch(0)

    def optimizers(self, steps: int) -> list[Descent]:
        """BertAdam for all weights, with a short warm-up and little decay."""
        return [bert_descent(self.parameters(), self.settings.learning_rate, steps, decay=DECAY, warmup=WARMUP)]

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """L = sum_k w_k (inter + intra + quantisation) + reconstruction + contrasts, by the weights of the settings."""
        return self.terms(*self.outputs(batch), batch)

    def step(self, batch: Batch, descents: Sequence[Descent]) -> Tensor:
        """Update the weights, then remember the codes from before the update."""
        outputs = self.outputs(batch)
        losses = self.terms(*outputs, batch)
        total = torch.stack(list(losses.values())).sum()
        descents[0].step(total)
        for memory, seen in zip((self.image_memory, self.text_memory), outputs, strict=True):
            memory[batch.rows] = seen.codes.detach()
        return torch.stack([*losses.values(), total]).detach()

    def end_epoch(self, epoch: int) -> None:
        """B = sign(I + T)."""
        self.binary.copy_(torch.where(self.image_memory + self.text_memory >= 0, 1.0, -1.0))

    def outputs(self, batch: Batch) -> tuple[Outputs, Outputs]:
        """Of the images and of the texts."""
        return (
            self.model.outputs(batch.image, "image", batch.image_tokens),
            self.model.outputs(batch.text, "text", batch.text_tokens),
        )

    def terms(self, image: Outputs, text: Outputs, batch: Batch) -> dict[str, Tensor]:
        """The weighted terms of `losses`."""
        settings = self.settings
        related = shared_labels(self.labels, batch.labels)  # (N, b)
        fitted = [self.code_terms(bits, image.codes, text.codes, related, batch.rows) for bits in settings.lengths]
        whole = [functional.normalize(each.shared, dim=1) for each in (image, text)]  # 2 x (b, d)
        inter, intra, quantization = torch.stack(fitted).sum(dim=0)
        losses = {
            "inter": inter,
            "intra": intra,
            "quantization": quantization,
            "reconstruction": self.reconstruction(image.codes, text.codes, batch.rows),
            "global": settings.global_weight * contrast(whole[0], whole[1], settings.temperature),
        }
        if image.concepts is not None and text.concepts is not None:
            of_image, of_text = (functional.normalize(each, dim=2) for each in (image.concepts, text.concepts))
            losses["local"] = settings.local_weight * contrast(of_image, of_text, settings.temperature)
        return losses

    def code_terms(self, bits: int, image: Tensor, text: Tensor, related: Tensor, rows: Tensor) -> Tensor:
        """(3,) weighted inter, intra and quantisation terms of one length.

        Args:
            bits: k. image, text: (b, stored bits) relaxed codes. related: (N, b) 1.0 where items share a label.
            rows: (b,) of the batch.
        """
        part, settings = self.model.layout.part(bits), self.settings
        u_image, u_text = image[:, part], text[:, part]  # (b, k)
        images, texts = self.image_memory[:, part], self.text_memory[:, part]  # (N, k)
        inter = unlikelihood(images, u_text, related) + unlikelihood(texts, u_image, related)
        intra = unlikelihood(images, u_image, related) + unlikelihood(texts, u_text, related)
        binary = self.binary[rows, part]  # (b, k)
        deviation = (u_image - binary).square().mean() + (u_text - binary).square().mean()
        terms = [
            settings.inter_weight * inter,
            settings.intra_weight * intra,
            settings.quantization_weight * deviation,
        ]
        return (settings.auxiliary_weight if bits == settings.code_bits else 1.0) * torch.stack(terms)

    def reconstruction(self, image: Tensor, text: Tensor, rows: Tensor) -> Tensor:
        """Reconstruction of the longest code B: mu delta sum_k (|dec_k(u_i) - B|^2 + |dec_k(u_t) - B|^2) / b.

        Args:
            image, text: (b, stored bits) relaxed codes. rows: (b,) of the batch.
        """
        layout, settings = self.model.layout, self.settings
        binary = self.binary[rows, layout.part(layout.longest)]  # (b, longest)
        total = image.new_zeros(())
        for bits, decode in zip(settings.lengths, self.decoders, strict=False):
            for codes in (image, text):
                total = total + (decode(codes[:, layout.part(bits)]) - binary).square().sum()
        return settings.auxiliary_weight * settings.delta * total / len(rows)


class CmclPooled(Cmcl):
    """CMCL without concepts."""

    parts = ("inter", "intra", "quantization", "reconstruction", "global", "total")
    reads_tokens = False


class _Unlikelihood(torch.autograd.Function):
    """The value of `unlikelihood`, with its slope computed together, for some of the memory at a time."""

    @staticmethod
    def forward(ctx: Any, codes: Tensor, memory: Tensor, related: Tensor) -> Tensor:
        """(b, k) codes, (N, k) memory, (N, b) related -> ()."""
        value, slopes = codes.new_zeros(()), torch.zeros_like(codes)
        step = max(1, NUMBERS_AT_ONCE // len(codes))
        for some, shares in zip(torch.split(memory, step), torch.split(related, step), strict=True):
            products = some @ codes.T  # (n, b)
            theta = products.clamp(-LARGEST_PRODUCT, LARGEST_PRODUCT) / 2
            value += functional.softplus(theta).sum() - torch.vdot(shares.flatten(), theta.flatten())
            slope = torch.sigmoid(theta).sub_(shares).masked_fill_(products.abs() > LARGEST_PRODUCT, 0)
            slopes.addmm_(slope.T, some, alpha=0.5)
        ctx.save_for_backward(slopes / related.numel())
        return value / related.numel()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """() gradient of the value -> (b, k) of the codes."""
        (slopes,) = ctx.saved_tensors
        return gradients[0] * slopes, None, None


def unlikelihood(memory: Tensor, codes: Tensor, related: Tensor) -> Tensor:
    """P(A, u) = mean of log(1 + e^theta) - S theta, with theta = clamp(<a, u>, -64, 64) / 2.

    Args:
        memory: (N, k) codes a, constant. codes: (b, k) codes u. related: (N, b) S, 1.0 where items share a label.

    Example:
        >>> memory, codes = torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0, 1.0]])
        >>> round(float(unlikelihood(memory, codes, torch.ones(1, 1))), 4)  # log(1 + e) - 1
        0.3133
    """
    return _Unlikelihood.apply(codes, memory, related)  # type: ignore[no-any-return, no-untyped-call]


def contrast(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """Symmetric InfoNCE: mean of -log softmax of the cosine of equal positions, by rows and by columns.

    Args:
        first, second: (..., n, d) unit vectors; each of the leading positions is a problem of its own.

    Example:
        >>> x = torch.eye(2)
        >>> round(float(contrast(x, x, temperature=1.0)), 4)  # log(1 + 1 / e)
        0.3133
    """
    logits = first @ second.transpose(-1, -2) / temperature  # (..., n, n)
    both = (logits.logsumexp(dim=-1) + logits.logsumexp(dim=-2)) / 2  # (..., n)
    return (both - logits.diagonal(dim1=-2, dim2=-1)).mean()


CMCL = Method(
    "cmcl",
    "CMCL",
    "codes of all lengths side by side, likely under a memory of all codes; the longest teaches the shorter",
    defaults=CmclSettings(),
    presets={
        "mirflickr": {"learning_rate": 1e-3, "delta": 0.001},
        "coco": {"learning_rate": 2e-3, "delta": 0.005},
        "iapr": {"learning_rate": 2e-3, "delta": 0.001},
        "nuswide": {"learning_rate": 2e-3, "delta": 0.001},
    },
    learner=Cmcl,
    lengths="several",
    inputs="tokens",
    tables=("tokens",),
    venue="TKDE 2024",
    source="DarrenZZhang/CMCL @ 539fa2c",
    differs="CLIP is frozen. The auxiliary length is the longest that is asked for; the published tables leave it out. "
    "Of a text, only padding is masked, not the end token. IAPR TC-12, which was not published, has the settings of "
    "NUS-WIDE.",
)
CMCL_POOLED = replace(
    CMCL,
    name="cmcl-pooled",
    variant_of="cmcl",
    title="CMCL (pooled)",
    meaning="CMCL without concepts: its codes are made of the pooled vector alone",
    learner=CmclPooled,
    inputs="pooled",
    tables=("pooled",),
    differs="CLIP is frozen. The concepts, which are made of tokens, are left out with their contrast. The auxiliary "
    "length is the longest that is asked for; the published tables leave it out. IAPR TC-12, which was not "
    "published, has the settings of NUS-WIDE.",
)
