"""The configuration as a person reads it: YAML, with what each null stands for beside it."""

from __future__ import annotations

import json
from typing import Any

from speedtronic.config.model import GPTSettings
from speedtronic.config.muon import HybridSettings
from speedtronic.config.scheduler import FactorScheduleSettings
from speedtronic.config.schema import SpeedtronicConfig


def derived_values(config: SpeedtronicConfig) -> dict[str, Any]:
    """Return the value in force of every key that may be null and is derived without the data."""
    target = config.effective_max_steps
    derived: dict[str, Any] = {
        "data.block_size": config.effective_block_size,
        "data.target_batch_size": config.data.update_batch_size,
        "data.accumulation_steps": config.data.accumulation_steps,
        "data.seed": config.effective_data_seed,
        "data.max_steps": target,
    }
    if isinstance(config.model, GPTSettings):
        derived["model.n_kv_head"] = config.model.num_kv_heads
        derived["model.d_ff"] = config.model.feedforward_width
        derived["model.head_width"] = config.model.head_width
    if isinstance(config.scheduler, FactorScheduleSettings):
        derived["scheduler.max_steps"] = config.scheduler.resolve_horizon(target)
        derived["scheduler.warmup_steps"] = config.scheduler.resolve_warmup(target)
        derived |= _momentum_steps(config.scheduler, target)
    if isinstance(config.optimizer, HybridSettings):
        derived["optimizer.muon_weight_decay"] = config.optimizer.weight_decay
    return derived


def _momentum_steps(scheduler: FactorScheduleSettings, target: int) -> dict[str, int]:
    """Return the lengths of the momentum's rise and fall, where it has them."""
    plan, horizon = scheduler.momentum_plan(), scheduler.resolve_horizon(target)
    steps = {}
    if plan.start is not None:
        steps["scheduler.momentum_warmup_steps"] = plan.resolve_warmup(horizon)
    if plan.end is not None:
        steps["scheduler.momentum_cooldown_steps"] = plan.resolve_cooldown(horizon)
    return steps


def describe_config(config: SpeedtronicConfig) -> str:
    """Return the configuration as YAML; a null has its derived value in a comment.

    Secrets are redacted. Values that no key holds (``accumulation_steps``) are comments as well.
    """
    derived = derived_values(config)
    lines: list[str] = []
    for key, value in config.to_dict(redact_secrets=True).items():
        if not isinstance(value, dict):
            lines.append(f"{key}: {_write(value)}")
            continue
        lines.append(f"{key}:")
        for name, inner in value.items():
            in_force = derived.pop(f"{key}.{name}", None)
            note = f" # {_write(in_force)}" if inner is None and in_force is not None else ""
            lines.append(f"  {name}: {_write(inner)}{note}")
        rest = [full for full in derived if full.startswith(f"{key}.")]
        lines += [f"  # {full.removeprefix(f'{key}.')}: {derived[full]}" for full in rest]
    return "\n".join(lines) + "\n"


def _write(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
