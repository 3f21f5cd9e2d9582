"""Classes of wrappers that are instances of the wrapped object's class too, and share its ``__dict__``."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Mapping
from types import MappingProxyType, MemberDescriptorType
from typing import Any
from weakref import WeakValueDictionary

__all__ = ["joined_class"]

_CLASSES: WeakValueDictionary[tuple[type, type], Any] = WeakValueDictionary()


def joined_class(
    wrapper: type,
    wrapped: type,
    own: tuple[str, ...],
    original: str,
    namespace: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """The class of all wrappers of class ``wrapper`` around objects of class ``wrapped``.

    Args:
        wrapper: Comes first among the base classes.
        wrapped: The class of the user's objects.
        own: The attributes that a wrapper keeps for itself; it shares all others with the user's object.
        original: The one of them that is the user's object.
        namespace: Further attributes of the class, if it is made now.
    """
    joined = _CLASSES.get((wrapper, wrapped))
    if joined is None:
        joined = _CLASSES[wrapper, wrapped] = _join(wrapper, wrapped, own, original, namespace)
    return joined


def _join(wrapper: type, wrapped: type, own: tuple[str, ...], original: str, namespace: Mapping[str, Any]) -> Any:
    # Slots take precedence over the shared __dict__, where the user's object may have an attribute of the same name.
    shared_slots = {
        name
        for base in wrapped.__mro__
        for name, value in vars(base).items()
        if isinstance(value, MemberDescriptorType) and name not in own
    }
    # A metaclass of the user's, which may register classes or need arguments, is not called; ABCMeta keeps caches.
    make = ABCMeta.__new__ if issubclass(type(wrapped), ABCMeta) else type.__new__
    bases = (wrapped,) if issubclass(wrapped, wrapper) else (wrapper, wrapped)
    contents = {
        **{name: _forwarded(name, original) for name in shared_slots},
        "__slots__": own,
        "__module__": wrapped.__module__,
        "__qualname__": wrapped.__qualname__,
        "__doc__": wrapped.__doc__,
        **namespace,
    }
    return make(type(wrapped), wrapped.__name__, bases, contents)


def _forwarded(name: str, original: str) -> property:
    """An attribute that the user's object keeps in a slot, outside of ``__dict__``."""
    return property(
        lambda self: getattr(getattr(self, original), name),
        lambda self, value: setattr(getattr(self, original), name, value),
        lambda self: delattr(getattr(self, original), name),
    )
