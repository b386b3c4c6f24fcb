"""Requests and answers of the HTTP interface; the server and `multibit.client` share these models."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, model_validator

Modality = Literal["image", "text"]
Kind = Literal["string", "integer", "float", "boolean", "date", "timestamp", "timestamp UTC", "list", "json"]
"""Kind of a field, as in `multibit.search.kinds.TYPES`."""

Id = str | int


def _storable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("contains a lone surrogate, which UTF-8 cannot represent") from None
    return text


def _whole(value: Id) -> Id:
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise ValueError("an integer id must fit 64 bits")
        return value
    return _storable(value)


Text = Annotated[str, AfterValidator(_storable)]
ItemId = Annotated[Annotated[str, Field(min_length=1, max_length=1024)] | int, AfterValidator(_whole)]
Vector = Annotated[list[FiniteFloat], Field(max_length=65_536)]
Hexadecimal = Annotated[str, Field(pattern="^([0-9a-fA-F]{2})+$", max_length=16_384)]
Bits = Annotated[int, Field(ge=1, le=1024)]
Age = Annotated[int, Field(ge=0, lt=2**63)]

BITS = "Code length, any from 1 to the full length; the full length by default."
EF_SEARCH = "Approximate search in a database: candidates in its HNSW index at this length. Exact by default."
WHERE = 'Filter on the fields, in the grammar of MongoDB: {"labels": {"$in": ["cat", "dog"]}, "year": {"$gte": 2010}}.'


class Model(BaseModel):
    """Base of all models: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class SearchOptions(Model):
    """What to search for, apart from the query."""

    modality: Modality | None = Field(
        default=None, description="Modality of the hits. Default: the other one of the query."
    )
    bits: Bits | None = Field(default=None, description=BITS)
    k: int = Field(default=10, ge=1, description="Number of hits.")
    where: dict[str, Any] | None = Field(default=None, description=WHERE)
    relaxed: bool = Field(default=False, description="Rank by the real values of the query: a score that breaks ties.")
    max_distance: int | None = Field(
        default=None, ge=0, le=65_535, description="Only hits with at most this many other bits."
    )
    fields: list[Text] | None = Field(default=None, description="Fields that the hits have; all by default.")
    ef_search: int | None = Field(default=None, ge=1, le=1000, description=EF_SEARCH)
    partial: bool = Field(
        default=False, description="Answer without the shards that do not answer; `missing` says which."
    )
    known_fields: dict[Text, Kind] | None = Field(
        default=None, description="Fields of the items of other shards: name -> kind. A router sets it."
    )

    @model_validator(mode="after")
    def _one_order(self) -> SearchOptions:
        if self.relaxed and self.max_distance is not None:
            raise ValueError("max_distance cannot be combined with relaxed, which ranks by score")
        return self


class SearchRequest(SearchOptions):
    """A search by exactly one of text, id, vector and code."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"text": "a red flower", "k": 3, "bits": 32},
                {"id": "1234", "modality": "image", "where": {"labels": "animal"}},
                {"code": "9f3a60c1", "bits": 16, "max_distance": 4},
                {"code": "9f3a60c1", "bits": 32, "ef_search": 200},
            ]
        }
    )

    text: Text | None = Field(default=None, description="A text, encoded by the text encoder of the run.")
    id: ItemId | None = Field(default=None, description="An item of the index: its stored code is the query.")
    vector: Vector | None = Field(default=None, description="Relaxed code, as `/v1/encode` returns it.")
    code: Hexadecimal | None = Field(default=None, description="Binary code in hexadecimal, the first bit first.")
    source: Modality | None = Field(
        default=None, description="Modality of the query, for an id (which of its codes), a vector or a code."
    )

    @model_validator(mode="after")
    def _one_query(self) -> SearchRequest:
        given = [name for name in ("text", "id", "vector", "code") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"need exactly one of text, id, vector and code, got {', '.join(given) or 'none'}")
        return self


class Hit(Model):
    """One result of a search.

    Attributes:
        rank: from 1. id: of the item. distance: differing bits; null for a relaxed search.
        score: inner product with a relaxed query, larger is nearer; null for a binary search.
        image: where its image is served; null without one. fields: its metadata.
        age: of the item among all shards; null unless a shard answers.
    """

    rank: int
    id: Id
    distance: int | None = None
    score: float | None = None
    image: str | None = None
    fields: dict[str, Any] = {}
    age: int | None = None


class SearchResponse(Model):
    """Hits, nearest first, ties by age.

    Attributes:
        bits: code length of the search. modality: of the hits. code: of the query, hexadecimal.
        items: number of items in the index. bytes_read: size of the codes that a full scan at this length reads.
        seconds: time of the scan, shared by the searches that ran together.
        exact: false after an approximate search, which may miss some of the nearest items.
        missing: servers or shards that did not answer; empty unless partial answers are allowed.
        note: what the text encoder could not read of the query, such as a script that it has not learned.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "bits": 32, "modality": "image", "code": "9f3a60c1", "items": 4769, "bytes_read": 19076,
                    "seconds": 0.0002, "exact": True,
                    "hits": [
                        {"rank": 1, "id": "1234", "distance": 3, "score": None, "image": "/v1/items/1234/image",
                         "fields": {"labels": ["flower"], "text": "a red tulip"}}
                    ],
                }
            ]
        }
    )  # fmt: skip

    bits: int
    modality: Modality
    code: str
    items: int
    bytes_read: int
    seconds: float
    hits: list[Hit]
    exact: bool = True
    missing: list[str] = []
    note: str = ""


class EncodeRequest(Model):
    """Texts and images to encode."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"texts": ["a red flower"], "bits": 32}]})

    texts: list[Text] = Field(default=[], description="Texts.")
    images: list[str] = Field(default=[], description="Image files, base64.")
    bits: Bits | None = Field(default=None, description=BITS)
    vectors: bool = Field(default=False, description="Also return the relaxed codes.")
    queries: bool = Field(
        default=False,
        description="The texts are queries: note what the encoder cannot read, refuse one of which it knows nothing.",
    )


class Encoded(Model):
    """The code of a text or image.

    Attributes:
        code: hexadecimal, the first bit first. vector: the relaxed code, whose signs are the bits; null unless asked.
        note: what the encoder could not read of a text; empty unless `queries`.
    """

    code: str
    vector: list[float] | None = None
    note: str = ""


class EncodeResponse(Model):
    """Codes in the order of the request.

    Attributes:
        bits: code length. texts, images: their codes. model: fingerprint of the model.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"bits": 32, "model": "79ddb566a7c4077b", "texts": [{"code": "9f3a60c1"}], "images": []}]
        }
    )

    bits: int
    model: str
    texts: list[Encoded]
    images: list[Encoded]


class EmbeddingsRequest(Model):
    """A request in the form of OpenAI's embeddings."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"input": "a dog", "dimensions": 32}]})

    input: Text | list[Text]
    model: str | None = None
    dimensions: Bits | None = Field(default=None, description=BITS)
    encoding_format: Literal["float", "base64"] = "float"
    user: str | None = None


class Embedding(Model):
    """One embedding: the relaxed code up to `dimensions`, floats or the base64 of little-endian float32."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class Usage(Model):
    """Number of words, as an estimate of the tokens."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsResponse(Model):
    """Embeddings in the order of the request."""

    object: Literal["list"] = "list"
    model: str
    data: list[Embedding]
    usage: Usage


class NewItem(Model):
    """An item to add or replace, with a text, an image, or both; an encoder is needed unless vectors are given."""

    id: ItemId
    text: Text | None = None
    image: str | None = Field(default=None, description="Image file, base64.")
    text_vector: Vector | None = Field(default=None, description="Relaxed code, instead of encoding the text.")
    image_vector: Vector | None = Field(default=None, description="Relaxed code, instead of encoding the image.")
    fields: dict[str, Any] = Field(default={}, description="Metadata; the names text and image are taken.")
    age: Age | None = Field(default=None, description="Age among all shards, growing. A router sets it.")

    @model_validator(mode="after")
    def _has_content(self) -> NewItem:
        if self.text is None and self.image is None and self.text_vector is None and self.image_vector is None:
            raise ValueError("need a text, an image or a vector")
        if self.id in (".", ".."):
            raise ValueError(f"an id cannot be {self.id!r}, which clients remove from addresses")
        if taken := {"text", "image", "@age"} & self.fields.keys():
            raise ValueError(f"the names {', '.join(sorted(taken))} cannot be used in fields")
        for name in self.fields:
            if not name.strip() or name.startswith("$"):
                raise ValueError(f"a field cannot be named {name!r}: filters could not name it")
        return self


class PutItems(Model):
    """Items to add; items with a known id are replaced as a whole."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"items": [{"id": "new 1", "text": "a dog", "fields": {"labels": ["dog"]}}]}]}
    )

    items: list[NewItem] = Field(min_length=1)
    known_fields: dict[Modality, dict[Text, Kind]] = Field(
        default={}, description="Kinds of fields of all shards: modality -> name -> kind. A router sets it."
    )


class Changed(Model):
    """What a change did: number of items written, and of items in each index now."""

    written: int
    items: dict[str, int]


class Item(Model):
    """An item: where its image is served, its metadata, its codes in hexadecimal by modality, its age in a shard."""

    id: Id
    image: str | None = None
    fields: dict[str, Any] = {}
    codes: dict[str, str] = {}
    age: int | None = None


class ItemList(Model):
    """Some items of one modality in order of age, and the number of all."""

    total: int
    items: list[Item]


class FieldInfo(Model):
    """A field of the items: its kind, and its most common values with counts where items share values."""

    kind: str
    values: list[tuple[Any, int]] | None = None


class Info(Model):
    """What is served.

    Attributes:
        model: fingerprint of the model. method: of the training. bits: full length. lengths: of the training.
        nested: whether every prefix is a code. indices: name -> number of items. fields: modality -> field -> kind and
            counts. labels: label names of the training. encodes: modalities that raw queries may have.
        feature_bytes: bytes of the float32 features of an item, by modality. writable: whether items can be changed.
        limits: name -> value.
    """

    model: str
    method: str
    bits: int
    lengths: list[int]
    nested: bool
    indices: dict[str, int]
    fields: dict[str, dict[str, FieldInfo]]
    labels: list[str]
    encodes: list[Modality]
    feature_bytes: dict[str, int]
    writable: bool
    limits: dict[str, float]


class ShardInfo(Model):
    """What a router must know about a shard.

    Attributes:
        shard: such as 2/8. identity: shard, set and model, which a request of a router names.
        set: that the shards were written with. model: fingerprint. ids: their kind, as of `Index.id_kind`.
        items: name of an index -> number of items.
        fields: modality -> field -> kind. encodes: modalities that raw queries may have.
        writable: whether items can be changed. limits: name -> value.
    """

    shard: str
    identity: str
    set: str
    model: str
    ids: str
    items: dict[str, int]
    fields: dict[Modality, dict[str, Kind]]
    encodes: list[Modality]
    writable: bool
    limits: dict[str, float]


class Accuracy(Model):
    """The mAP of one protocol, without labels R@10: direction -> length -> value in 0..1, and floors by name."""

    protocol: str
    metric: str
    queries: int
    database: int
    means: dict[str, dict[int, float]]
    floors: dict[str, float]


class Scale(Model):
    """A diffusion scale: its time, its weight in the teacher, and its share of the code."""

    tau: float
    rho: float
    bits: int


class Explanation(Model):
    """The run explained.

    Attributes:
        accuracy: by length; empty if not evaluated. scales: bit budget; empty without scales. has_teacher: whether
            labels have neighbours. warnings: about the codes. missing: "accuracy" or "teacher" -> why there is none.
    """

    accuracy: list[Accuracy]
    scales: list[Scale]
    has_teacher: bool
    warnings: list[str]
    missing: dict[str, str]


class Neighbour(Model):
    """A related label: its score in all, and at each scale from local to long range."""

    label: str
    score: float
    scales: list[float]


class Neighbours(Model):
    """What the teacher considers related to a label, nearest first."""

    label: str
    items: int
    neighbours: list[Neighbour]


class Problem(Model):
    """A refused request, as RFC 9457 describes it.

    Attributes:
        type: "about:blank", so the status says the kind. title: of the status. status: HTTP status.
        detail: what is wrong and how to fix it. field: of the request, where one is wrong.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"type": "about:blank", "title": "Unprocessable Content", "status": 422, "field": "bits",
                 "detail": "must be a whole number from 1 to 128, got 256."}
            ]
        }
    )  # fmt: skip

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    field: str = ""
