"""Seeding and the round trip of the random state."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys

import numpy as np
import pytest
import torch

from speedtronic.core.seeding import (
    preserve_rng,
    restore_rng,
    rng_state,
    seed_everything,
    set_rng_state,
    snapshot_rng,
)


@pytest.fixture(autouse=True)
def _leave_the_process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", os.environ.get("PYTHONHASHSEED", "random"))


def draw_numpy() -> float:
    return float(np.random.random())  # noqa: NPY002 - the global state is what is tested


def draw_numpy_normal() -> float:
    return float(np.random.standard_normal())  # noqa: NPY002 - leaves state of its own behind


def draw() -> list[float]:
    return [random.random(), draw_numpy(), float(torch.rand(()))]


@pytest.mark.parametrize("seed", [0, 1234, 2**32 + 5])
def test_the_same_seed_gives_the_same_numbers_from_python_numpy_and_torch(seed: int) -> None:
    seed_everything(seed)
    first = draw()
    draw()
    seed_everything(seed)
    assert draw() == first


def test_seed_values_are_those_of_each_library() -> None:
    seed_everything(7)
    assert random.random() == random.Random(7).random()
    assert draw_numpy() == np.random.RandomState(7).random_sample()
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(7)))


def test_zero_is_a_seed_and_differs_from_one() -> None:
    seed_everything(0)
    first = draw()
    seed_everything(1)
    assert all(a != b for a, b in zip(first, draw(), strict=True))


def test_hash_seed_is_put_into_the_environment() -> None:
    seed_everything(1234)
    assert os.environ["PYTHONHASHSEED"] == "1234"


def test_a_seed_of_more_than_32_bits_leaves_a_hash_seed_that_python_starts_with() -> None:
    seed_everything(2**32 + 5)
    assert os.environ["PYTHONHASHSEED"] == "5"
    assert subprocess.run([sys.executable, "-c", ""], check=False).returncode == 0


def test_a_failure_of_numpy_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_seed: int) -> None:
        raise RuntimeError("no random numbers here")

    monkeypatch.setattr(np.random, "seed", fail)
    seed_everything(5)
    assert torch.equal(torch.rand(2), torch.rand(2, generator=torch.Generator().manual_seed(5)))


def test_state_put_back_repeats_every_draw() -> None:
    seed_everything(3)
    random.gauss(0, 1)  # leaves a second value waiting, which belongs to the state
    draw_numpy_normal()
    state = rng_state()
    first = [random.gauss(0, 1), draw_numpy_normal(), *draw()]
    set_rng_state(state)
    assert [random.gauss(0, 1), draw_numpy_normal(), *draw()] == first


def test_a_snapshot_put_back_repeats_every_draw_as_often_as_it_is_put_back() -> None:
    seed_everything(3)
    random.gauss(0, 1)  # leaves a second value waiting, which belongs to the state
    draw_numpy_normal()
    state, snapshot = rng_state(), snapshot_rng()
    first = [random.gauss(0, 1), draw_numpy_normal(), *draw()]
    for put_back in (lambda: restore_rng(snapshot), lambda: set_rng_state(state)) * 2:
        put_back()
        assert [random.gauss(0, 1), draw_numpy_normal(), *draw()] == first


def test_a_snapshot_holds_what_the_libraries_return_and_builds_no_numbers() -> None:
    snapshot = snapshot_rng()
    assert snapshot.python == random.getstate()
    assert isinstance(snapshot.numpy["state"]["key"], np.ndarray)


def test_state_is_plain_apart_from_uint8_tensors_and_survives_json() -> None:
    seed_everything(3)
    state = rng_state()
    assert state["torch"].dtype == torch.uint8
    assert state["cuda"] == [] or all(part.dtype == torch.uint8 for part in state["cuda"])
    plain = json.loads(json.dumps({"python": state["python"], "numpy": state["numpy"]}))
    first = draw()
    set_rng_state({**state, **plain})
    assert draw() == first


def test_a_later_draw_does_not_change_a_saved_state() -> None:
    seed_everything(3)
    state = rng_state()
    saved = state["torch"].clone()
    torch.rand(1000)
    assert torch.equal(state["torch"], saved)


def test_preserved_state_survives_draws() -> None:
    seed_everything(9)
    expected = draw()
    seed_everything(9)
    with preserve_rng():
        draw()
    assert draw() == expected


def test_preserved_state_comes_back_after_an_error() -> None:
    seed_everything(9)
    expected = draw()
    seed_everything(9)

    def fail() -> None:
        with preserve_rng():
            draw()
            raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        fail()
    assert draw() == expected
