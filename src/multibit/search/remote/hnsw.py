"""HNSW indices of pgvector in PostgreSQL: their names, their statements, and the errors where they are not there."""

from __future__ import annotations

from collections.abc import Sequence

from multibit.errors import ConfigError

EXTENSION = "vector"  # name of pgvector
OLDEST = (0, 8)  # has iterative scans, without which a filter loses hits
MOST_CANDIDATES = 1000
"""Largest `ef_search` that pgvector takes."""

VERSION = "SELECT coalesce(installed_version, default_version) FROM pg_available_extensions WHERE name = %s"
INDICES = (
    "SELECT relname FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid "
    "WHERE indrelid = to_regclass(%s) AND indisvalid"
)


def hnsw_name(table: str, bits: int) -> str:
    """Name of the index at a length.

    Example:
        >>> hnsw_name("multibit_image", 64)
        'multibit_image_hnsw_64'
    """
    return f"{table}_hnsw_{bits}"


def prefix(bits: int, whole: int) -> str:
    """The first bits of a stored code; an index is used where a statement repeats its expression.

    Example:
        >>> prefix(128, 128), prefix(64, 128)
        ('code', 'code::bit(64)')
    """
    return "code" if bits == whole else f"code::bit({bits})"


def creation(table: str, bits: int, whole: int) -> str:
    """The statement that builds an index, where it is not there."""
    expression = prefix(bits, whole)
    return f"CREATE INDEX IF NOT EXISTS {hnsw_name(table, bits)} ON {table} USING hnsw (({expression}) bit_hamming_ops)"


def scan_settings(candidates: int) -> dict[str, str]:
    """Settings of a search: a scan goes on where a filter leaves too few hits, in an order that we sort again."""
    return {"hnsw.ef_search": str(candidates), "hnsw.iterative_scan": "relaxed_order"}


def require_lengths(lengths: Sequence[int], whole: int) -> None:
    """Refuse indices at lengths that the codes do not have.

    Raises:
        ConfigError: names the length.
    """
    for bits in lengths:
        if bits > whole:
            problem = f"hnsw={bits} is longer than the codes, which have {whole} bits."
            raise ConfigError(problem, option="url", hint=f"Name lengths from 1 to {whole}.")


def require_version(version: str | None, place: str) -> None:
    """Refuse a server without pgvector, or with an older one.

    Args:
        version: that is installed in the database, or would be; None where the server does not have it. place: of the
            database, for errors.

    Raises:
        ConfigError: it is absent or older.
    """
    if version is None:
        raise ConfigError(
            f"{place}: an HNSW index needs pgvector, which this server does not have.",
            option="url",
            hint="Install pgvector 0.8 or newer on the server, or leave out hnsw.",
        )
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < OLDEST:
        raise ConfigError(
            f"{place}: need pgvector 0.8 or newer for an HNSW index, found {version}.",
            option="url",
            hint="Install it on the server, then run: ALTER EXTENSION vector UPDATE",
        )


def require_index(names: Sequence[str], table: str, bits: int, place: str) -> None:
    """Refuse an approximate search at a length without an index.

    Args:
        names: of all indices of the table.

    Raises:
        ConfigError: says which lengths have one.
    """
    table = table.lower()  # PostgreSQL does the same with every name
    if hnsw_name(table, bits) in names:
        return
    start = hnsw_name(table, 0)[:-1]
    lengths = sorted(
        int(name[len(start) :]) for name in names if name.startswith(start) and name[len(start) :].isdigit()
    )
    others = f"only at {', '.join(map(str, lengths))}" if lengths else "at no length"
    raise ConfigError(
        f"{place}: has no HNSW index at {bits} bits, {others}.",
        option="ef_search",
        hint=f"Load it again with ?hnsw={bits} in the URL, or search exactly.",
    )
