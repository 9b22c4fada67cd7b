"""Where a module comes from: the user's own code in the working directory, or something installed.

Nothing is imported to find out, and the answer does not depend on what was imported before, but
for a name that Python would take from an import made elsewhere.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path

_INSTALLED = frozenset({"site-packages", "dist-packages"})
_ENVIRONMENT_MARK = "pyvenv.cfg"
_RUN_MARKS = ("config.json", "checkpoints")  # a run folder is data, and may be a stranger's


@contextmanager
def working_directory_on_path() -> Iterator[None]:
    """Let imports search the working directory first."""
    entry = str(Path.cwd())
    sys.path.insert(0, entry)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)


def is_own_package(top: str) -> bool:
    """Return whether a top-level name is code of the user's below the working directory."""
    if top == "__main__":
        return _is_own_program()
    with working_directory_on_path():
        spec = find_spec(top)
    if spec is None or not is_own_spec(spec):
        return False
    # Another package of the name, imported from elsewhere, is what an import would give.
    return top not in sys.modules or is_own_module(top)


def is_own_module(name: str) -> bool:
    """Return whether an imported module was read from a place of the user's own."""
    if name == "__main__":
        return _is_own_program()
    module = sys.modules.get(name)
    if module is None:
        return False
    file = getattr(module, "__file__", None)
    return _are_own([file] if file else [*getattr(module, "__path__", ())])


def is_own_spec(spec: ModuleSpec) -> bool:
    """Return whether a module that was found would be read from a place of the user's own."""
    if spec.has_location and spec.origin is not None:
        return _are_own([spec.origin])
    return _are_own([*(spec.submodule_search_locations or ())])


def find_spec(name: str, path: Sequence[str] | None = None) -> ModuleSpec | None:
    """Ask Python's finders for a module, and not what is imported already.

    Args:
        name: Full dotted name.
        path: ``__path__`` of the package that it is in; None for a top-level name.
    """
    for finder in sys.meta_path:
        ask = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = None if ask is None else ask(name, path, None)
        if spec is not None:
            return spec
    return None


def _is_own_program() -> bool:
    """Return whether the running program is a script of the user's, or a notebook."""
    program = sys.modules["__main__"]
    spec = getattr(program, "__spec__", None)
    if spec is not None and spec.name.partition(".")[0] == "speedtronic":  # python -m
        return False
    file = getattr(program, "__file__", None)
    return file is None or _are_own([file])


def _are_own(places: Sequence[str]) -> bool:
    return bool(places) and all(_is_own(Path(place).resolve()) for place in places)


def _is_own(place: Path) -> bool:
    here = Path.cwd().resolve()
    if not place.is_relative_to(here) or _INSTALLED & set(place.parts):
        return False
    for prefix in {Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()}:
        # A project may lie below /usr; what is installed there is told by its folder's name.
        if place.is_relative_to(prefix) and prefix not in here.parents:
            return False
    between = [folder for folder in (place, *place.parents) if folder.is_relative_to(here)]
    if any((folder / _ENVIRONMENT_MARK).is_file() for folder in between):
        return False
    return not any(
        all((folder / mark).exists() for mark in _RUN_MARKS) for folder in between if folder != here
    )
