"""Whether a value from the network is of the type that the caller is promised."""

from __future__ import annotations

import types
import typing
from typing import Any, Literal, Union, get_args, get_origin


_HINTS: dict[type, dict[str, Any]] = {}


def hints(kind: type) -> dict[str, Any]:
    """The types of a class's fields; resolved once."""
    if kind not in _HINTS:
        _HINTS[kind] = typing.get_type_hints(kind)
    return _HINTS[kind]


def check(value: Any, kind: Any, where: str) -> None:
    """Raises `TypeError` where `value` is not of type `kind`. What a typed dict does not name may be there."""
    if not _fits(value, kind, where):
        raise TypeError(f"{where} is {type(value).__name__}, not {getattr(kind, '__name__', kind)}")


def _fits(value: Any, kind: Any, where: str) -> bool:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if kind is None or kind is type(None):
        return value is None
    if origin is Union or origin is types.UnionType:
        return any(_is(value, one, where) for one in arguments)
    if origin is Literal:
        return value in arguments
    if origin is dict:
        if isinstance(value, dict):
            for name, inner in value.items():
                check(inner, arguments[1], f"{where}.{name}")
        return isinstance(value, dict)
    if origin is list:
        if isinstance(value, list):
            for at, inner in enumerate(value):
                check(inner, arguments[0], f"{where}[{at}]")
        return isinstance(value, list)
    if typing.is_typeddict(kind):
        if isinstance(value, dict):
            for name, inner in hints(kind).items():
                if name in value:
                    check(value[name], inner, f"{where}.{name}")
                elif name in kind.__required_keys__:
                    raise TypeError(f"{where} lacks {name}")
        return isinstance(value, dict)
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)


def _is(value: Any, kind: Any, where: str) -> bool:
    try:
        return _fits(value, kind, where)
    except TypeError:
        return False
