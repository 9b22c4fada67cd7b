"""The mode of a model comes back module by module, whatever happens meanwhile."""

from __future__ import annotations

import pytest
from torch import nn

from speedtronic.core.modes import evaluation_mode


def test_every_module_is_in_evaluation_and_returns_to_its_own_mode() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Dropout())
    model[1].eval()
    with evaluation_mode(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == [True, True, False]


def test_the_modes_return_after_an_error() -> None:
    model = nn.Linear(1, 1)
    with pytest.raises(KeyError), evaluation_mode(model):
        raise KeyError
    assert model.training
