"""checkpoint/weights and checkpoint/locating: found, loaded alone, exported, compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from speedtronic.checkpoint.locating import find_checkpoint
from speedtronic.checkpoint.manager import CheckpointManager
from speedtronic.checkpoint.weights import (
    check_model_state,
    config_path_of,
    export_weights,
    load_weights,
)
from speedtronic.core.errors import (
    CheckpointError,
    ConfigError,
    IncompatibleCheckpointError,
)


class Tied(nn.Module):
    """A model whose head is its embedding."""

    def __init__(self, *, width: int = 3, value: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 4, bias=False)
        self.head.weight = self.embedding.weight
        nn.init.constant_(self.embedding.weight, value)


def save_run(run: Path, metrics: dict[int, float | None], *, folder: str = "checkpoints") -> Path:
    """Save checkpoints of a tied model whose weights equal the step."""
    manager = CheckpointManager(run / folder, keep_last=None)
    for step, metric in metrics.items():
        model = Tied(value=float(step))
        state = {"model": model.state_dict(), "optimizer": {}, "config": {"run": {"seed": 5}}}
        manager.save(step, state, metric=metric)
    manager.close()
    return run


def damage(run: Path, step: int) -> None:
    path = run / "checkpoints" / f"step_{step:012d}" / "state.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def value_of(weights: dict[str, torch.Tensor]) -> float:
    return float(weights["embedding.weight"].unique())


def content_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return save_run(tmp_path / "run", {1: 0.5, 2: 0.25, 3: 0.75})


# ------------------------------------------------------------------------------ finding


@pytest.mark.parametrize(
    ("choice", "step"),
    [(None, 2), ("best", 2), ("latest", 3), (1, 1), ("1", 1), ("step_000000000003", 3)],
)
def test_a_checkpoint_is_found_by_rank_step_or_name(run: Path, choice: Any, step: int) -> None:
    found = find_checkpoint(run, checkpoint=choice)
    assert found == run / "checkpoints" / f"step_{step:012d}"


def test_without_metrics_the_best_is_the_newest(tmp_path: Path) -> None:
    run = save_run(tmp_path, {1: None, 2: None})
    assert find_checkpoint(run).name == "step_000000000002"


@pytest.mark.parametrize(("choice", "step"), [("best", 2), ("latest", 3)])
def test_a_damaged_one_is_passed_over_and_named(run: Path, choice: str, step: int) -> None:
    damage(run, step)
    with pytest.warns(UserWarning, match="skipped a damaged checkpoint") as caught:
        assert find_checkpoint(run, checkpoint=choice).name != f"step_{step:012d}"
    assert [str(warning.message) for warning in caught] == [
        f"skipped a damaged checkpoint: {run}/checkpoints/step_{step:012d}: state.safetensors does "
        "not match its sha256"
    ]


def test_a_step_that_is_not_there_lists_the_steps(run: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        find_checkpoint(run, checkpoint=7)
    assert str(caught.value) == "checkpoint must be best, latest or one of the steps 1, 2, 3, got 7"


@pytest.mark.filterwarnings("ignore:skipped a damaged checkpoint")
def test_a_run_whose_checkpoints_are_all_damaged_says_how_to_look(run: Path) -> None:
    for step in (1, 2, 3):
        damage(run, step)
    with pytest.raises(
        ConfigError, match=r"holds no whole checkpoint; `python -m speedtronic\.che"
    ):
        find_checkpoint(run)


def test_the_folder_named_in_the_configuration_is_used(tmp_path: Path) -> None:
    save_run(tmp_path, {1: None}, folder="elsewhere")
    with pytest.raises(ConfigError, match="holds no checkpoints; give a run folder that has saved"):
        find_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"checkpoint": {"directory": "elsewhere"}}))
    assert find_checkpoint(tmp_path).name == "step_000000000001"


@pytest.mark.parametrize("text", ["{", "[]", '{"checkpoint": {"directory": 3}}', "{}"])
def test_a_strange_configuration_means_the_default_folder(run: Path, text: str) -> None:
    (run / "config.json").write_text(text)
    assert find_checkpoint(run, checkpoint=1).name == "step_000000000001"


# ------------------------------------------------------------------------------ loading


def test_weights_come_from_a_run_a_folder_a_checkpoint_or_a_file(run: Path) -> None:
    checkpoint = run / "checkpoints" / "step_000000000003"
    assert value_of(load_weights(run)) == 2.0
    assert value_of(load_weights(run, checkpoint="latest")) == 3.0
    assert value_of(load_weights(run / "checkpoints", checkpoint=1)) == 1.0
    assert value_of(load_weights(checkpoint)) == 3.0
    assert value_of(load_weights(checkpoint / "state.safetensors")) == 3.0


def test_tied_weights_have_all_their_names_from_every_source(run: Path) -> None:
    names = ["embedding.weight", "head.weight", "norm.bias", "norm.weight"]
    for source in (run, run / "checkpoints" / "step_000000000002" / "state.safetensors"):
        weights = load_weights(source)
        assert sorted(weights) == names
        assert weights["head.weight"] is weights["embedding.weight"]
        Tied().load_state_dict(weights)


def test_a_file_of_somebody_else_is_read(tmp_path: Path) -> None:
    save_file({"w": torch.tensor([1.5])}, tmp_path / "x.safetensors")
    assert load_weights(tmp_path / "x.safetensors")["w"].tolist() == [1.5]


def test_pickled_weights_are_refused_unread(tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_bytes(b"\x80\x04.")
    with pytest.raises(ConfigError, match=r"must be a run folder, a checkpoint or a \.safetensors"):
        load_weights(tmp_path / "x.pt")


def test_a_missing_path_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone is no folder; give a run folder"):
        load_weights(tmp_path / "gone")


def test_a_damaged_checkpoint_is_not_loaded(run: Path) -> None:
    damage(run, 2)
    with pytest.raises(CheckpointError, match=r"state\.safetensors does not match its sha256"):
        load_weights(run, checkpoint=2)


def test_a_damaged_optimizer_file_does_not_keep_weights_from_being_named(run: Path) -> None:
    path = run / "checkpoints" / "step_000000000002"
    content = bytearray((path / "optim.safetensors").read_bytes())
    content[-1] ^= 1
    (path / "optim.safetensors").write_bytes(content)
    assert value_of(load_weights(path)) == 2.0


def test_a_checkpoint_without_a_model_says_so(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path / "checkpoints")
    manager.save(1, {"step": 1})
    manager.close()
    with pytest.raises(CheckpointError, match="step_000000000001 holds no model"):
        load_weights(tmp_path)


def test_reading_changes_nothing(run: Path) -> None:
    before = content_of(run)
    load_weights(run)
    find_checkpoint(run, checkpoint="latest")
    assert content_of(run) == before


# ------------------------------------------------------------------------------ exporting


def test_an_export_loads_into_the_model_with_plain_tools(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "model.safetensors"
    export_weights(find_checkpoint(run), out)
    model = Tied()
    model.load_state_dict(load_file(out))
    assert model.head.weight.unique().tolist() == [2.0]
    assert config_path_of(out) == tmp_path / "new" / "model.json"
    assert json.loads(config_path_of(out).read_text()) == {"run": {"seed": 5}}
    with safe_open(out, framework="pt") as file:
        assert file.metadata() == {"format": "pt", "step": "2"}
    assert sorted(path.name for path in out.parent.iterdir()) == ["model.json", "model.safetensors"]


@pytest.mark.parametrize("name", ["model.safetensors", "model.json"])
def test_an_export_never_overwrites(run: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match=rf"export never overwrites a file, .*{name} exists"):
        export_weights(find_checkpoint(run), tmp_path / "model.safetensors")
    assert (tmp_path / name).read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "run"])


def test_an_export_has_the_ending_of_the_format(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"export must end in \.safetensors, got .*model\.json"):
        export_weights(find_checkpoint(run), tmp_path / "model.json")


def test_a_failed_export_leaves_nothing(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        export_weights(find_checkpoint(run), tmp_path / "model.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


# ------------------------------------------------------------------------------ comparing


def test_a_state_that_fits_is_accepted_whole_or_its_model_alone() -> None:
    state = Tied(value=1.0).state_dict()
    check_model_state(Tied(), state)
    check_model_state(Tied(), {"model": state, "optimizer": {}, "step": 3})


def test_another_width_names_the_tensors_with_both_shapes() -> None:
    with pytest.raises(IncompatibleCheckpointError) as caught:
        check_model_state(Tied(width=3), Tied(width=2).state_dict())
    assert str(caught.value) == (
        "the checkpoint belongs to another model: "
        "embedding.weight has shape (4, 2), the model's has (4, 3); "
        "norm.weight has shape (2,), the model's has (3,); "
        "norm.bias has shape (2,), the model's has (3,); "
        "head.weight has shape (4, 2), the model's has (4, 3); "
        "build the model with the checkpoint's settings"
    )
    assert caught.value.exit_status == 2


def test_missing_and_unexpected_tensors_are_named() -> None:
    state = Tied().state_dict()
    state["extra"] = torch.ones(2, 1)
    del state["norm.bias"]
    with pytest.raises(
        IncompatibleCheckpointError,
        match=r"model: norm\.bias \(3,\) is missing; extra \(2, 1\) is unexpected; build",
    ):
        check_model_state(Tied(), state)


def test_at_most_five_tensors_are_named() -> None:
    state = Tied().state_dict() | {f"extra{n}": torch.ones(1) for n in range(8)}
    with pytest.raises(
        IncompatibleCheckpointError, match=r"extra4 \(1,\) is unexpected; and 3 more; build"
    ) as caught:
        check_model_state(Tied(), state)
    assert "extra5" not in str(caught.value)


def test_a_scalar_and_a_vector_of_one_differ() -> None:
    model = nn.BatchNorm1d(2)
    state = model.state_dict()
    state["num_batches_tracked"] = torch.ones(1, dtype=torch.int64)
    with pytest.raises(
        IncompatibleCheckpointError, match=r"has shape \(1,\), the model's has \(\);"
    ):
        check_model_state(model, state)
