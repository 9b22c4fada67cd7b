"""Calls of the user's own code: named in the configuration, made when the run is built."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import Field, PrivateAttr

from speedtronic.config.targets import check_target, import_target
from speedtronic.core.errors import ConfigError
from speedtronic.core.settings import Settings, unknown_key

_POSITIONAL = "_args_"
_PARTIAL = "_partial_"
_CONTROL_KEYS = ("_target_", _POSITIONAL, _PARTIAL)


class Factory(Settings):
    """A class or function of the user's with its arguments, nested ``_target_`` included.

    ``load_config`` checks the names, and they are checked again when they are called; nothing is
    called before ``call``. One made in Python is code like any other: its names are not checked.
    """

    target: str
    """Dotted name of the class or function."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments; ``_args_`` are positional ones."""
    _allow: tuple[str, ...] | None = PrivateAttr(default=None)
    """What names may be called beyond the usual ones; None: made in Python."""

    @classmethod
    def from_call(cls, call: Mapping[str, Any], *, allow: Sequence[str]) -> Factory:
        """Make one from a mapping with a ``_target_``, whose names must hold whenever called."""
        arguments = {str(name): value for name, value in call.items() if name != "_target_"}
        factory = cls(target=call["_target_"], arguments=arguments)
        factory._allow = tuple(allow)
        return factory

    def resolve(self) -> Any:
        """Import the class or function.

        Raises:
            ConfigError: it may not be called.
        """
        return _find(self.target, key="_target_", allow=self._allow)

    def names(self, parameter: str) -> bool:
        """Return whether the signature has a parameter of this name."""
        return parameter in named_parameters(self.resolve())

    def is_event_function(self) -> bool:
        """Return whether the target itself takes (event, payload) and is no class to build."""
        target = self.resolve()
        parameters = named_parameters(target).values()
        required = [entry for entry in parameters if entry.default is inspect.Parameter.empty]
        return not self.arguments and inspect.isfunction(target) and len(required) == 2  # noqa: PLR2004 - event, payload

    def build_arguments(self, *, section: str) -> dict[str, Any]:
        """Return the keyword arguments with nested targets built."""
        return {
            name: build_nested(value, key=f"{section}.{name}", allow=self._allow)
            for name, value in self.arguments.items()
        }

    def call(self, *, section: str, offered: Mapping[str, Any]) -> Any:
        """Make the call.

        Args:
            section: Where the target stands, for messages.
            offered: Objects of the run, passed where the signature names them and the
                configuration gives nothing.

        Raises:
            ConfigError: the arguments do not fit the signature.
        """
        arguments = self.build_arguments(section=section)
        return call_checked(self.resolve(), arguments, section=section, offered=offered)


def build_nested(value: Any, *, key: str, allow: Sequence[str] | None) -> Any:
    """Return a value with every ``_target_`` inside it built, innermost first.

    Args:
        value: Plain containers.
        key: Where the value stands, for messages.
        allow: What may be called beyond the usual names; None: anything.
    """
    if isinstance(value, Mapping):
        built = {
            name: build_nested(item, key=f"{key}.{name}", allow=allow)
            for name, item in value.items()
        }
        if "_target_" not in value:
            return built
        target = _find(built.pop("_target_"), key=f"{key}._target_", allow=allow)
        if built.pop(_PARTIAL, False):
            return functools.partial(target, *built.pop(_POSITIONAL, ()), **built)
        return call_checked(target, built, section=key, offered={})
    if isinstance(value, list | tuple):
        return type(value)(
            build_nested(item, key=f"{key}[{at}]", allow=allow) for at, item in enumerate(value)
        )
    return value


def _find(target: str, *, key: str, allow: Sequence[str] | None) -> Any:
    if allow is None:
        return import_target(target, key=key)
    return check_target(target, key=key, allow=allow)


def call_checked(
    target: Callable[..., Any],
    arguments: Mapping[str, Any],
    *,
    section: str,
    offered: Mapping[str, Any],
) -> Any:
    """Call a target with its arguments and what its signature names of the offered objects.

    Raises:
        ConfigError: the arguments do not fit the signature.
    """
    known = list(named_parameters(target))
    positional = arguments.get(_POSITIONAL, ())
    keywords = {name: offered[name] for name in known[len(positional) :] if name in offered}
    keywords.update({name: arguments[name] for name in arguments if name != _POSITIONAL})
    signature = _signature(target)
    if signature is not None:
        try:
            signature.bind(*positional, **keywords)
        except TypeError as error:
            name = getattr(target, "__qualname__", str(target))
            raise ConfigError(
                f"{section}: {name}{_shorten(signature)} cannot be called: {error};"
                f" give it under {section}"
            ) from error
    return target(*positional, **keywords)


def check_arguments(target: Any, arguments: Mapping[str, Any], *, section: str) -> None:
    """Refuse keywords that a target's signature does not have.

    Raises:
        ConfigError: with the nearest parameter.
    """
    signature = _signature(target)
    if signature is None or any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values()
    ):
        return
    known = named_parameters(target)
    for name, value in arguments.items():
        if name not in known and name not in _CONTROL_KEYS:
            raise ConfigError(unknown_key(section, name, value, known))


def named_parameters(target: Any) -> dict[str, inspect.Parameter]:
    """Return the parameters of a target that a keyword can name."""
    signature = _signature(target)
    return {
        name: parameter
        for name, parameter in (signature.parameters if signature else {}).items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }


def _signature(target: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(target)
    except (TypeError, ValueError):  # some built-in callables have none
        return None


def _shorten(signature: inspect.Signature) -> str:
    return f"({', '.join(signature.parameters)})"
