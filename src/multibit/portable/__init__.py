"""Portable models: a run as a folder that encodes queries without torch."""

from multibit.portable.model import PortableModel, PortableRun

__all__ = ["PortableModel", "PortableRun"]
