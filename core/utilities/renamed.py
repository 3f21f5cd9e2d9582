"""Former names of methods and attributes, which work for one minor version: see "Versions" in docs/plugins.md."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

__all__ = ["Renaming"]


class Renaming:
    """A base class that lets methods and attributes be renamed without breaking derived classes.

    ::

        class Strategy(Renaming, renamed={"reduce_all": "all_reduce"}): ...

    A derived class that defines ``reduce_all`` defines ``all_reduce``, and ``super().reduce_all()``,
    ``strategy.reduce_all()`` and ``strategy.reduce_all = ...`` mean it; each of them is a :class:`FutureWarning` that
    says so. A class that defines both names works with both versions of the base class, and gets no warning.
    """

    _former: ClassVar[Mapping[str, str]] = MappingProxyType({})

    def __init_subclass__(cls, *, renamed: Mapping[str, str] = MappingProxyType({}), **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if renamed:
            cls._former = MappingProxyType({**cls._former, **renamed})
        # At each class, so that super() reaches the next one by either name.
        for old, new in cls._former.items():
            own = vars(cls)
            if old in own and new not in own:
                _warn_of_definition(cls, old, new)
                setattr(cls, new, own[old])
            if new in own or old in renamed:
                setattr(cls, old, _FormerName(old, new, inspect.getattr_static(cls, new)))


class _FormerName:
    """Stands for the attribute ``new`` of the class that it is in, under the name ``old``."""

    def __init__(self, old: str, new: str, value: Any) -> None:
        self._old, self._new, self._value = old, new, value

    def __get__(self, instance: Any, owner: type[Any]) -> Any:
        self._warn(owner)
        if hasattr(type(self._value), "__get__"):
            return self._value.__get__(instance, owner)
        return getattr(owner if instance is None else instance, self._new)

    def __set__(self, instance: Any, value: Any) -> None:
        self._warn(type(instance))
        setattr(instance, self._new, value)

    def _warn(self, owner: type[Any]) -> None:
        text = f"{owner.__name__}.{self._old} is now called {self._new}: use this name. {_UNTIL}"
        warnings.warn(text, FutureWarning, stacklevel=3)


_UNTIL = "The former name works until the next minor version of torch-hal."


def _warn_of_definition(cls: type[Any], old: str, new: str) -> None:
    value = getattr(vars(cls)[old], "__func__", vars(cls)[old])
    code = getattr(value, "__code__", None)
    file = getattr(sys.modules.get(cls.__module__), "__file__", None) or "<unknown>"
    text = f"{cls.__module__}.{cls.__qualname__} defines {old}, which is now called {new}: rename it. {_UNTIL}"
    file, line = (file, 1) if code is None else (code.co_filename, code.co_firstlineno)
    warnings.warn_explicit(text, FutureWarning, file, line, module=cls.__module__)
