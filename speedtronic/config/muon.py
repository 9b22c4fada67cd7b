"""Settings of the optimizers with Muon in them, and the rules that route parameters to it."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from speedtronic.config.optimizer import AdamWFields, Beta, resolve_caution
from speedtronic.core.errors import ConfigError
from speedtronic.core.settings import Settings, show_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import nn
    from torch.optim import Optimizer

    from speedtronic.optim.routing import Route


class RoutingRuleSettings(Settings):
    """Which algorithm trains the parameters of some names, and how."""

    section: ClassVar[str] = "optimizer.routing"

    match: Annotated[str, Field(min_length=1)]
    """Regular expression that is searched in the parameter's name."""
    algorithm: Literal["muon", "adamw"]
    """What trains them."""
    lr: Annotated[float, Field(gt=0)] | None = None
    """Their peak learning rate; null: that of the algorithm."""
    weight_decay: Annotated[float, Field(ge=0)] | None = None
    """Their weight decay; null: that of the algorithm."""
    row_splits: Annotated[tuple[int, ...], Field(strict=False)] | None = None
    """Rows of the independent blocks of a fused matrix; null: what the model declares."""


def _read_rule(rule: Any, *, at: int) -> RoutingRuleSettings:
    """Return one rule; what is wrong with it is said with its place in the list."""
    if isinstance(rule, RoutingRuleSettings):
        return rule
    key = f"{RoutingRuleSettings.section}[{at}]"
    if not isinstance(rule, dict):
        raise ConfigError(
            f"{key}: must be a mapping, got {show_value(key, rule)};"
            " write {match: regex, algorithm: muon}"
        )
    try:
        return RoutingRuleSettings(**rule)
    except ConfigError as error:
        raise ConfigError(
            str(error).replace(f"{RoutingRuleSettings.section}.", f"{key}.")
        ) from error


class HybridSettings(AdamWFields):
    """What every choice with Muon has: Muon for hidden matrices, AdamW for everything else."""

    lr: Annotated[float, Field(gt=0)] = 8e-3
    """Peak learning rate of AdamW's parameters: embeddings, head, norms, biases."""
    muon_lr: Annotated[float, Field(gt=0)] = 0.03
    """Peak learning rate of Muon's matrices."""
    muon_momentum: Beta = 0.95
    """Decay of Muon's average of gradients per update, in [0, 1)."""
    muon_nesterov: bool = True
    """Whether Muon's update looks one step ahead."""
    muon_ns_steps: Annotated[int, Field(ge=1, le=99)] = 5
    """Iterations of kj5; the other orthogonalisations have their own number."""
    muon_weight_decay: Annotated[float, Field(ge=0)] | None = None
    """Shrinkage of Muon's matrices, times muon_lr; null: weight_decay."""
    routing: Annotated[tuple[RoutingRuleSettings, ...], Field(strict=False)] = ()
    """Rules that go before the built-in ones; the first that matches a name decides."""

    @field_validator("routing", mode="before")
    @classmethod
    def _read_rules(cls, rules: Any) -> Any:
        if not isinstance(rules, list | tuple):
            return rules
        return tuple(_read_rule(rule, at=at) for at, rule in enumerate(rules))

    @abstractmethod
    def route(self, *, model: nn.Module) -> list[Route]:
        """Decide which algorithm trains which parameter of a model; the model stays as it is.

        Raises:
            ConfigError: a rule decides nothing, or cannot be followed.
        """

    def routing_records(self, routes: Sequence[Route]) -> list[dict[str, Any]]:
        """Return the table of routing.json, with the learning rates and decays in force."""
        from speedtronic.optim.routing_table import routing_records

        return routing_records(
            routes,
            lr=self.lr,
            weight_decay=self.weight_decay,
            muon_lr=self.muon_lr,
            muon_weight_decay=self._muon_values()["weight_decay"],
        )

    def _routes(self, model: nn.Module) -> list[Route]:
        from speedtronic.optim.routing import RoutingRule, route_parameters

        rules = [
            RoutingRule(**{name: getattr(rule, name) for name in type(rule).model_fields})
            for rule in self.routing
        ]
        return route_parameters(model, rules=rules, decay=self.decay)

    def _muon_values(self) -> dict[str, Any]:
        decay = self.weight_decay if self.muon_weight_decay is None else self.muon_weight_decay
        return {
            "lr": self.muon_lr,
            "momentum": self.muon_momentum,
            "nesterov": self.muon_nesterov,
            "ns_steps": self.muon_ns_steps,
            "weight_decay": decay,
        }

    def _adamw_values(self) -> dict[str, Any]:
        return {
            "lr": self.lr,
            "betas": self.betas,
            "eps": self.eps,
            "weight_decay": self.weight_decay,
            "cautious": resolve_caution(self.cautious, default="update"),
            "fused": self.fused,
        }


class MuonSettings(HybridSettings):
    """Our Muon, with AdamW for what is no hidden matrix."""

    scale: Literal["original", "match_rms_adamw", "spectral_unclamped"] = "original"
    """Factor on Muon's update by shape; the learning rate depends on the choice."""
    orthogonalization: Literal["kj5", "quintic5", "polar_express", "exact12"] = "kj5"
    """Iteration that makes the update orthogonal."""
    muon_plus: Literal[False, "row", "col", "row_col", "col_row"] = False
    """Which sides of Muon's update are evened out afterwards, in this order."""
    normuon: bool = False
    """Whether every row of Muon's update is divided by its size over time."""
    normuon_beta2: Beta = 0.95
    """Decay of that size per update, in [0, 1)."""

    @model_validator(mode="after")
    def _check_steps(self) -> Self:
        default = type(self).model_fields["muon_ns_steps"].default
        if self.orthogonalization != "kj5" and self.muon_ns_steps != default:
            raise ConfigError(
                f"optimizer.muon_ns_steps must be left at {default} with"
                f" optimizer.orthogonalization={self.orthogonalization}, which has its own number"
                f" of steps, got {self.muon_ns_steps}; use orthogonalization=kj5 to choose it"
            )
        return self

    def route(self, *, model: nn.Module) -> list[Route]:
        """Apply the configured rules, then the built-in ones."""
        return self._routes(model)

    def build(self, *, model: nn.Module, device: torch.device) -> Optimizer:
        """Build the hybrid of Muon and AdamW over the model's routes."""
        from speedtronic.optim.hybrid import build_hybrid

        muon = {
            **self._muon_values(),
            "scale": self.scale,
            "orthogonalization": self.orthogonalization,
            "ns_steps": self.muon_ns_steps if self.orthogonalization == "kj5" else None,
            "muon_plus": self.muon_plus or None,
            "normuon_beta2": self.normuon_beta2 if self.normuon else None,
            "cautious": resolve_caution(self.cautious, default="wd"),
        }
        routes = self.route(model=model)
        return build_hybrid(
            model, routes=routes, muon=muon, adamw=self._adamw_values(), device=device
        )


class TorchMuonSettings(HybridSettings):
    """``torch.optim.Muon`` with AdamW for what is no 2-D hidden matrix: a reference."""

    scale: Literal["original", "match_rms_adamw"] = "original"
    """Factor on Muon's update by shape; the learning rate depends on the choice."""

    @model_validator(mode="after")
    def _check_what_torch_lacks(self) -> Self:
        if self.cautious:
            raise ConfigError(
                "optimizer.cautious must be false with torch's Muon, which has no mask, got"
                f" {show_value('cautious', self.cautious)}; use optimizer=muon"
            )
        for at, rule in enumerate(self.routing):
            if rule.row_splits is not None:
                raise ConfigError(
                    f"optimizer.routing[{at}].row_splits must be null with torch's Muon, which"
                    f" takes a matrix in one piece, got {list(rule.row_splits)}; use optimizer=muon"
                )
        return self

    def route(self, *, model: nn.Module) -> list[Route]:
        """Apply the rules, then give AdamW what torch's Muon does not take."""
        from speedtronic.optim.torch_muon import routes_for_torch

        return routes_for_torch(self._routes(model))

    def build(self, *, model: nn.Module, device: torch.device) -> Optimizer:
        """Build the hybrid with torch's Muon; fused projections count as one matrix."""
        from speedtronic.optim.hybrid import build_hybrid

        return build_hybrid(
            model,
            routes=self.route(model=model),
            muon={**self._muon_values(), "scale": self.scale},
            adamw=self._adamw_values(),
            muon_kind="muon_torch",
            device=device,
        )
