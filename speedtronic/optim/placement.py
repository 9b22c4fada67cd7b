"""Where every parameter of a model hangs: the facts that routing asks, and no decision."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from speedtronic.core.errors import ConfigError

EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED_CONVOLUTIONS = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
LOW_RANK_NAMES = frozenset(
    {"lora_A", "lora_B", "lora_down", "lora_up", "lora_embedding_A", "lora_embedding_B"}
)


@dataclass(frozen=True, kw_only=True)
class Place:
    """One module that owns a parameter, and under which name."""

    path: str
    """Of the owning module; empty for the model itself."""
    attribute: str
    """Name of the parameter in that module."""
    lineage: tuple[nn.Module, ...]
    """The owning module first, the model last."""

    @property
    def owner(self) -> nn.Module:
        """The module that holds the parameter."""
        return self.lineage[0]

    @property
    def name(self) -> str:
        """Full name of the parameter, as in ``named_parameters``."""
        return f"{self.path}.{self.attribute}" if self.path else self.attribute

    @property
    def leaf(self) -> str:
        """What the parameter is called: its module's name for a ``weight``, else its own."""
        return last_component(self.path) if self.attribute == "weight" else self.attribute


@dataclass(frozen=True, kw_only=True)
class PlacedParameter:
    """A parameter with every place that owns it, several where it is tied."""

    parameter: nn.Parameter
    places: tuple[Place, ...]

    @property
    def name(self) -> str:
        """The first name, which ``named_parameters`` gives."""
        return self.places[0].name

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions."""
        return tuple(self.parameter.shape)

    @property
    def leaves(self) -> list[str]:
        """What the parameter is called, in every place."""
        return [place.leaf for place in self.places]


def place_parameters(model: nn.Module) -> list[PlacedParameter]:
    """List every parameter of a model once, frozen ones too, in the order of their first names.

    Raises:
        ConfigError: a parameter of a lazy module has no shape yet.
    """
    modules = dict(model.named_modules())
    parameters: dict[int, nn.Parameter] = {}
    places: dict[int, list[Place]] = {}
    for path, module in modules.items():
        lineage = (module, *ancestors(path, modules))
        for attribute, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            place = Place(path=path, attribute=attribute, lineage=lineage)
            _check_is_initialised(place.name, parameter)
            parameters[id(parameter)] = parameter
            places.setdefault(id(parameter), []).append(place)
    return [
        PlacedParameter(parameter=parameter, places=tuple(places[key]))
        for key, parameter in parameters.items()
    ]


def ancestors(path: str, modules: dict[str, nn.Module]) -> list[nn.Module]:
    """Return the modules that hold the one at ``path``, the nearest first."""
    parts = path.split(".") if path else []
    return [modules[".".join(parts[:length])] for length in reversed(range(len(parts)))]


def last_component(path: str) -> str:
    """Return what stands after the last dot."""
    return path.rpartition(".")[2]


def _check_is_initialised(name: str, parameter: nn.Parameter) -> None:
    if isinstance(parameter, nn.UninitializedParameter):
        raise ConfigError(
            f"model must have a shape for every parameter, got {name} of a lazy module without "
            "one; run one batch through the model first"
        )
