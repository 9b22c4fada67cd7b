"""Short names for the model classes of the running program."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import nn

from speedtronic.core.errors import ConfigError, nearest

ModelClass = TypeVar("ModelClass", bound=type[nn.Module])

# Filled by the decorator when a user's module is imported, like every registry; read by name only.
_CLASSES: dict[str, type[nn.Module]] = {}


def register_model(name: str) -> Callable[[ModelClass], ModelClass]:
    """Give a model class a short name, for ``{"model": {"name": ...}}`` in a dict.

    Args:
        name: A name that no other class has; importing the same class again is fine.

    Raises:
        ConfigError: another class has the name.

    Example:
        >>> @register_model("tiny_mlp")
        ... class TinyMLP(nn.Module): ...
        >>> model_class("tiny_mlp").__name__
        'TinyMLP'
    """

    def register(cls: ModelClass) -> ModelClass:
        known = _CLASSES.get(name)
        if known is not None and _path(known) != _path(cls):
            raise ConfigError(
                f"register_model: the name {name!r} belongs to {_path(known)}, got {_path(cls)}; "
                "choose another name"
            )
        _CLASSES[name] = cls
        return cls

    return register


def model_class(name: str) -> type[nn.Module]:
    """Return the class registered under a name.

    Raises:
        ConfigError: no class has the name.
    """
    if name in _CLASSES:
        return _CLASSES[name]
    close = nearest(name, _CLASSES)
    advice = f"did you mean {close!r}?" if close else "register it with @register_model"
    raise ConfigError(f"model.name must be a registered name, got {name!r}; {advice}")


def _path(cls: type[nn.Module]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
