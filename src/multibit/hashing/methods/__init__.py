"""The methods that can be trained, by name."""

from __future__ import annotations

from multibit.config import Config, Settings, require_preset
from multibit.errors import ConfigError, require_known
from multibit.hashing.methods.base import Inputs, Lengths, Method
from multibit.hashing.methods.cca import CCA_ITQ, CCA_LSH
from multibit.hashing.methods.cmcl import CMCL, CMCL_POOLED
from multibit.hashing.methods.dech import DECH
from multibit.hashing.methods.dghdgh import DGHDGH
from multibit.hashing.methods.dimch import DIMCH, DIMCH_POOLED
from multibit.hashing.methods.dnph import DNPH
from multibit.hashing.methods.dpbe import DPBE
from multibit.hashing.methods.dpsih import DPSIH, DPSIH_POOLED, DPSIH_SINGLE
from multibit.hashing.methods.dssh import DSSH
from multibit.hashing.methods.dsth import DSTH
from multibit.hashing.methods.free import MULTIBIT_FREE
from multibit.hashing.methods.multibit import MULTIBIT_METHODS
from multibit.hashing.methods.rcmh import RCMH
from multibit.hashing.methods.vh_abl import VH_ABL

COMPARED_METHODS = (
    DSSH, DNPH, DECH, DIMCH, DIMCH_POOLED, DPBE, DSTH, DPSIH, DPSIH_SINGLE, DPSIH_POOLED, DGHDGH,
    CMCL, CMCL_POOLED, RCMH, VH_ABL, CCA_ITQ, CCA_LSH,
)  # fmt: skip
"""The compared methods in the order of the paper's main table, each with its variants, then classical references."""


class Methods(dict[str, Method]):
    """Methods by name."""

    def __repr__(self) -> str:
        return f"Methods({len(self)}: {', '.join(list(self)[:3])}, ...)"


METHODS = Methods({method.name: method for method in (*MULTIBIT_METHODS, MULTIBIT_FREE, *COMPARED_METHODS)})
"""Name -> method: MultiBit and its variants first."""

DEFAULT_METHOD = "multibit-plus"
"""The method of `train` when none is named, in Python and on the command line."""

FREE_METHOD = "multibit-free"
"""The method of `train` for items without labels."""

PAPER_METHOD = "multibit"
"""What a preset of one of the paper's data sets trains unless told otherwise."""


def find_method(name: str) -> Method:
    """The method with this name.

    Raises:
        ConfigError: unknown.
    """
    require_known("method", name, METHODS)
    return METHODS[name]


def choose_method(name: str | None = None, preset: str | None = None, *, labels: bool = True) -> Method:
    """The method of a name; without a name the paper's for a preset of its data sets, else the default.

    Args:
        name, preset: as for `train`. labels: whether any training item has a label.

    Raises:
        ConfigError: no such method or preset.

    Example:
        >>> choose_method().name, choose_method(preset="mirflickr").name
        ('multibit-plus', 'multibit')
        >>> choose_method(labels=False).name
        'multibit-free'
    """
    if preset is not None:
        require_preset(preset)
    if name is None and preset in (None, "default"):
        name = DEFAULT_METHOD if labels else FREE_METHOD
    return find_method(name or PAPER_METHOD)


def published(method: Method) -> Method:
    """The published method that this one is a variant of; itself when it is none.

    Example:
        >>> published(METHODS["dpsih-pooled"]).title
        'DPSIH'
    """
    return METHODS[method.variant_of] if method.variant_of else method


def pooled_variant(method: Method) -> Method:
    """The variant of a method that reads no tokens."""
    return next(each for each in METHODS.values() if each.inputs == "pooled" and published(each) is published(method))


def method_of(settings: Settings, name: str | None = None) -> Method:
    """The method that complete settings are for.

    Args:
        settings: of a training. name: of the method; it can be left out for settings of MultiBit.

    Raises:
        ConfigError: unknown, no name, or settings of another method.
    """
    if name is None and not isinstance(settings, Config):
        raise ConfigError(f"{type(settings).__name__} need the name of their method.", option="method")
    method = find_method(name or PAPER_METHOD)
    method.require_own(settings)
    return method


__all__ = [
    "DEFAULT_METHOD", "FREE_METHOD", "METHODS", "PAPER_METHOD", "Inputs", "Lengths", "Method", "choose_method",
    "find_method", "method_of", "pooled_variant", "published",
]  # fmt: skip
