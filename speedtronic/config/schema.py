"""The whole configuration of a run, the rules that span sections, and values derived from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, SerializeAsAny, model_validator

from speedtronic.config.checkpoint import CheckpointSettings
from speedtronic.config.data import DataSettings, StdlibDataSettings
from speedtronic.config.distributed import DistributedSettings, SoloSettings
from speedtronic.config.evaluation import EvaluationSettings
from speedtronic.config.extras import ExtrasSettings
from speedtronic.config.groups import GROUPS, write_section
from speedtronic.config.logging import LoggingSettings
from speedtronic.config.model import GPTSettings, ModelSettings
from speedtronic.config.optimizer import AdamWSettings, OptimizerSettings
from speedtronic.config.precision import PrecisionSettings
from speedtronic.config.run import RunSettings
from speedtronic.config.scheduler import CosineSettings, SchedulerSettings
from speedtronic.config.trainer import TrainerSettings
from speedtronic.core.errors import ConfigError
from speedtronic.core.settings import PathText, Settings, redact

_USUAL_BLOCK = 128  # tokens; the default max_seq_len, for models that do not say theirs


class SpeedtronicConfig(Settings):
    """Everything a run is made from: one section a room, and switches that span rooms."""

    run: RunSettings = RunSettings()
    model: SerializeAsAny[ModelSettings] = GPTSettings()
    data: SerializeAsAny[DataSettings] = StdlibDataSettings()
    optimizer: SerializeAsAny[OptimizerSettings] = AdamWSettings()
    scheduler: SerializeAsAny[SchedulerSettings] = CosineSettings()
    precision: PrecisionSettings = PrecisionSettings()
    distributed: SerializeAsAny[DistributedSettings] = SoloSettings()
    trainer: TrainerSettings = TrainerSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    logging: LoggingSettings = LoggingSettings()
    extras: ExtrasSettings = ExtrasSettings()

    resume: bool = False
    """Whether to continue the run in the run folder, or start it when there is none."""
    resume_strict: bool = True
    """Whether resuming refuses changes that make another run of it."""
    overwrite: bool = False
    """Whether a run in the run folder may be moved aside for a fresh start."""
    init_from: PathText | None = None
    """Run folder, checkpoint or .safetensors whose weights a new run starts from."""
    compile: bool = False
    """Whether the model goes through ``torch.compile``."""
    gradient_checkpointing: bool | Annotated[int, Field(ge=1)] = False
    """Recompute activations in backward: true for every layer, n for every n-th."""
    tags: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Words to find a run by."""

    @model_validator(mode="after")
    def _check_across_sections(self) -> Self:
        longest = self.model.longest_block
        if longest is not None and self.effective_block_size > longest:
            raise ConfigError(
                f"data.block_size must be at most model.max_seq_len ({longest}), got"
                f" {self.effective_block_size}; try data.block_size={longest}"
                f" or model.max_seq_len={self.effective_block_size}"
            )
        if self.resume and self.overwrite:
            raise ConfigError(
                "resume and overwrite cannot both be true, got resume=true overwrite=true;"
                " resume continues the run in the folder, overwrite moves it aside: choose one"
            )
        return self

    @property
    def effective_block_size(self) -> int:
        """Tokens of one sample in force."""
        return self.data.block_size or self.model.longest_block or _USUAL_BLOCK

    @property
    def effective_data_seed(self) -> int:
        """Seed of the order of samples in force."""
        return self.run.seed if self.data.seed is None else self.data.seed

    @property
    def effective_max_steps(self) -> int:
        """Target of the run, in updates: data.max_steps, else run.max_steps."""
        return self.data.max_steps or self.run.max_steps

    def with_target(self, max_steps: int | None) -> Self:
        """Return a copy whose effective target is ``max_steps``, or this one's when None.

        Raises:
            ConfigError: ``max_steps`` is below 1.
        """
        if max_steps is None:
            return self
        data = self.data if self.data.max_steps is None else self.data.replace(max_steps=max_steps)
        return self.replace(run=self.run.replace(max_steps=max_steps), data=data)

    @classmethod
    def from_dict(
        cls, values: Mapping[str, Any], *, allow_targets: Sequence[str] | None = None
    ) -> SpeedtronicConfig:
        """Build a configuration from a plain dict; see ``load_config``."""
        return cls.load(values, allow_targets=allow_targets)

    @classmethod
    def from_yaml(
        cls, path: str | PathLike[str], *, allow_targets: Sequence[str] | None = None
    ) -> SpeedtronicConfig:
        """Build a configuration from a YAML or JSON file; see ``load_config``."""
        return cls.load(Path(path), allow_targets=allow_targets)

    @classmethod
    def load(cls, source: Any, *, allow_targets: Sequence[str] | None = None) -> SpeedtronicConfig:
        """Build a configuration from a file, dict, ``DictConfig`` or configuration."""
        from speedtronic.config.load import load_config

        return load_config(source, allow_targets=allow_targets)

    def to_dict(self, *, redact_secrets: bool = True) -> dict[str, Any]:
        """Return plain containers from which ``from_dict`` builds an equal configuration.

        Args:
            redact_secrets: Hide the values of keys such as ``token``. Nothing that is written to
                a file, log or message may hold them.
        """
        tree: dict[str, Any] = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if name in GROUPS:
                tree[name] = write_section(value)
            else:
                tree[name] = list(value) if isinstance(value, tuple) else value
        return redact(tree) if redact_secrets else tree

    def save(self, path: str | PathLike[str]) -> None:
        """Write the configuration as YAML, atomically, with secrets redacted."""
        from speedtronic.config.load import write_yaml

        write_yaml(self.to_dict(redact_secrets=True), path)
