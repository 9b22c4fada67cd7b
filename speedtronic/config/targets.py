"""Which names a ``_target_`` may call, and importing them.

A configuration may come from a stranger's run folder, so the list is short, and it holds for the
object behind the name as well: ``my_package.os.system`` is the standard library's.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from speedtronic.core.errors import ConfigError, nearest

_OURS = "speedtronic"
_OPEN_PACKAGES = (_OURS, "torch.optim", "torch.nn")
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
    if not _is_open(target, allow):
        raise _refusal(key, target, _unlisted())
    found = import_target(target, key=key)
    home = getattr(found, "__module__", None)
    if not callable(found) or isinstance(found, ModuleType) or not isinstance(home, str):
        raise ConfigError(f"{key}: must name a class or function, got {target!r}; name one in it")
    if _is_standard(home):
        raise _refusal(key, target, f"is {home}'s, and the standard library is never called")
    if target not in allow and not _is_open(home, allow):
        raise _refusal(key, target, f"belongs to {home} and {_unlisted()}")
    if _is_within(home, _OURS) and not _is_component(found):
        raise _refusal(key, target, "is a function of speedtronic that builds nothing")
    checked: Callable[..., Any] = found
    return checked


def import_target(target: str, *, key: str) -> Any:
    """Import the object of a dotted name, with the working directory searched first.

    Raises:
        ConfigError: it does not exist, or importing it fails.
    """
    parts = target.split(".")
    with _working_directory_on_path():
        found: Any = _import_module(parts[0], key=key, target=target)
        for count, part in enumerate(parts[1:], start=1):
            holder = ".".join(parts[:count])
            if not hasattr(found, part) and hasattr(found, "__path__"):
                name = f"{holder}.{part}"
                if importlib.util.find_spec(name) is not None:
                    _import_module(name, key=key, target=target)
            if not hasattr(found, part):
                raise _no_such_name(found, holder, part, key=key, target=target)
            found = getattr(found, part)
    return found


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


def _no_such_name(
    holder: Any, holder_name: str, part: str, *, key: str, target: str
) -> ConfigError:
    if _is_standard(part):
        reason = f"reaches for {part} of the standard library, which is never called"
        return _refusal(key, target, reason)
    close = nearest(part, [name for name in dir(holder) if not name.startswith("_")])
    advice = f"did you mean '{holder_name}.{close}'?" if close else "check the name"
    return ConfigError(f"{key}: {holder_name} has no {part!r}, got {target!r}; {advice}")


@contextmanager
def _working_directory_on_path() -> Iterator[None]:
    entry = str(Path.cwd())
    sys.path.insert(0, entry)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)


def _is_standard(name: str) -> bool:
    return name.partition(".")[0] in (sys.stdlib_module_names | {"builtins"})


def _is_open(name: str, allow: Sequence[str]) -> bool:
    listed = any(_is_within(name, entry) for entry in (*_OPEN_PACKAGES, *allow))
    return listed or _is_below_working_directory(name.partition(".")[0])


def _is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def _is_below_working_directory(top: str) -> bool:
    here = Path.cwd().resolve()
    module = sys.modules.get(top)
    if module is None:
        return (here / f"{top}.py").is_file() or (here / top).is_dir()
    # Where it really came from: an installed package may share its name with a folder here.
    file = getattr(module, "__file__", None)
    places = [file] if file else list(getattr(module, "__path__", [here]))
    return any(Path(str(place)).resolve().is_relative_to(here) for place in places)


def _is_component(found: Any) -> bool:
    return inspect.isclass(found) or str(getattr(found, "__name__", "")).startswith("build_")


def _unlisted() -> str:
    return (
        "is none of speedtronic, torch.optim, torch.nn and the packages in the working directory"
        f" ({Path.cwd()})"
    )


def _refusal(key: str, target: str, reason: str) -> ConfigError:
    if "standard library" in reason:
        advice = "not even extras.allow_targets opens it; name a class of your own"
    elif "builds nothing" in reason:
        advice = "name a class, or list it in extras.allow_targets"
    else:
        advice = f"to trust it, give extras.allow_targets=[{target}] on the command line"
    return ConfigError(f"{key}: {target!r} may not be called: it {reason}; {advice}")
