"""Short names of model classes."""

from __future__ import annotations

import re

import pytest
from torch import nn

from speedtronic.core.errors import ConfigError
from speedtronic.models import registry
from speedtronic.models.registry import model_class, register_model


@pytest.fixture(autouse=True)
def _names_of_this_test_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_CLASSES", {})


def test_a_registered_class_is_found_and_unchanged() -> None:
    @register_model("mine")
    class Mine(nn.Module):
        """A user's model."""

    assert model_class("mine") is Mine
    assert Mine.__name__ == "Mine"


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    register_model("my_model")(nn.Linear)
    message = "model.name must be a registered name, got 'my_modle'; did you mean 'my_model'?"
    with pytest.raises(ConfigError, match=re.escape(message)):
        model_class("my_modle")
    with pytest.raises(ConfigError, match=re.escape("got 'xyz'; register it with @register_model")):
        model_class("xyz")


def test_a_name_belongs_to_one_class() -> None:
    register_model("mine")(nn.Linear)
    register_model("mine")(nn.Linear)  # the same module imported again
    with pytest.raises(
        ConfigError, match=r"the name 'mine' belongs to .*Linear, got .*ReLU; choose"
    ):
        register_model("mine")(nn.ReLU)
    assert model_class("mine") is nn.Linear
