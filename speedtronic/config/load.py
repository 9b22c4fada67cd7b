"""The way in: a ``DictConfig``, dict, YAML file or configuration becomes a checked configuration.

With the command line this is the only place that knows OmegaConf. Nothing of the user's is called
here; a ``_target_`` of theirs is imported, checked and kept as a ``Factory``. Settings classes are
called directly and not by ``hydra.utils.instantiate``, which would call whatever ``_target_`` it
meets inside a section, or partly, or with another name: here such a key is an unknown key.
"""

from __future__ import annotations

import difflib
import inspect
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from speedtronic.config import groups
from speedtronic.config.factory import Factory, check_arguments, named_parameters
from speedtronic.config.groups import GROUPS, Group
from speedtronic.config.model import RegisteredModelSettings
from speedtronic.config.overrides import SHORTHANDS as SHORTHANDS  # noqa: PLC0414 - re-exported
from speedtronic.config.run import RunSettings
from speedtronic.config.schema import SpeedtronicConfig
from speedtronic.config.targets import check_target
from speedtronic.core.errors import ConfigError, nearest
from speedtronic.core.files import write_atomic
from speedtronic.core.settings import Settings, show_value, unknown_key

_COMPOSITION_GROUPS = ("experiment", "debug", "sweep", "local")  # leave no key behind
_HOOKS = {
    "wandb": "speedtronic.metrics.wandb.WandbHook",
    "mlflow": "speedtronic.metrics.mlflow.MlflowHook",
}
FIRST_GIVEN = "speedtronic.first_given"
"""Resolver of ``conf/config.yaml``: the first of its arguments that is not null."""


def register_resolvers() -> None:
    """Teach OmegaConf the resolver that ``conf/config.yaml`` uses; importing this module does."""
    # OmegaConf 2.4 warns about the name that 2.3 wants; 2.3 has another function of the new name.
    register: Callable[..., None] = OmegaConf.register_resolver
    if "replace" not in inspect.signature(register).parameters:
        register = OmegaConf.register_new_resolver
    register(FIRST_GIVEN, _first_given, replace=True)


def _first_given(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


register_resolvers()


def load_config(source: Any, *, allow_targets: Sequence[str] | None = None) -> SpeedtronicConfig:
    """Check a configuration and build its settings.

    Args:
        source: A composed ``DictConfig``, a dict, the path of a YAML or JSON file, or a
            configuration, which is returned as it is.
        allow_targets: The names and packages that ``_target_`` may call beyond the usual ones. None
            takes ``extras.allow_targets`` of a ``DictConfig`` or dict, and nothing of a file:
            a file may be a stranger's. Give ``()`` for what comes from a saved run: in a dict or
            file that comes with a list, and in JSON, ``${`` is text and nothing is looked up.

    Raises:
        ConfigError: one line with key, rule, value and what to do.
    """
    if isinstance(source, SpeedtronicConfig):
        return source
    tree = _read_tree(source, is_saved=allow_targets is not None)
    if allow_targets is None:
        allow_targets = () if isinstance(source, str | PathLike) else _own_allow_list(tree)
    root = _merge_shorthands(tree)
    fields: dict[str, Any] = {}
    for key, value in root.items():
        if key in GROUPS:
            fields[key] = _build_section(GROUPS[key], value, allow_targets)
        elif key in SpeedtronicConfig.model_fields:
            fields[key] = value
        else:
            raise ConfigError(unknown_key("", key, value, _root_keys()))
    return SpeedtronicConfig(**fields)


def write_yaml(tree: Mapping[str, Any], path: str | PathLike[str]) -> None:
    """Write plain containers as a YAML file that ``load_config`` reads back, atomically."""
    write_atomic(path, OmegaConf.to_yaml(OmegaConf.create(escape(dict(tree)))))


def unknown_override(key: str, value: Any) -> str:
    """Return the line for a dotted key that no configuration has, with the nearest known key."""
    section, _, name = key.rpartition(".")
    if section in GROUPS:
        owners = [
            option
            for option in GROUPS[section].options()
            if name in _read_option(GROUPS[section], option)
        ]
        if owners:
            return (
                f"{key}: unknown key here, got {show_value(name, value)};"
                f" it belongs to {section}={', '.join(owners)}"
            )
        return unknown_key(section, name, value, known_keys(section))
    if not section:
        return unknown_key("", name, value, _root_keys())
    close = difflib.get_close_matches(key, [*_root_keys(), *_dotted_keys()], n=1, cutoff=0.5)
    advice = f"did you mean '{close[0]}'?" if close else "see --cfg job for all keys"
    return f"{key}: unknown key, got {show_value(name, value)}; {advice}"


def known_keys(section: str) -> list[str]:
    """Return every key that some choice of a section has."""
    found = set(GROUPS[section].default.model_fields)
    for option in GROUPS[section].options():
        found |= set(_read_option(GROUPS[section], option)) - {"_target_"}
    return sorted(found)


def _dotted_keys() -> Iterator[str]:
    for section in GROUPS:
        yield from (f"{section}.{key}" for key in known_keys(section))


def _root_keys() -> list[str]:
    return sorted({*SpeedtronicConfig.model_fields, *SHORTHANDS, *_COMPOSITION_GROUPS})


# Reading ------------------------------------------------------------------------------------------


def _read_tree(source: Any, *, is_saved: bool) -> dict[str, Any]:
    """Return plain containers; interpolations are resolved unless a saved run brought them."""
    if isinstance(source, str | PathLike):
        path = Path(source)
        if path.suffix == ".json":
            return _as_root(_read_json(path))
        container = _read_file(path)
        if is_saved:
            return _as_root(_unescape(OmegaConf.to_container(container, resolve=False)))
    elif isinstance(source, DictConfig):
        container = source.copy()
    elif isinstance(source, Mapping):
        if is_saved:
            return _as_root(_plain(_write_settings(source)))
        container = _wrap(source)
    else:
        raise ConfigError(
            f"configuration: must be a mapping or the path of a YAML file, got"
            f" {type(source).__name__}; give a dict"
        )
    if "hydra" in container:  # composed with return_hydra_config=True
        OmegaConf.set_struct(container, False)  # noqa: FBT003 - OmegaConf's signature
        del container["hydra"]
    return _resolve(container)


def _read_file(path: Path) -> DictConfig:
    container = read_yaml(path)
    if not isinstance(container, DictConfig):
        raise ConfigError(f"{path}: must hold a mapping of sections; give a configuration file")
    return container


def _read_json(path: Path) -> Any:
    """Return what a JSON file holds, as it is."""
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise _unreadable(path, error) from error
    except ValueError as error:
        raise ConfigError(f"{path}: is no valid JSON ({error}); correct the file") from error


def read_yaml(path: Path) -> DictConfig | ListConfig:
    """Read a YAML file, its interpolations unresolved.

    Raises:
        ConfigError: it cannot be read, or is no YAML of a mapping or list.
    """
    try:
        return OmegaConf.load(path)
    except OSError as error:
        raise _unreadable(path, error) from error
    except Exception as error:
        # PyYAML is no dependency of ours, so its errors are known by their package alone.
        if not type(error).__module__.startswith(("yaml", "omegaconf", "builtins")):
            raise
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path}: is no valid YAML ({reason}); correct the file") from error


def _unreadable(path: Path, error: OSError) -> ConfigError:
    reason = (error.strerror or str(error)).lower()
    return ConfigError(f"{path}: cannot be read ({reason}); give a YAML file")


def _wrap(values: Mapping[str, Any]) -> DictConfig:
    try:
        return OmegaConf.create(
            _write_settings(values, escaped=True), flags={"allow_objects": True}
        )
    except OmegaConfBaseException as error:
        raise ConfigError(_omegaconf_line(error)) from error


def _write_settings(values: Mapping[str, Any], *, escaped: bool = False) -> dict[str, Any]:
    """Return the root with settings objects in it written as sections."""
    root = dict(values)
    for key, value in root.items():
        if isinstance(value, Settings) and value.section:
            section = groups.write_section(value)
            root[key] = escape(section) if escaped else section
    return root


def _resolve(container: DictConfig) -> dict[str, Any]:
    try:
        tree = OmegaConf.to_container(container, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ConfigError(_omegaconf_line(error)) from error
    return _as_root(tree)


def _as_root(tree: Any) -> dict[str, Any]:
    if not isinstance(tree, dict):
        raise ConfigError("configuration: must be a mapping of sections; give a dict")
    return {str(key): value for key, value in tree.items()}


def _omegaconf_line(error: OmegaConfBaseException) -> str:
    key = error.full_key or "configuration"
    lines = str(error).splitlines() or [type(error).__name__]
    return f"{key}: {lines[0].rstrip('.')}; correct this key"


def escape(tree: Any) -> Any:
    """Return plain containers whose ``${`` are text for OmegaConf, no interpolation."""
    return _map_text(tree, lambda text: text.replace("${", "\\${"))


def _unescape(tree: Any) -> Any:
    return _map_text(tree, lambda text: text.replace("\\${", "${"))


def _plain(tree: Any) -> Any:
    return _map_text(tree, lambda text: text)


def _map_text(tree: Any, change: Callable[[str], str]) -> Any:
    if isinstance(tree, str):
        return change(tree)
    if isinstance(tree, Mapping):
        return {key: _map_text(value, change) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_map_text(item, change) for item in tree]
    return tree


# Root ---------------------------------------------------------------------------------------------


def _own_allow_list(tree: Mapping[str, Any]) -> tuple[str, ...]:
    extras = tree.get("extras")
    listed = extras.get("allow_targets") if isinstance(extras, Mapping) else None
    return tuple(str(entry) for entry in listed) if isinstance(listed, list) else ()


def _merge_shorthands(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Move the given root shorthands into ``run``."""
    root = {key: value for key, value in tree.items() if key not in SHORTHANDS}
    given = {key: tree[key] for key in SHORTHANDS if tree.get(key) is not None}
    if not given:
        return root
    run = root.get("run", {})
    if isinstance(run, Settings):
        run = groups.write_section(run)
    if not isinstance(run, Mapping):
        return root
    for key, value in given.items():
        # A composed configuration holds every key of run: only another value than the default
        # was given.
        inner = run.get(key, RunSettings.model_fields[key].default)
        if inner not in (value, RunSettings.model_fields[key].default):
            raise ConfigError(
                f"{key} and run.{key} must not differ, got {key}={show_value(key, value)}"
                f" run.{key}={show_value(key, inner)}; give one of them"
            )
    root["run"] = {**run, **given}
    return root


# Sections -----------------------------------------------------------------------------------------


def _build_section(group: Group, value: Any, allow: Sequence[str]) -> Settings:
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{group.name}: must be a section or the name of an option, got"
            f" {show_value(group.name, value)}; options are {', '.join(group.options())}"
        )
    section = {str(key): item for key, item in value.items()}
    name = section.pop("name", None) if group.name != "run" else None
    if name is not None:
        registered = _registered_model(group, name)
        if registered is not None:
            return _build_registered(registered, name, section, allow)
        section = _merge_option(group, name, section)
    target = section.pop("_target_", groups.target_of(group.default))
    if not isinstance(target, str) or not target.startswith(f"{groups.SETTINGS_PACKAGE}."):
        return _build_foreign(group, target, section, allow)
    if group.name == "logging" and isinstance(section.get("hooks"), list):
        hooks = enumerate(section["hooks"])
        section["hooks"] = [_build_hook(hook, at=at, allow=allow) for at, hook in hooks]
    return _find_class(group, target)(**section)


def _merge_option(group: Group, name: Any, section: dict[str, Any]) -> dict[str, Any]:
    if name not in group.options():
        close = nearest(str(name), group.options())
        advice = f"did you mean '{close}'?" if close else f"see conf/{group.name}"
        options = group.options()
        rule = options[0] if len(options) == 1 else f"one of {', '.join(options)}"
        raise ConfigError(f"{group.name}: must be {rule}, got {name!r}; {advice}")
    option = _read_option(group, name)
    target = section.get("_target_", option["_target_"])
    if target != option["_target_"]:
        raise ConfigError(
            f"{group.name}.name and {group.name}._target_ must agree, got name={name!r}"
            f" ({option['_target_']}) and _target_={target!r}; give one of them"
        )
    if not option.keys() - section.keys() and section != option:
        # Composed by Hydra: every key is there already, and the name would change nothing.
        raise ConfigError(
            f"{group.name}.name: has no effect beside a whole section, got {name!r};"
            f" write {group.name}={name}"
        )
    return {**option, **section}


def _read_option(group: Group, name: str) -> dict[str, Any]:
    return _resolve(_read_file(group.option_path(name)))


def _find_class(group: Group, target: str) -> type[Settings]:
    from speedtronic import config

    found = getattr(config, target.removeprefix(f"{groups.SETTINGS_PACKAGE}."), None)
    if groups.is_selectable(found, group):
        return found
    raise ConfigError(
        f"{group.name}._target_: must be a settings class of this section, got {target!r};"
        f" options are {', '.join(group.options())}"
    )


# The user's own code ------------------------------------------------------------------------------


def _build_foreign(
    group: Group, target: Any, section: dict[str, Any], allow: Sequence[str]
) -> Settings:
    key = f"{group.name}._target_"
    if group.foreign is None:
        raise ConfigError(
            f"{key}: must be {groups.target_of(group.default)}, got {target!r};"
            " a class of yours may stand in model, data, optimizer, scheduler and logging.hooks"
        )
    known = named_parameters(check_target(target, key=key, allow=allow))
    option = _composed_option(group, section)
    ours: dict[str, Any] = {}
    arguments: dict[str, Any] = {}
    dropped: list[str] = []
    for name, value in section.items():
        if name in group.own_keys and (group.name == "data" or name not in known):
            ours[name] = value
        elif name not in option or (name in known and value is not None):
            arguments[name] = value
        elif name not in known and value != option[name]:
            dropped.append(f"{group.name}.{name}={show_value(name, value)}")
    factory = _build_factory({"_target_": target, **arguments}, key=group.name, allow=allow)
    if dropped:
        warnings.warn(
            f"{', '.join(dropped)}: not used, {target} has no such parameter", stacklevel=2
        )
    return group.foreign(factory=factory, **ours)


def _composed_option(group: Group, section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the option of ``conf/`` that Hydra composed into a section, or nothing.

    ``model._target_=my_package.Net`` on the command line leaves all keys of ``conf/model`` in
    place, with the values of the option, of an experiment or preset, or of the user.
    """
    options = [_read_option(group, name) for name in group.options()]
    for option in options:
        option.pop("_target_")
    composed = [option for option in options if option.keys() <= section.keys()]
    return max(
        composed,
        key=lambda option: sum(section[key] == value for key, value in option.items()),
        default={},
    )


def _build_hook(hook: Any, *, at: int, allow: Sequence[str]) -> Factory:
    key = f"logging.hooks[{at}]"
    if isinstance(hook, str):
        hook = {"_target_": hook} if "." in hook else {"name": hook}
    if isinstance(hook, Mapping) and "_target_" in hook:
        return _build_factory(hook, key=key, allow=allow)
    name = hook.get("name") if isinstance(hook, Mapping) else hook
    if not isinstance(name, str) or name not in _HOOKS:
        raise ConfigError(
            f"{key}: must be {' or '.join(_HOOKS)} or have a _target_, got"
            f" {show_value(key, name)}; name a callable"
        )
    arguments = {entry: value for entry, value in hook.items() if entry != "name"}
    return _build_factory({"_target_": _HOOKS[name], **arguments}, key=key, allow=allow)


def _build_factory(call: Mapping[str, Any], *, key: str, allow: Sequence[str]) -> Factory:
    _check_calls(call, key=key, allow=allow)
    return Factory.from_call(call, allow=allow)


def _check_calls(value: Any, *, key: str, allow: Sequence[str]) -> None:
    """Check every ``_target_`` in a tree, and that its keywords are in its signature."""
    if isinstance(value, Mapping):
        if "_target_" in value:
            found = check_target(value["_target_"], key=f"{key}._target_", allow=allow)
            check_arguments(found, value, section=key)
        for name, item in value.items():
            _check_calls(item, key=f"{key}.{name}", allow=allow)
    elif isinstance(value, list | tuple):
        for at, item in enumerate(value):
            _check_calls(item, key=f"{key}[{at}]", allow=allow)


def _registered_model(group: Group, name: Any) -> type[Any] | None:
    """Return the class registered under a name that no option of ``conf/model`` has."""
    if group.name != "model" or not isinstance(name, str) or name in group.options():
        return None
    from speedtronic.models.registry import model_class

    try:
        return model_class(name)
    except (ConfigError, KeyError):
        return None


def _build_registered(
    found: type[Any], name: str, arguments: dict[str, Any], allow: Sequence[str]
) -> Settings:
    _check_calls(arguments, key="model", allow=allow)
    check_arguments(found, arguments, section="model")
    return RegisteredModelSettings(name=name, arguments=arguments)
