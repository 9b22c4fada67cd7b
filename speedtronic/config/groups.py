"""The sections of a configuration: what each may hold, and the named options of ``conf/``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from speedtronic.config.checkpoint import CheckpointSettings
from speedtronic.config.data import DataSettings, ForeignDataSettings, StdlibDataSettings
from speedtronic.config.distributed import DistributedSettings, SoloSettings
from speedtronic.config.evaluation import EvaluationSettings
from speedtronic.config.extras import ExtrasSettings
from speedtronic.config.factory import Factory
from speedtronic.config.logging import LoggingSettings
from speedtronic.config.model import (
    ForeignModelSettings,
    GPTSettings,
    ModelSettings,
    RegisteredModelSettings,
)
from speedtronic.config.optimizer import (
    AdamWSettings,
    ForeignOptimizerSettings,
    OptimizerSettings,
)
from speedtronic.config.precision import PrecisionSettings
from speedtronic.config.run import RunSettings
from speedtronic.config.scheduler import (
    CosineSettings,
    ForeignSchedulerSettings,
    SchedulerSettings,
)
from speedtronic.config.trainer import TrainerSettings
from speedtronic.core.errors import ConfigError
from speedtronic.core.settings import Settings

SETTINGS_PACKAGE = "speedtronic.config"
_INTERNAL = (
    ForeignModelSettings,
    ForeignDataSettings,
    ForeignOptimizerSettings,
    ForeignSchedulerSettings,
    RegisteredModelSettings,
)


@dataclass(frozen=True)
class Group:
    """One section of the configuration."""

    name: str
    """Key of the section and folder of its options below ``conf/``."""
    base: type[Settings]
    """What the section must hold."""
    default: type[Settings]
    """What it holds when nothing is named."""
    foreign: type[Settings] | None = None
    """What holds a ``_target_`` of the user's, where one may stand."""

    @property
    def own_keys(self) -> frozenset[str]:
        """Keys that stay ours beside a ``_target_`` of the user's."""
        fields = self.foreign.model_fields if self.foreign else {}
        return frozenset(fields) - {"factory"}

    @property
    def has_choice(self) -> bool:
        """Whether there is more than one class, so that a saved section must name its own."""
        return self.base is not self.default

    def options(self) -> list[str]:
        """Return the names of the options in ``conf/``."""
        return sorted(path.stem for path in (conf_folder() / self.name).glob("*.yaml"))

    def option_path(self, option: str) -> Path:
        """Return the file of an option."""
        return conf_folder() / self.name / f"{option}.yaml"


GROUPS = {
    group.name: group
    for group in (
        Group("model", ModelSettings, GPTSettings, ForeignModelSettings),
        Group("data", DataSettings, StdlibDataSettings, ForeignDataSettings),
        Group("optimizer", OptimizerSettings, AdamWSettings, ForeignOptimizerSettings),
        Group("scheduler", SchedulerSettings, CosineSettings, ForeignSchedulerSettings),
        Group("precision", PrecisionSettings, PrecisionSettings),
        Group("trainer", TrainerSettings, TrainerSettings),
        Group("checkpoint", CheckpointSettings, CheckpointSettings),
        Group("evaluation", EvaluationSettings, EvaluationSettings),
        Group("logging", LoggingSettings, LoggingSettings),
        Group("distributed", DistributedSettings, SoloSettings),
        Group("extras", ExtrasSettings, ExtrasSettings),
        Group("run", RunSettings, RunSettings),
    )
}


def conf_folder() -> Path:
    """Return the folder of the configuration tree: inside the installed package or beside it.

    Raises:
        ConfigError: it is in neither place.
    """
    package = Path(__file__).parents[1]
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "config.yaml").is_file():
            return folder
    raise ConfigError(f"no configuration tree beside {package}; install speedtronic again")


def target_of(cls: type[Settings]) -> str:
    """Return the ``_target_`` of a settings class."""
    return f"{SETTINGS_PACKAGE}.{cls.__name__}"


def is_selectable(found: Any, group: Group) -> TypeGuard[type[Settings]]:
    """Return whether a configuration may name this object as the section's class."""
    is_settings = isinstance(found, type) and issubclass(found, group.base)
    return (
        is_settings and found not in _INTERNAL and not getattr(found, "__abstractmethods__", None)
    )


def write_section(settings: Settings) -> dict[str, Any]:
    """Return one section as a configuration writes it, in plain containers.

    Loading the result gives equal settings.
    """
    group = GROUPS[settings.section]
    values = {name: _plain(getattr(settings, name)) for name in type(settings).model_fields}
    if isinstance(settings, RegisteredModelSettings):
        return {"name": values["name"], **values["arguments"]}
    if group.foreign is not None and isinstance(settings, group.foreign):
        call = values.pop("factory")
        fields = group.foreign.model_fields
        # A key that the target has too is the target's, and ours then stands at its default.
        ours = {
            name: value
            for name, value in values.items()
            if group.name == "data" or value != fields[name].default
        }
        return {**call, **ours}
    return {"_target_": target_of(type(settings)), **values} if group.has_choice else values


def _plain(value: Any) -> Any:
    if isinstance(value, Factory):
        return {"_target_": value.target, **_plain(value.arguments)}
    if isinstance(value, Settings):
        return {name: _plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
