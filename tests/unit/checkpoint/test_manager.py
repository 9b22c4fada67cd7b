"""checkpoint/manager: when it saves, what it keeps, what it survives, what it loads."""

from __future__ import annotations

import errno
import json
import math
import os
import pickle
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from speedtronic.checkpoint import folder, storing
from speedtronic.checkpoint import manager as manager_module
from speedtronic.checkpoint.folder import Inspector, checkpoint_name, read_manifest, step_of
from speedtronic.checkpoint.manager import THREAD_NAME, CheckpointManager
from speedtronic.core.errors import CheckpointError, ConfigError


class Events:
    """Takes events and remembers on which thread they came."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self.threads: set[threading.Thread] = set()

    def __call__(self, name: str, payload: Any) -> None:
        self.seen.append((name, dict(payload)))
        self.threads.add(threading.current_thread())

    def warnings(self) -> list[str]:
        return [payload["message"] for name, payload in self.seen if name == "warning"]

    def saved(self) -> list[int]:
        return [payload["step"] for name, payload in self.seen if name == "checkpoint"]


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def build(tmp_path: Path, events: Events) -> Callable[..., CheckpointManager]:
    """Build managers of one folder that report to one list of events."""

    def build_manager(**settings: Any) -> CheckpointManager:
        return CheckpointManager(tmp_path / "checkpoints", on_event=events, **settings)

    return build_manager


def state_of(step: int, *, value: float | None = None) -> dict[str, Any]:
    """Return a small whole state of a training run at a step."""
    weight = torch.full((4, 3), float(step) if value is None else value)
    return {
        "model": {"embedding.weight": weight, "head.weight": weight, "norm": torch.ones(3)},
        "optimizer": {
            "state": {0: {"step": torch.tensor(float(step)), "exp_avg": torch.ones(4, 3) * step}},
            "param_groups": [{"lr": 0.1, "betas": (0.9, 0.95), "params": [0]}],
        },
        "scheduler": {"last_epoch": step},
        "scaler": None,
        "step": step,
        "rng": {"python": [3, [1, 2], None], "torch": torch.arange(8, dtype=torch.uint8)},
        "config": {"run": {"seed": 1}},
        "best": {"loss": math.inf},
    }


def flip_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def steps_in(directory: Path) -> list[int]:
    return sorted(step for path in directory.iterdir() if (step := step_of(path)) is not None)


def fail_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)


# ------------------------------------------------------------------------------ when it saves


def test_a_save_is_due_at_multiples_of_every_steps_and_not_at_step_zero(build) -> None:
    manager = build(every_steps=3)
    assert [step for step in range(10) if manager.should_save(step)] == [3, 6, 9]


def test_a_disabled_manager_saves_nothing_and_still_loads(build) -> None:
    with_one = build(every_steps=1)
    with_one.save(1, state_of(1))
    with_one.close()
    manager = build(every_steps=1, enabled=False)
    assert not manager.should_save(1)
    assert manager.save(2, state_of(2)) is None
    assert manager.load_latest()["step"] == 1
    manager.close()


def test_minutes_are_counted_from_the_last_save_on_a_clock_that_never_runs_backwards(
    build,
) -> None:
    now = [1000.0]
    manager = build(every_steps=None, every_minutes=2, clock=lambda: now[0])
    now[0] += 119.9
    assert not manager.should_save(7)
    now[0] += 0.1
    assert manager.should_save(7)
    manager.save(7, state_of(7))
    assert not manager.should_save(8)
    now[0] += 120
    assert manager.should_save(9)
    manager.close()


def test_the_clock_is_the_monotonic_one(build, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = build(every_steps=None, every_minutes=1)
    monkeypatch.setattr(time, "time", lambda: 1e12)
    assert not manager.should_save(1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every_steps": 0}, "checkpoint.every_steps must be 1 or more, got 0"),
        ({"keep_last": 0}, "checkpoint.keep_last must be 1 or more, got 0"),
        ({"keep_best": -1}, "checkpoint.keep_best must be 0 or more, got -1"),
        ({"every_minutes": 0}, "checkpoint.every_minutes must be above 0, got 0"),
        ({"every_minutes": math.nan}, "checkpoint.every_minutes must be above 0, got nan"),
    ],
)
def test_numbers_out_of_range_name_their_key(build, settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(**settings)


def test_a_negative_step_is_refused(build) -> None:
    with pytest.raises(ConfigError, match="step must be 0 or more, got -1"):
        build().save(-1, state_of(1))


def test_building_a_manager_touches_nothing(build, tmp_path: Path) -> None:
    manager = build()
    assert manager.latest_path() is None
    assert manager.load_latest() is None
    assert manager.paths() == []
    manager.close()
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------------- what it writes


@pytest.mark.parametrize("async_save", [True, False])
def test_a_state_comes_back_equal(build, async_save: bool) -> None:
    manager = build(async_save=async_save)
    path = manager.save(7, state_of(7), metric=0.5)
    manager.close()
    assert path == manager.directory / "step_000000000007"
    loaded, wanted = manager.load(path), state_of(7)
    assert torch.equal(loaded["model"].pop("embedding.weight"), torch.full((4, 3), 7.0))
    assert torch.equal(loaded["model"].pop("head.weight"), torch.full((4, 3), 7.0))
    assert loaded["model"].pop("norm").tolist() == [1, 1, 1]
    assert loaded["optimizer"]["state"].pop(0)["step"] == torch.tensor(7.0)
    assert loaded["optimizer"]["param_groups"] == wanted["optimizer"]["param_groups"]
    assert loaded["rng"].pop("torch").tolist() == list(range(8))
    for key in ("scheduler", "scaler", "step", "config", "best"):
        assert loaded[key] == wanted[key]
    assert list(loaded) == list(wanted)


def test_the_directory_holds_three_files_and_nothing_is_left_beside_it(build) -> None:
    manager = build()
    manager.save(123, state_of(123))
    manager.close()
    assert [path.name for path in manager.directory.iterdir()] == ["step_000000000123"]
    names = sorted(path.name for path in (manager.directory / "step_000000000123").iterdir())
    assert names == ["meta.json", "optim.safetensors", "state.safetensors"]


def test_a_plain_reader_finds_the_weights_under_their_names_tied_ones_once(build) -> None:
    manager = build()
    path = manager.save(7, state_of(7))
    manager.close()
    weights = load_file(path / "state.safetensors")
    assert sorted(weights) == ["embedding.weight", "norm"]
    loaded = manager.load(path)["model"]
    assert loaded["head.weight"] is loaded["embedding.weight"]


def test_the_manifest_holds_sizes_sums_and_the_configuration_as_json(build) -> None:
    manager = build()
    path = manager.save(7, state_of(7), metric=0.5)
    manager.close()
    meta = json.loads((path / "meta.json").read_text(), parse_constant=pytest.fail)
    assert set(meta["files"]) == {"state.safetensors", "optim.safetensors"}
    for name, facts in meta["files"].items():
        assert facts["size"] == (path / name).stat().st_size
        assert len(facts["sha256"]) == 64
    assert meta["state"]["config"] == {"run": {"seed": 1}}
    assert meta["state"]["rng"]["python"] == [3, [1, 2], None]
    assert (meta["step"], meta["metric"]) == (7, 0.5)


def test_files_are_flushed_the_manifest_last_then_the_rename_then_the_parent(
    build, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def note_fsync(descriptor: int) -> None:
        order.append(Path(f"/proc/self/fd/{descriptor}").readlink().name[:5])
        fsync(descriptor)

    def note_rename(self: Path, target: Path) -> Path:
        order.append(f"rename {target.name}")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(Path, "rename", note_rename)
    manager = build()
    manager.save(1, state_of(1))
    manager.close()
    assert order[1:] == [
        "state",
        "optim",
        "meta.",
        ".tmp-",
        "rename step_000000000001",
        "check",
    ]
    assert len(order) == 7, "the parent of the new folder is flushed first"


def test_nothing_is_ever_unpickled(build, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: Any, **_keywords: Any) -> None:
        raise AssertionError("unpickled")

    manager = build()
    manager.save(1, state_of(1))
    monkeypatch.setattr(pickle, "load", refuse)
    monkeypatch.setattr(pickle, "loads", refuse)
    monkeypatch.setattr(pickle, "Unpickler", refuse)
    monkeypatch.setattr(torch, "load", refuse)
    assert manager.load_latest()["step"] == 1


def test_something_that_cannot_be_saved_is_refused_at_once_by_its_path(build) -> None:
    manager = build()
    with pytest.raises(CheckpointError, match=r"^optimizer\.state\[0\]\.foo: cannot save a object"):
        manager.save(1, {"optimizer": {"state": [{"foo": object()}]}})
    manager.close()
    assert not manager.directory.exists()


def test_loaded_tensors_do_not_follow_a_file_that_is_overwritten(build) -> None:
    manager = build()
    path = manager.save(1, {"model": {"w": torch.ones(100)}})
    loaded = manager.load_latest()["model"]["w"]
    content = (path / "state.safetensors").read_bytes()
    with (path / "state.safetensors").open("r+b") as file:
        file.seek(len(content) - 400)
        file.write(b"\0" * 400)
    assert loaded.tolist() == [1.0] * 100


def test_map_location_puts_every_tensor_there_and_keeps_ties(build) -> None:
    manager = build()
    manager.save(1, state_of(1))
    loaded = manager.load_latest(map_location="meta")
    assert loaded["model"]["norm"].device.type == "meta"
    assert loaded["model"]["head.weight"] is loaded["model"]["embedding.weight"]


# --------------------------------------------------------------------- saving in the background


def hold_writer(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let the writer wait for an event before it writes."""
    gate = threading.Event()
    original = storing.write_checkpoint

    def gated(*arguments: Any, **keywords: Any) -> Path:
        assert gate.wait(10)
        return original(*arguments, **keywords)

    monkeypatch.setattr(manager_module, "write_checkpoint", gated)
    return gate


def test_a_background_save_holds_the_values_of_the_moment_it_was_asked_for(
    build, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = hold_writer(monkeypatch)
    manager = build()
    weight, moments, counters = torch.ones(3), torch.ones(2), {"seen": [1]}
    manager.save(1, {"model": {"w": weight}, "optimizer": {0: moments}, "data": counters})
    weight.fill_(2)
    moments.fill_(2)
    counters["seen"].append(2)
    gate.set()
    loaded = manager.load_latest()
    assert loaded["model"]["w"].tolist() == [1, 1, 1]
    assert loaded["optimizer"][0].tolist() == [1, 1]
    assert loaded["data"] == {"seen": [1]}


def test_one_named_thread_writes_and_events_come_on_the_callers_thread(
    build, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = hold_writer(monkeypatch)
    manager = build()
    manager.save(1, state_of(1))
    writers = [t for t in threading.enumerate() if t.name == THREAD_NAME]
    assert THREAD_NAME == "speedtronic-checkpoint"
    assert len(writers) == 1
    assert not writers[0].daemon
    manager.poll()
    assert events.seen == []
    assert manager.latest_path() is None
    gate.set()
    writers[0].join(10)
    assert events.seen == []
    manager.poll()
    assert events.saved() == [1]
    assert events.threads == {threading.main_thread()}
    manager.close()


def test_the_next_save_waits_for_the_one_under_way(build, monkeypatch: pytest.MonkeyPatch) -> None:
    active: list[int] = []
    most: list[int] = []
    original = storing.write_checkpoint

    def slow(*arguments: Any, **keywords: Any) -> Path:
        active.append(1)
        most.append(len(active))
        time.sleep(0.02)
        try:
            return original(*arguments, **keywords)
        finally:
            active.pop()

    monkeypatch.setattr(manager_module, "write_checkpoint", slow)
    manager = build(keep_last=None)
    for step in range(1, 5):
        manager.save(step, state_of(step))
    manager.close()
    assert most == [1, 1, 1, 1]
    assert steps_in(manager.directory) == [1, 2, 3, 4]
    assert [int(manager.load(path)["step"]) for path in manager.paths()] == [1, 2, 3, 4]


def test_the_event_of_a_save_names_step_path_size_and_times(build, events: Events) -> None:
    manager = build()
    path = manager.save(3, state_of(3), metric=0.25)
    manager.close()
    name, payload = events.seen[0]
    assert name == "checkpoint"
    assert (payload["step"], payload["path"], payload["metric"]) == (3, str(path), 0.25)
    assert payload["size_bytes"] == sum(file.stat().st_size for file in path.iterdir())
    assert payload["seconds"] > 0
    assert payload["blocked_s"] > 0
    json.dumps(payload, allow_nan=False)


def test_waiting_has_a_deadline(build, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = hold_writer(monkeypatch)
    manager = build()
    manager.save(1, state_of(1))
    with pytest.raises(CheckpointError, match=r"is still being written after 0\.01 s"):
        manager.close(timeout_s=0.01)
    gate.set()
    manager.close()
    assert manager.load_latest()["step"] == 1


def test_the_copies_are_kept_until_the_manager_is_closed(
    build, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[weakref.ref[torch.Tensor]] = []
    original = storing.write_checkpoint

    def note(directory: Path, snapshot: Any, **keywords: Any) -> Path:
        copies.append(weakref.ref(snapshot.encoded.tensors["state.safetensors"]["norm"]))
        return original(directory, snapshot, **keywords)

    monkeypatch.setattr(manager_module, "write_checkpoint", note)
    manager = build()
    manager.save(1, state_of(1))
    manager.save(2, state_of(2))
    manager.wait()
    assert copies[0]() is copies[1]()
    assert copies[1]() is not None
    manager.close()
    assert copies[1]() is None


def test_a_closed_manager_saves_again(build) -> None:
    manager = build()
    manager.save(1, state_of(1))
    manager.close()
    manager.save(2, state_of(2))
    manager.close()
    assert steps_in(manager.directory) == [1, 2]


# ------------------------------------------------------------------------------- full disks


@pytest.mark.parametrize("async_save", [True, False])
def test_a_full_disk_costs_one_checkpoint_and_training_goes_on(
    build, events: Events, monkeypatch: pytest.MonkeyPatch, async_save: bool
) -> None:
    manager = build(async_save=async_save, keep_last=1)
    manager.save(1, state_of(1))
    manager.wait()
    with monkeypatch.context() as patch:
        fail_fsync(patch)
        manager.save(2, state_of(2))
        manager.wait()
    assert [path.name for path in manager.directory.iterdir()] == [checkpoint_name(1)]
    assert events.warnings() == [
        "the checkpoint of step 2 was not saved: [Errno 28] No space left on device; older "
        "checkpoints are kept, training goes on"
    ]
    manager.save(3, state_of(3))
    manager.close()
    assert manager.load_latest()["step"] == 3
    assert events.saved() == [1, 3]


def test_a_failed_save_without_a_thread_returns_none(
    build, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_fsync(monkeypatch)
    manager = build(async_save=False)
    assert manager.save(1, state_of(1)) is None
    with pytest.raises(CheckpointError, match="No space left on device"):
        manager.close()


def test_closing_raises_when_the_last_save_failed_and_only_once(
    build, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = build()
    fail_fsync(monkeypatch)
    manager.save(1, state_of(1))
    with pytest.raises(
        CheckpointError, match=r"the last checkpoint was not saved: .*No space left"
    ):
        manager.close()
    manager.close()


def test_strict_managers_raise_at_the_next_call(build, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = build(strict=True)
    with monkeypatch.context() as patch:
        fail_fsync(patch)
        manager.save(1, state_of(1))
        with pytest.raises(CheckpointError, match="No space left on device"):
            manager.save(2, state_of(2))
    manager.save(3, state_of(3))
    manager.close()
    assert steps_in(manager.directory) == [3]


def test_a_folder_that_cannot_be_made_is_a_warning(tmp_path: Path, events: Events) -> None:
    (tmp_path / "file").write_text("")
    manager = CheckpointManager(tmp_path / "file" / "checkpoints", on_event=events)
    manager.save(1, state_of(1))
    manager.wait()
    assert len(events.warnings()) == 1
    assert "Not a directory" in events.warnings()[0]
    with pytest.raises(CheckpointError, match="Not a directory"):
        manager.close()


def test_an_error_that_no_disk_causes_surfaces_at_the_next_save(
    build, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_arguments: Any, **_keywords: Any) -> Path:
        raise RuntimeError("a bug")

    manager = build()
    with monkeypatch.context() as patch:
        patch.setattr(manager_module, "write_checkpoint", broken)
        manager.save(1, state_of(1))
        with pytest.raises(CheckpointError, match="the last checkpoint was not saved: a bug"):
            manager.save(2, state_of(2))
    assert events.warnings() == ["the checkpoint of step 1 was not saved: RuntimeError('a bug')"]
    manager.close()


def test_without_a_listener_problems_are_python_warnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = CheckpointManager(tmp_path / "c")
    manager.save(1, state_of(1, value=math.nan))
    with pytest.warns(UserWarning, match="the checkpoint of step 1 was refused"):
        manager.close()


# ------------------------------------------------------------------------------------- NaN


def test_weights_with_nan_are_refused_and_good_checkpoints_stay(build, events: Events) -> None:
    manager = build(keep_last=1)
    manager.save(1, state_of(1))
    for step in (2, 3, 4):
        manager.save(step, state_of(step, value=math.nan))
    manager.close()
    assert steps_in(manager.directory) == [1]
    assert events.warnings()[0] == (
        "the checkpoint of step 2 was refused: embedding.weight holds NaN; older checkpoints are "
        "kept"
    )
    assert len(events.warnings()) == 3


def test_infinity_in_a_mask_and_nan_outside_the_weights_are_saved(build) -> None:
    manager = build()
    state = {"model": {"mask": torch.tensor([-math.inf])}, "optimizer": [torch.tensor([math.nan])]}
    manager.save(1, {**state, "last_loss": math.nan})
    loaded = manager.load_latest()
    assert loaded["model"]["mask"].tolist() == [-math.inf]
    assert math.isnan(loaded["optimizer"][0])
    assert math.isnan(loaded["last_loss"])


# ----------------------------------------------------------------------------- what it keeps


def test_the_last_ones_are_kept(build) -> None:
    manager = build(keep_last=2)
    for step in range(1, 6):
        manager.save(step, state_of(step))
    manager.close()
    assert steps_in(manager.directory) == [4, 5]
    assert len(list(manager.directory.iterdir())) == 2


def test_what_this_process_wrote_is_not_read_again_to_decide_what_to_keep(
    build, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_path: Path) -> str:
        raise AssertionError("read again")

    monkeypatch.setattr(folder, "sha256_file", refuse)
    manager = build(keep_last=1, keep_best=1)
    for step in range(1, 5):
        manager.save(step, state_of(step), metric=float(step))
    manager.close()
    assert manager.paths() == [manager.directory / checkpoint_name(step) for step in (1, 4)]


def test_keep_last_none_keeps_all(build) -> None:
    manager = build(keep_last=None, keep_best=1)
    for step in range(1, 6):
        manager.save(step, state_of(step), metric=float(step))
    manager.close()
    assert steps_in(manager.directory) == [1, 2, 3, 4, 5]
    assert manager.prune() == []


def test_the_best_ones_are_kept_beside_the_last(build) -> None:
    manager = build(keep_last=1, keep_best=2)
    metrics = {1: 0.9, 2: 0.2, 3: 0.5, 4: 0.3, 5: math.nan, 6: 0.7, 7: None}
    for step, metric in metrics.items():
        manager.save(step, state_of(step), metric=metric)
    manager.close()
    assert steps_in(manager.directory) == [2, 4, 7]
    assert manager.best_path() == manager.directory / checkpoint_name(2)
    assert manager.latest_path() == manager.directory / checkpoint_name(7)


def test_the_best_one_survives_a_new_manager_as_its_metric_is_on_the_disk(build) -> None:
    first = build(keep_last=1, keep_best=1)
    first.save(1, state_of(1), metric=0.1)
    first.save(2, state_of(2), metric=0.4)
    first.close()
    second = build(keep_last=1, keep_best=1)
    for step in (3, 4):
        second.save(step, state_of(step), metric=0.3)
    second.close()
    assert steps_in(second.directory) == [1, 4]
    assert second.best_path() == second.directory / checkpoint_name(1)


def test_damaged_newer_ones_do_not_count_and_the_newest_good_one_is_never_removed(build) -> None:
    first = build(keep_last=None)
    for step in (1, 2, 3, 4):
        first.save(step, state_of(step))
    first.close()
    flip_last_byte(first.directory / checkpoint_name(3) / "optim.safetensors")
    (first.directory / checkpoint_name(4) / "state.safetensors").unlink()
    second = build(keep_last=1)
    assert second.prune() == [second.directory / checkpoint_name(1)]
    assert steps_in(second.directory) == [2, 3, 4]
    assert second.load_latest()["step"] == 2


def test_damage_after_the_save_is_noticed_by_the_next_prune(build) -> None:
    manager = build(keep_last=1)
    manager.save(1, state_of(1))
    manager.wait()
    manager.keep_last = None
    manager.save(2, state_of(2))
    manager.wait()
    flip_last_byte(manager.directory / checkpoint_name(2) / "state.safetensors")
    manager.keep_last = 1
    assert manager.prune() == []
    assert manager.latest_path() == manager.directory / checkpoint_name(1)


def test_nothing_is_removed_when_all_are_damaged(build) -> None:
    first = build(keep_last=None)
    for step in (1, 2, 3):
        path = first.save(step, state_of(step))
        first.wait()
        flip_last_byte(path / "state.safetensors")
    assert build(keep_last=1).prune() == []
    assert steps_in(first.directory) == [1, 2, 3]


def test_a_run_that_went_back_keeps_what_it_just_saved(build) -> None:
    manager = build(keep_last=1)
    manager.save(100, state_of(100))
    manager.save(50, state_of(50))
    manager.close()
    assert steps_in(manager.directory) == [50, 100]


def test_old_ones_are_removed_only_after_the_new_one_is_durable(
    build, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = build(keep_last=1)
    manager.save(1, state_of(1))
    manager.wait()
    there: list[list[int]] = []
    original = storing.fsync_dir

    def look(path: Path) -> None:
        there.append(steps_in(manager.directory))
        original(path)

    monkeypatch.setattr(storing, "fsync_dir", look)
    manager.save(2, state_of(2))
    manager.close()
    assert there == [[1], [1, 2]]
    assert steps_in(manager.directory) == [2]


def test_a_failing_removal_is_a_warning_and_the_save_counts(
    build, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(manager_module, "remove_directory", refuse)
    manager = build(keep_last=1)
    manager.save(1, state_of(1))
    manager.save(2, state_of(2))
    manager.close()
    assert events.saved() == [1, 2]
    assert events.warnings() == [
        "the checkpoint of step 2 is saved, but older ones could not be removed: [Errno 13] "
        "Permission denied"
    ]


def test_leftovers_of_dead_writers_are_removed_by_the_first_save(build) -> None:
    manager = build()
    leftover = manager.directory / ".tmp-0123"
    leftover.mkdir(parents=True)
    os.utime(leftover, (0, 0))
    assert manager.load_latest() is None
    assert leftover.exists(), "loading changes nothing"
    manager.save(1, state_of(1))
    manager.close()
    assert not leftover.exists()


# ------------------------------------------------------------------------------ the same step


def test_saving_a_step_again_replaces_it(build) -> None:
    manager = build()
    manager.save(1, state_of(1, value=1.0), metric=0.5)
    path = manager.save(1, state_of(1, value=2.0), metric=0.25)
    manager.close()
    assert [child.name for child in manager.directory.iterdir()] == [checkpoint_name(1)]
    assert manager.load(path)["model"]["embedding.weight"][0, 0] == 2.0
    assert manager.best_path() == path
    assert read_manifest(path).metric == 0.25


def test_a_damaged_checkpoint_of_the_same_step_is_set_aside_not_lost(build) -> None:
    manager = build()
    for _ in range(2):
        path = manager.save(1, state_of(1))
        manager.wait()
        flip_last_byte(path / "state.safetensors")
    manager.save(1, state_of(1))
    manager.close()
    names = sorted(child.name for child in manager.directory.iterdir())
    assert names == [checkpoint_name(1), *(f"{checkpoint_name(1)}.damaged-{n}" for n in (1, 2))]
    assert manager.load_latest()["step"] == 1


def test_a_file_where_the_step_belongs_is_set_aside(build) -> None:
    manager = build()
    manager.directory.mkdir(parents=True)
    (manager.directory / checkpoint_name(1)).write_text("mine")
    manager.save(1, state_of(1))
    manager.close()
    assert manager.load_latest()["step"] == 1
    assert (manager.directory / f"{checkpoint_name(1)}.damaged-1").read_text() == "mine"


def test_a_replacement_that_fails_puts_the_old_one_back(
    build, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = build()
    path = manager.save(1, state_of(1, value=1.0))
    manager.wait()
    rename = Path.rename

    def fail_when_free(self: Path, target: Path) -> Path:
        if self.name.startswith(".tmp-") and not target.exists():
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail_when_free)
        manager.save(1, state_of(1, value=2.0))
        manager.wait()
    assert [child.name for child in manager.directory.iterdir()] == [checkpoint_name(1)]
    assert manager.load(path)["model"]["embedding.weight"][0, 0] == 1.0
    with pytest.raises(CheckpointError, match="Input/output error"):
        manager.close()


# ------------------------------------------------------------------------------ what it loads


def test_the_newest_good_one_is_loaded_and_what_was_skipped_is_named(build, events: Events) -> None:
    manager = build(keep_last=None)
    paths = {step: manager.save(step, state_of(step)) for step in (1, 2, 3, 4, 5)}
    manager.wait()
    flip_last_byte(paths[3] / "optim.safetensors")
    (paths[4] / "state.safetensors").write_bytes(b"")
    (paths[5] / "meta.json").unlink()
    assert manager.load_latest()["step"] == 2
    assert events.warnings() == [
        f"skipped a damaged checkpoint: {paths[4]} is no whole checkpoint: state.safetensors has "
        f"0 bytes, meta.json says {(paths[2] / 'state.safetensors').stat().st_size}",
        f"skipped a damaged checkpoint: {paths[3]} is no whole checkpoint: optim.safetensors does "
        "not match its sha256",
    ]
    skipped = [payload for name, payload in events.seen if name == "warning"]
    assert [payload["step"] for payload in skipped] == [4, 3]
    assert [payload["path"] for payload in skipped] == [str(paths[4]), str(paths[3])]
    assert manager.paths() == [paths[1], paths[2], paths[3]]
    assert manager.latest_path() == paths[2]
    assert manager.paths() == [paths[1], paths[2]]


@pytest.mark.parametrize("name", ["state.safetensors", "optim.safetensors", "meta.json"])
def test_every_single_flipped_byte_is_caught(build, name: str) -> None:
    manager = build()
    path = manager.save(1, {"model": {"w": torch.ones(2)}, "step": 1})
    manager.close()
    content = (path / name).read_bytes()
    assert manager.load(path)["step"] == 1
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1
        (path / name).write_bytes(damaged)
        with pytest.raises(CheckpointError, match="is no whole checkpoint"):
            manager.load(path)


def test_loading_a_damaged_one_by_its_path_is_an_error(build) -> None:
    manager = build()
    path = manager.save(1, state_of(1))
    manager.wait()
    flip_last_byte(path / "state.safetensors")
    with pytest.raises(CheckpointError, match=r"step_0+1 is no whole checkpoint: state\.safetens"):
        manager.load(path)
    with pytest.raises(CheckpointError, match=r"meta\.json cannot be read: No such file"):
        manager.load(path.with_name("gone"))


def test_when_all_are_damaged_there_is_nothing_to_load_and_each_is_named(
    build, events: Events
) -> None:
    manager = build()
    for step in (1, 2):
        path = manager.save(step, state_of(step))
        manager.wait()
        flip_last_byte(path / "state.safetensors")
    assert manager.load_latest() is None
    assert len(events.warnings()) == 2


def test_a_checkpoint_removed_while_it_is_looked_at_is_passed_over(
    build, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = build(keep_last=None)
    for step in (1, 2):
        manager.save(step, state_of(step))
    manager.wait()
    original = manager_module.read_checkpoint

    def remove_first(path: Path, **keywords: Any) -> dict[str, Any]:
        if step_of(path) == 2:
            manager_module.remove_directory(path)
            CheckpointManager(path.parent, async_save=False).save(3, state_of(3))
        return original(path, **keywords)

    monkeypatch.setattr(manager_module, "read_checkpoint", remove_first)
    assert manager.load_latest()["step"] == 3
    assert events.warnings() == []


def test_loading_many_times_neither_changes_nor_leaks(build) -> None:
    manager = build()
    path = manager.save(1, state_of(1))
    manager.close()
    before = {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in path.iterdir()}
    num_open = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        manager.load_latest()
    assert len(list(Path("/proc/self/fd").iterdir())) == num_open
    after = {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in path.iterdir()}
    assert before == after


# ----------------------------------------------------------------------- two on one folder


def test_two_managers_that_save_the_same_steps_leave_whole_checkpoints(tmp_path: Path) -> None:
    managers = [CheckpointManager(tmp_path / "c", keep_last=2) for _ in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(1, 16):
            for number, manager in enumerate(managers):
                manager.save(
                    step, {"model": {"w": torch.full((1000,), float(number))}, "step": step}
                )
        for manager in managers:
            manager.close()
    assert steps_in(tmp_path / "c") == [14, 15]
    assert len(list((tmp_path / "c").iterdir())) == 2
    state = CheckpointManager(tmp_path / "c").load_latest()
    assert state["step"] == 15
    assert state["model"]["w"].unique().numel() == 1


def test_what_is_removed_is_forgotten_so_that_memory_does_not_grow(
    build, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[int | None] = []
    monkeypatch.setattr(Inspector, "forget", lambda _self, path: forgotten.append(step_of(path)))
    manager = build(keep_last=1, async_save=False)
    for step in range(1, 5):
        manager.save(step, {"step": step})
    assert forgotten == [1, 2, 3]
