"""Which names a ``_target_`` may call, and importing them.

A configuration may come from a stranger's run folder, so the list is short, and it holds for the
object behind the name as well: ``my_package.os.system`` is the standard library's. Which of the
packages in the working directory are the user's own is in ``places``.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from speedtronic.config.places import (
    find_spec,
    is_own_module,
    is_own_package,
    is_own_spec,
    working_directory_on_path,
)
from speedtronic.core.errors import ConfigError, nearest

_OURS = "speedtronic"
# Components take plain values and give live objects. The other rooms (settings, which call what
# they hold, folders, the runtime) are never opened.
_COMPONENTS = tuple(
    f"{_OURS}.{room}" for room in ("models", "optim", "schedule", "data", "metrics")
)
_TORCH = ("torch.nn", "torch.optim")
_NAME = re.compile(r"(__main__|[A-Za-z]\w*|_[A-Za-z0-9]\w*)(\.([A-Za-z]\w*|_[A-Za-z0-9]\w*))+")


def check_target(target: Any, *, key: str, allow: Sequence[str]) -> Callable[..., Any]:
    """Return the object of a name that may be called.

    Args:
        target: Dotted name of a class or function.
        key: Where it stands in the configuration, for messages.
        allow: Names and packages of ``extras.allow_targets`` that hold here.

    Raises:
        ConfigError: the name may not be called or does not exist.
    """
    if not isinstance(target, str) or _NAME.fullmatch(target) is None:
        raise ConfigError(
            f"{key}: must be the dotted name of a class or function, got {target!r};"
            " write package.module.Name"
        )
    if _is_standard(target):
        raise _refusal(key, target, "is in the standard library, which is never called")
    if _is_within(target, (_OURS,)) and not _is_within(target, _COMPONENTS):
        raise _refusal(key, target, "is no component of speedtronic")
    if not _is_open(target, allow):
        raise _refusal(key, target, _unlisted())
    found, holder = _import(target, key=key, allow=allow)
    home = getattr(found, "__module__", None)
    if not callable(found) or isinstance(found, ModuleType) or not isinstance(home, str):
        raise ConfigError(f"{key}: must name a class or function, got {target!r}; name one in it")
    reason = _reason_against(found, holder, target=target, home=home, allow=allow)
    if reason:
        raise _refusal(key, target, reason)
    checked: Callable[..., Any] = found
    return checked


def import_target(target: str, *, key: str) -> Any:
    """Import the object of a dotted name, with the working directory searched first.

    Raises:
        ConfigError: it does not exist, or importing it fails.
    """
    return _import(target, key=key, allow=None)[0]


# The object behind the name -----------------------------------------------------------------------


def _reason_against(
    found: Any, holder: Any, *, target: str, home: str, allow: Sequence[str]
) -> str | None:
    """Return why an imported object may not be called, or None when it may."""
    if _is_standard(home):
        return f"is {home}'s, and the standard library is never called"
    if _is_within(home, (_OURS,)) and not _is_within(home, _COMPONENTS):
        return f"belongs to {home}, which is no component of speedtronic"
    if target in allow or _is_within(home, allow):
        return None
    if not _is_open_module(home):
        return f"belongs to {home} and {_unlisted()}"
    return _reason_against_kind(found, holder, home=home)


def _reason_against_kind(found: Any, holder: Any, *, home: str) -> str | None:
    is_class = inspect.isclass(found)
    if not isinstance(holder, ModuleType) or not (is_class or inspect.isfunction(found)):
        return "is no class or function of a module"
    if _is_within(home, _TORCH) and not is_class:
        return "is a function of torch, of which classes are called"
    if _is_within(home, (_OURS,)) and not (is_class or found.__name__.startswith("build_")):
        return "is a function of speedtronic that builds nothing"
    return None


def _is_standard(name: str) -> bool:
    return name.partition(".")[0] in (sys.stdlib_module_names | {"builtins"})


def _is_open(name: str, allow: Sequence[str]) -> bool:
    if _is_within(name, (*_COMPONENTS, *_TORCH, *allow)):
        return True
    top = name.partition(".")[0]
    return top != _OURS and is_own_package(top)


def _is_open_module(home: str) -> bool:
    if _is_within(home, (_OURS, "torch")):
        return _is_within(home, (*_COMPONENTS, *_TORCH))
    return is_own_package(home.partition(".")[0]) and is_own_module(home)


def _is_within(name: str, packages: Sequence[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


# Importing ----------------------------------------------------------------------------------------


def _import(target: str, *, key: str, allow: Sequence[str] | None) -> tuple[Any, Any]:
    """Return the object of a dotted name and what holds it.

    With an allow list, a module below a package here is imported only where it is the user's too.
    """
    parts = target.split(".")
    is_guarded = allow is not None and not _is_within(target, (*_COMPONENTS, *_TORCH, *allow))
    with working_directory_on_path():
        holder: Any = None
        found: Any = _import_module(parts[0], key=key, target=target)
        for count, part in enumerate(parts[1:], start=1):
            name = ".".join(parts[: count + 1])
            if not hasattr(found, part) and hasattr(found, "__path__"):
                spec = find_spec(name, found.__path__)
                if spec is not None and is_guarded and not is_own_spec(spec):
                    raise _refusal(key, target, f"belongs to {name} and {_unlisted()}")
                if spec is not None:
                    _import_module(name, key=key, target=target)
            if not hasattr(found, part):
                raise _no_such_name(found, name, key=key, target=target)
            holder, found = found, getattr(found, part)
    return found, holder


def _import_module(name: str, *, key: str, target: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        reason = f"{type(error).__name__}: {error}"
        advice = f"check the name and the working directory ({Path.cwd()})"
    except SyntaxError as error:
        reason = f"{error.msg}, {error.filename} line {error.lineno}"
        advice = "correct that file"
    raise ConfigError(f"{key}: {target!r} cannot be imported ({reason}); {advice}")


def _no_such_name(holder: Any, name: str, *, key: str, target: str) -> ConfigError:
    holder_name, _, part = name.rpartition(".")
    if _is_standard(part):
        reason = f"reaches for {part} of the standard library, which is never called"
        return _refusal(key, target, reason)
    close = nearest(part, [name for name in dir(holder) if not name.startswith("_")])
    advice = f"did you mean '{holder_name}.{close}'?" if close else "check the name"
    return ConfigError(f"{key}: {holder_name} has no {part!r}, got {target!r}; {advice}")


# Messages -----------------------------------------------------------------------------------------


def _unlisted() -> str:
    return (
        "is none of the components of speedtronic, torch.optim, torch.nn and the packages in the"
        f" working directory ({Path.cwd()})"
    )


def _refusal(key: str, target: str, reason: str) -> ConfigError:
    if "standard library" in reason:
        advice = "not even extras.allow_targets opens it; name a class of your own"
    elif "no component" in reason:
        rooms = ", ".join(_COMPONENTS)
        advice = f"not even extras.allow_targets opens it; components are in {rooms}"
    elif "builds nothing" in reason:
        advice = "name a class, or list it in extras.allow_targets"
    else:
        advice = f"to trust it, give extras.allow_targets=[{target}] on the command line"
    return ConfigError(f"{key}: {target!r} may not be called: it {reason}; {advice}")
