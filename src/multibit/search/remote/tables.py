"""The tables of an index in ClickHouse: on one server, or replicated and distributed over a cluster."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from multibit.errors import ConfigError
from multibit.search.remote.words import Word

FACTS = "(name String, facts String, version UInt64, deleted UInt8 DEFAULT 0)"


@dataclass(frozen=True)
class Tables:
    """Names and statements.

    Attributes:
        facts: table of what is stored about indices. items: table of this index, which is searched and written.
        cluster: name of the cluster; "" for one server.

    Raises:
        ConfigError: an invalid name of a cluster.
    """

    facts: str
    items: str
    cluster: str = ""

    def __post_init__(self) -> None:
        if self.cluster and not re.fullmatch("[A-Za-z_][A-Za-z0-9_-]{0,63}", self.cluster):
            raise ConfigError(f"cluster must be the name of one, got {self.cluster!r}.", option="url")

    @property
    def local(self) -> str:
        """Table with the items of one server of a cluster."""
        return f"{self.items}_local" if self.cluster else self.items

    @property
    def _everywhere(self) -> str:
        return f" ON CLUSTER '{self.cluster}'" if self.cluster else ""

    def _engine(self, order: str, shared: bool) -> str:
        """A table that keeps the newest version; on a cluster replicated in a shard, or (`shared`) on all servers."""
        versions = "version, deleted"
        if not self.cluster:
            return f"ReplacingMergeTree({versions}) ORDER BY {order}"
        home, replica = ("all", "{shard}-{replica}") if shared else ("{shard}", "{replica}")
        path = f"/clickhouse/tables/{home}/{{database}}/{{table}}/{{uuid}}"
        return f"ReplicatedReplacingMergeTree('{path}', '{replica}', {versions}) ORDER BY {order}"

    def create(self, ids: str, words: Sequence[Word]) -> list[str]:
        """Create the tables.

        Args:
            ids: kind of the ids. words: of the codes.
        """
        kind = "String" if ids == "string" else "Int64"
        columns = ", ".join(f"{word.name} {word.type}" for word in words)
        everywhere = self._everywhere
        statements = [
            f"CREATE TABLE IF NOT EXISTS {self.facts}{everywhere} {FACTS} ENGINE = {self._engine('name', True)}",
            f"CREATE TABLE {self.local}{everywhere} (id {kind}, age Int64, {columns}, version UInt64, "
            f"deleted UInt8 DEFAULT 0) ENGINE = {self._engine('id', False)}",
        ]
        if self.cluster:
            home = f"Distributed('{self.cluster}', currentDatabase(), {self.local}, cityHash64(id))"
            statements.append(f"CREATE TABLE {self.items}{everywhere} AS {self.local} ENGINE = {home}")
        return statements

    def drop(self) -> list[str]:
        """Remove the tables of the index."""
        names = dict.fromkeys((self.items, self.local))
        return [f"DROP TABLE IF EXISTS {name}{self._everywhere}" for name in names]

    def add(self, column: str) -> list[str]:
        """Add a column."""
        names = dict.fromkeys((self.local, self.items))
        return [f"ALTER TABLE {name}{self._everywhere} ADD COLUMN IF NOT EXISTS {column}" for name in names]

    def optimize(self) -> str:
        """Merge all parts."""
        return f"OPTIMIZE TABLE {self.local}{self._everywhere} FINAL"

    def shards(self) -> tuple[str, str]:
        """All shards of the cluster, and those that answer and have the table: parameter `database`.

        A search that goes on without a shard does so too where a shard has lost its table.
        """
        return (
            f"SELECT DISTINCT shard_num AS shard FROM system.clusters WHERE cluster = '{self.cluster}'",
            f"SELECT DISTINCT shardNum() AS shard FROM cluster('{self.cluster}', system.tables) "
            f"WHERE database = {{database:String}} AND name = '{self.local}'",
        )
