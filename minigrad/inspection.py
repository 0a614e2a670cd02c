"""Inspection: what the backend in use can do, as the standard's ``__array_namespace_info__()`` tells it.

The chapter of the standard: https://data-apis.org/array-api/latest/API_specification/inspection.html
"""

from __future__ import annotations

from typing import Any

from . import backend

__all__ = [
    "__array_namespace_info__",
]  # fmt: skip


class __array_namespace_info__:
    """Capabilities, devices and dtypes of the backend in use (its library's answers). No derivative: not an array.

    >>> info = mg.__array_namespace_info__()
    >>> info.devices(), list(info.dtypes(kind="real floating"))
    (('cpu',), ['float32', 'float64'])
    """

    def __init__(self) -> None:
        self._info = backend.current().xp.__array_namespace_info__()

    def capabilities(self) -> dict[str, Any]:
        """Whether boolean indexing and data-dependent shapes work, and the largest number of axes."""
        result: dict[str, Any] = self._info.capabilities()
        return result

    def default_device(self) -> Any:
        """The device where new arrays are made."""
        chosen = backend.current().device
        return self._info.default_device() if chosen is None else chosen

    def devices(self) -> tuple[Any, ...]:
        """The devices that the library sees."""
        return tuple(self._info.devices())

    def default_dtypes(self, *, device: Any = None) -> dict[str, Any]:
        """The dtypes that new arrays have unless told otherwise."""
        result: dict[str, Any] = self._info.default_dtypes(device=device)
        return result

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, Any]:
        """The standard's dtypes that the library has, by name."""
        result: dict[str, Any] = self._info.dtypes(device=device, kind=kind)
        return result
