"""Opening an index in a database by its URL."""

from __future__ import annotations

from multibit.errors import ConfigError
from multibit.search.remote.base import Facts, Store
from multibit.search.remote.index import RemoteIndex, no_index, require_complete
from multibit.search.remote.scattered import ScatteredStore
from multibit.search.remote.urls import Address, read_url


def open_remote(url: str, name: str = "image", *, partial: bool = False) -> RemoteIndex:
    """The index that a database holds.

    Args:
        url: such as "postgresql://user:password@host:5432/database" or "clickhouse://host:8123/database"; several
            servers are separated by commas. Options after a question mark: `table`, first part of the names of the
            tables ("multibit"); `timeout` of a query, in seconds (60); `partial=1`; for PostgreSQL `hnsw`, lengths
            at which a new index gets an HNSW index; for ClickHouse `cluster` and `secure=1`; others go to the client
            library.
        name: of the index, see `indices.index_names`.
        partial: answer without servers that are down; `SearchResult.lost` says which.

    Raises:
        ConfigError: an invalid URL, a wrong password. UnavailableError: the server cannot be reached.
        DataError: no such index, or an incomplete one. FormatError: written by a newer version.
        MissingExtraError: the client library is not installed.
    """
    store = open_store(url, name, partial=partial)
    facts = store.read()
    if facts is None:
        raise no_index(store.place)
    require_complete(facts, store.place)
    return RemoteIndex(store, facts)


def create_remote(
    url: str, name: str = "image", *, bits: int, model: str = "", modality: str = "", integer_ids: bool = False
) -> RemoteIndex:
    """A new, empty index in a database, in the place of one that is there.

    Args:
        url, name: as for `open_remote`. bits: length of the codes. model: fingerprint of the model that makes them.
        modality: of the items. integer_ids: whether the ids are integers; strings otherwise.

    Raises:
        ConfigError, UnavailableError, MissingExtraError: as `open_remote`.
    """
    store = open_store(url, name)
    facts = Facts(bits=bits, model=model, modality=modality, ids="integer" if integer_ids else "string")
    store.create(facts)
    return RemoteIndex(store, facts)


def open_store(url: str, name: str, *, partial: bool = False) -> Store:
    """The database of an index, without looking whether it is there.

    Raises:
        ConfigError: an invalid URL. MissingExtraError: the client library is not installed.
    """
    addresses = read_url(url)
    if len({(address.scheme, address.table) for address in addresses}) > 1:
        raise ConfigError("several servers must be of one kind, with the same tables.", option="url")
    wanted = partial or any(address.partial for address in addresses)
    stores = [_store(address, name, wanted) for address in addresses]
    return stores[0] if len(stores) == 1 else ScatteredStore(stores, wanted)


def _store(address: Address, name: str, partial: bool) -> Store:
    if address.scheme == "postgresql":
        from multibit.search.remote.postgresql import PostgresStore

        return PostgresStore(address, name)
    from multibit.search.remote.clickhouse import ClickHouseStore

    return ClickHouseStore(address, name, partial)
