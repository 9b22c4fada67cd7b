"""Speedtronic: settings of every room, and the one way in, ``load_config``."""

from __future__ import annotations

from speedtronic.config.checkpoint import CheckpointSettings
from speedtronic.config.data import (
    DataSettings,
    ForeignDataSettings,
    StdlibDataSettings,
    SyntheticDataSettings,
    TextDataSettings,
    TokensDataSettings,
)
from speedtronic.config.distributed import DistributedSettings, SoloSettings
from speedtronic.config.evaluation import EvaluationSettings
from speedtronic.config.extras import ExtrasSettings
from speedtronic.config.factory import Factory
from speedtronic.config.load import load_config
from speedtronic.config.logging import LoggingSettings
from speedtronic.config.model import (
    ForeignModelSettings,
    GPTSettings,
    ModelSettings,
    RegisteredModelSettings,
)
from speedtronic.config.muon import MuonSettings, RoutingRuleSettings, TorchMuonSettings
from speedtronic.config.optimizer import (
    AdamWSettings,
    ForeignOptimizerSettings,
    OptimizerSettings,
)
from speedtronic.config.precision import PrecisionSettings, resolve_precision
from speedtronic.config.run import RunSettings
from speedtronic.config.scheduler import (
    ConstantSettings,
    CosineSettings,
    ForeignSchedulerSettings,
    LinearSettings,
    SchedulerSettings,
    WSDSettings,
)
from speedtronic.config.schema import SpeedtronicConfig
from speedtronic.config.trainer import TrainerSettings
from speedtronic.core.errors import ConfigError

__all__ = [
    "AdamWSettings",
    "CheckpointSettings",
    "ConfigError",
    "ConstantSettings",
    "CosineSettings",
    "DataSettings",
    "DistributedSettings",
    "EvaluationSettings",
    "ExtrasSettings",
    "Factory",
    "ForeignDataSettings",
    "ForeignModelSettings",
    "ForeignOptimizerSettings",
    "ForeignSchedulerSettings",
    "GPTSettings",
    "LinearSettings",
    "LoggingSettings",
    "ModelSettings",
    "MuonSettings",
    "OptimizerSettings",
    "PrecisionSettings",
    "RegisteredModelSettings",
    "RoutingRuleSettings",
    "RunSettings",
    "SchedulerSettings",
    "SoloSettings",
    "SpeedtronicConfig",
    "StdlibDataSettings",
    "SyntheticDataSettings",
    "TextDataSettings",
    "TokensDataSettings",
    "TorchMuonSettings",
    "TrainerSettings",
    "WSDSettings",
    "load_config",
    "resolve_precision",
]
