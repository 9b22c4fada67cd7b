"""The command line around a run: folders, resume, errors and exit statuses.

The run itself is a stand-in that writes what a run leaves behind, so that nothing here imports
torch.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from omegaconf import OmegaConf

from speedtronic import cli
from speedtronic.config import SpeedtronicConfig
from speedtronic.core.errors import NonFiniteError
from speedtronic.run_folder.claim import claim_folder
from speedtronic.run_folder.layout import RunFolder
from speedtronic.run_folder.records import ResultRecord, begin_segment, end_segment

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Call:
    """What the command line handed to the runtime."""

    config: SpeedtronicConfig
    run_dir: Path
    argv: list[str]
    notes: list[str]
    warnings: list[str]
    full_error: str | None


@dataclass
class Report:
    result: ResultRecord
    signal_number: int | None = None


@dataclass
class FakeRuns:
    """Stands in for speedtronic.session: trains nothing, leaves a checkpoint at the target."""

    calls: list[Call] = field(default_factory=list)
    error: BaseException | None = None
    signal_number: int | None = None

    def run_command(
        self,
        config: SpeedtronicConfig,
        *,
        run_dir: Path,
        argv: list[str],
        resume_notes: Sequence[str],
        warnings: Sequence[str],
    ) -> Report:
        full_error = os.environ.get("HYDRA_FULL_ERROR")
        self.calls.append(
            Call(config, run_dir, argv, list(resume_notes), list(warnings), full_error)
        )
        if self.error is not None:
            raise self.error
        folder = RunFolder(run_dir)
        step = config.effective_max_steps
        begin_segment(folder, argv=argv)
        (folder.checkpoints / f"step_{step:012d}").mkdir(parents=True, exist_ok=True)
        end_segment(folder, status="completed", steps=step, elapsed_s=1.0)
        return Report(ResultRecord("completed", steps=step, final_loss=0.5), self.signal_number)

    @property
    def last(self) -> Call:
        return self.calls[-1]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRuns:
    fake = FakeRuns()
    module = ModuleType("speedtronic.session")
    module.run_command = fake.run_command  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "speedtronic.session", module)
    monkeypatch.setattr(sys, "argv", ["scripts/train.py"])
    monkeypatch.chdir(tmp_path)
    return fake


@pytest.fixture(scope="module")
def saved_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder as a finished run with the defaults leaves it, made once."""
    folder = tmp_path_factory.mktemp("saved") / "R"
    fake = FakeRuns()
    with pytest.MonkeyPatch.context() as patch:
        module = ModuleType("speedtronic.session")
        module.run_command = fake.run_command  # type: ignore[attr-defined]
        patch.setitem(sys.modules, "speedtronic.session", module)
        assert cli.run([f"run_dir={folder}"]) == 0
    return folder


@pytest.fixture
def finished_run(saved_run: Path, tmp_path: Path) -> Path:
    """A copy of a finished run."""
    return Path(shutil.copytree(saved_run, tmp_path / "finished"))


@pytest.fixture
def edited_conf(tmp_path: Path) -> Path:
    """A copy of conf/ that a test may edit."""
    return Path(shutil.copytree(ROOT / "conf", tmp_path / "conf"))


def tree(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def section(runs: FakeRuns, name: str) -> dict[str, Any]:
    """Return a section of the configuration the last run got."""
    found = runs.last.config.to_dict()[name]
    assert isinstance(found, dict)
    return found


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    """Return what was printed to stderr, which must be one line."""
    text = capsys.readouterr().err
    assert text.count("\n") == 1, text
    assert text.startswith("error: ")
    return text.strip()


# One run ------------------------------------------------------------------------------------------


def test_a_run_gets_its_configuration_folder_and_argv(runs: FakeRuns) -> None:
    assert cli.run(["seed=7", "data.max_steps=3", "run_dir=R"]) == 0
    call = runs.last
    assert call.run_dir == Path.cwd() / "R"
    assert call.config.run.seed == 7
    assert call.config.effective_max_steps == 3
    assert call.argv == ["scripts/train.py", "seed=7", "data.max_steps=3", "run_dir=R"]
    assert (call.notes, call.warnings) == ([], [])
    assert OmegaConf.load("R/.hydra/overrides.yaml") == ["seed=7", "data.max_steps=3"]
    assert not Path("R/.lock.json").exists()


def test_without_a_folder_each_run_gets_its_own(runs: FakeRuns) -> None:
    assert cli.run(["name=mine"]) == 0
    assert cli.run(["name=mine"]) == 0
    first, second = (call.run_dir for call in runs.calls)
    assert first != second
    assert first.parent == second.parent == Path.cwd() / "outputs" / "mine"
    assert (first / ".hydra" / "config.yaml").exists()


@pytest.mark.parametrize(
    ("typed", "folder"),
    [
        ("R", "R"),
        ("./R/", "R"),
        ("a b/c=d", "a b/c=d"),
        ("it's", "it's"),
        ("'quoted'", "quoted"),
        ("[x],{y}", "[x],{y}"),
        ("ünï #1", "ünï #1"),
        ("~/R", "home/R"),
    ],
)
def test_a_run_folder_may_be_written_in_any_way(
    runs: FakeRuns, monkeypatch: pytest.MonkeyPatch, typed: str, folder: str
) -> None:
    monkeypatch.setenv("HOME", str(Path.cwd() / "home"))
    assert cli.run([f"run_dir={typed}"]) == 0
    assert runs.last.run_dir == Path.cwd() / folder
    assert (Path(folder) / ".hydra" / "config.yaml").exists()


@pytest.mark.parametrize("key", ["hydra.run.dir", "output_dir", "run.output_dir"])
def test_a_run_folder_has_several_names(runs: FakeRuns, key: str) -> None:
    assert cli.run([f"{key}=a b/c=d"]) == 0
    assert runs.last.run_dir == Path.cwd() / "a b" / "c=d"
    assert cli.run([f"{key}=./a b/c=d/", "resume=true"]) == 0
    assert Path("a b/c=d/.hydra/resume-001/merged.yaml").exists()


def test_a_folder_with_interpolations_is_resolved_before_it_is_claimed(runs: FakeRuns) -> None:
    assert cli.run(["run_dir=out/${run.name}", "run.name=x"]) == 0
    assert runs.last.run_dir == Path.cwd() / "out" / "x"
    assert cli.run(["run_dir=out/${run.name}", "run.name=x"]) == 2


def test_a_folder_named_in_a_configuration_file_is_used(runs: FakeRuns, edited_conf: Path) -> None:
    (edited_conf / "local").mkdir(exist_ok=True)
    (edited_conf / "local" / "default.yaml").write_text(
        "# @package _global_\nrun:\n  output_dir: mine\n"
    )
    assert cli.run([], conf=edited_conf) == 0
    assert runs.last.run_dir == Path.cwd() / "mine"


def test_the_users_environment_is_the_same_inside_the_run(
    runs: FakeRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    assert cli.run(["run_dir=R"]) == 0
    assert runs.last.full_error is None
    assert "HYDRA_FULL_ERROR" not in os.environ


def test_a_signal_gives_its_exit_status(runs: FakeRuns) -> None:
    runs.signal_number = 15
    assert cli.run(["run_dir=R"]) == 143


def test_print_config_shows_the_resolved_configuration(
    runs: FakeRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["run_dir=R", "extras.print_config=true", "seed=5"]) == 0
    text = capsys.readouterr().out
    assert OmegaConf.create(text).run.seed == 5
    assert "  target_batch_size: null # " in text
    assert "  # accumulation_steps: " in text


# Folders that hold a run --------------------------------------------------------------------------


def test_a_second_start_is_refused_before_anything_is_written(
    runs: FakeRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["run_dir=R", "max_steps=20"]) == 0
    before = tree(Path("R"))
    assert cli.run(["run_dir=R", "max_steps=20"]) == 2
    assert error_of(capsys) == (
        f"error: {Path.cwd()}/R holds a run (step 20); use resume=true to continue it or "
        "overwrite=true to move it aside"
    )
    assert tree(Path("R")) == before
    assert len(runs.calls) == 1


def test_overwrite_moves_the_old_run_aside(runs: FakeRuns) -> None:
    assert cli.run(["run_dir=R", "seed=1"]) == 0
    old = tree(Path("R"))
    for number in (1, 2):
        assert cli.run(["run_dir=R", "seed=2", "overwrite=true"]) == 0
        assert runs.last.notes == [f"moved the earlier run to {Path.cwd()}/R.bak-{number}"]
    assert tree(Path("R.bak-1")) == old
    assert OmegaConf.load("R/.hydra/overrides.yaml") == ["seed=2", "overwrite=true"]


def test_overwrite_with_a_mistake_moves_nothing(runs: FakeRuns) -> None:
    assert cli.run(["run_dir=R"]) == 0
    before = tree(Path("R"))
    assert cli.run(["run_dir=R", "overwrite=true", "model.n_head=7"]) == 2
    assert tree(Path("R")) == before
    assert not Path("R.bak-1").exists()


def test_an_overwritten_run_can_be_resumed_without_overwriting_it_again(runs: FakeRuns) -> None:
    assert cli.run(["run_dir=R", "seed=3", "overwrite=true"]) == 0
    assert cli.run(["run_dir=R", "resume=true"]) == 0
    assert runs.last.config.run.seed == 3
    assert not runs.last.config.overwrite


def test_resume_and_overwrite_exclude_each_other(
    runs: FakeRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["run_dir=R", "resume=true", "overwrite=true"]) == 2
    assert "resume and overwrite cannot both be true" in error_of(capsys)
    assert not Path("R").exists()


def test_a_start_that_failed_before_its_first_step_may_be_repeated(runs: FakeRuns) -> None:
    runs.error = NonFiniteError("nothing worked")
    assert cli.run(["run_dir=R", "seed=1", "resume=true"]) == 1
    assert cli.run(["run_dir=R", "resume=true"]) == 1
    assert Path("R/.hydra/resume-001/merged.yaml").exists()
    runs.error = None
    assert cli.run(["run_dir=R", "seed=2"]) == 0
    assert runs.last.config.run.seed == 2
    assert not Path("R/.hydra/resume-001").exists()


def test_a_folder_in_use_is_refused_with_its_owner(
    runs: FakeRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    script = (
        "import sys; from speedtronic.run_folder.claim import claim_folder;"
        "claim = claim_folder('R'); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert cli.run(["run_dir=R"]) == 2
    assert f"R is in use by process {holder.pid} on " in error_of(capsys)
    holder.communicate()
    assert cli.run(["run_dir=R"]) == 0


def test_the_folder_is_claimed_while_the_run_goes_on(runs: FakeRuns) -> None:
    seen: list[dict[str, Any]] = []
    original = runs.run_command

    def look(config: SpeedtronicConfig, **given: Any) -> Report:
        seen.append(json.loads(RunFolder(given["run_dir"]).owner_json.read_text()))
        return original(config, **given)

    sys.modules["speedtronic.session"].run_command = look  # type: ignore[attr-defined]
    assert cli.run(["run_dir=R"]) == 0
    assert seen[0]["pid"] == os.getpid()


def test_a_file_in_the_place_of_the_folder_is_named(
    runs: FakeRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("R").write_text("mine")
    assert cli.run(["run_dir=R"]) == 2
    assert error_of(capsys).endswith("R is a file; choose another run_dir")
    assert Path("R").read_text() == "mine"


@pytest.mark.parametrize("name", ["x" * 300, "file/sub"])
def test_a_folder_that_cannot_be_made_is_one_line(
    runs: FakeRuns, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    Path("file").write_text("mine")
    for words in (["seed=1"], ["resume=true"]):
        assert cli.run([f"run_dir={name}", *words]) == 2
        assert "choose another" in error_of(capsys)


# Resume -------------------------------------------------------------------------------------------


def test_resume_brings_choices_and_values_back_and_leaves_the_first_hydra_alone(
    runs: FakeRuns,
) -> None:
    start = ["model=nano", "scheduler=linear", "optimizer.lr=0.05", "seed=7", "max_steps=4"]
    assert cli.run([*start, "run_dir=R"]) == 0
    first = tree(Path("R/.hydra"))
    assert cli.run(["run_dir=R", "resume=true", "max_steps=6"]) == 0
    call = runs.last
    assert call.config.resume
    assert type(call.config.scheduler).__name__ == "LinearSettings"
    assert section(runs, "model")["d_model"] == 64
    assert section(runs, "optimizer")["lr"] == 0.05
    assert (call.config.run.seed, call.config.run.max_steps) == (7, 6)
    assert call.notes == ["resume override run.max_steps: 4 -> 6"]
    kept = {name: text for name, text in tree(Path("R/.hydra")).items() if name in first}
    assert kept == first
    assert OmegaConf.load("R/.hydra/resume-001/overrides.yaml") == [
        *start[:-1],
        "resume=true",
        "max_steps=6",
    ]


def test_segments_build_on_each_other(runs: FakeRuns) -> None:
    assert cli.run(["run_dir=R", "optimizer.lr=0.1", "tags=[a,b]"]) == 0
    assert cli.run(["run_dir=R", "resume=true", "optimizer.lr=0.2", "logging.every_steps=3"]) == 0
    assert cli.run(["run_dir=R", "resume=true", "checkpoint.every_steps=5"]) == 0
    assert runs.last.notes == ["resume override checkpoint.every_steps: 500 -> 5"]
    assert cli.run(["run_dir=R", "resume=true"]) == 0
    config = runs.last.config
    assert runs.last.notes == []
    assert section(runs, "optimizer")["lr"] == 0.2
    assert (config.logging.every_steps, config.checkpoint.every_steps) == (3, 5)
    assert config.tags == ("a", "b")
    assert sorted(path.name for path in Path("R/.hydra").glob("resume-*")) == [
        "resume-001",
        "resume-002",
        "resume-003",
    ]


def test_the_same_line_serves_first_start_and_requeue(runs: FakeRuns) -> None:
    line = ["scheduler=constant", "optimizer.lr=0.1", "run_dir=R", "resume=true"]
    for _ in range(3):
        assert cli.run(line) == 0
        assert runs.last.notes == []
        assert type(runs.last.config.scheduler).__name__ == "ConstantSettings"
    assert Path("R/.hydra/config.yaml").exists()


def test_saved_values_win_over_edited_files_and_the_command_line_over_both(
    runs: FakeRuns, edited_conf: Path
) -> None:
    file = edited_conf / "optimizer" / "adamw.yaml"
    original = OmegaConf.load(file)
    assert cli.run(["run_dir=R", "optimizer.eps=1e-7"], conf=edited_conf) == 0
    OmegaConf.save({**original, "lr": 0.5, "weight_decay": 0.3, "eps": 1e-3}, file)
    assert cli.run(["run_dir=R", "resume=true"], conf=edited_conf) == 0
    optimizer = section(runs, "optimizer")
    assert (optimizer["lr"], optimizer["weight_decay"], optimizer["eps"]) == (1e-3, 0.1, 1e-7)
    assert runs.last.notes == [
        "kept saved value optimizer.lr: 0.001 (the configuration files say 0.5 now)",
        "kept saved value optimizer.weight_decay: 0.1 (the configuration files say 0.3 now)",
    ]
    assert cli.run(["run_dir=R", "resume=true", "optimizer.lr=0.5"], conf=edited_conf) == 0
    optimizer = section(runs, "optimizer")
    assert (optimizer["lr"], optimizer["weight_decay"]) == (0.5, 0.1)
    assert runs.last.notes[0] == "resume override optimizer.lr: 0.001 -> 0.5"


def test_another_schedule_replaces_the_saved_one_and_its_values(runs: FakeRuns) -> None:
    assert cli.run(["run_dir=R", "scheduler=cosine", "scheduler.warmup_steps=9"]) == 0
    assert cli.run(["run_dir=R", "resume=true", "scheduler=constant"]) == 0
    assert type(runs.last.config.scheduler).__name__ == "ConstantSettings"
    assert section(runs, "scheduler")["warmup_steps"] is None
    assert runs.last.notes[0] == "resume override scheduler: cosine -> constant"
    assert "resume override scheduler.warmup_steps: 9 -> null" in runs.last.notes
    assert cli.run(["run_dir=R", "resume=true"]) == 0
    assert type(runs.last.config.scheduler).__name__ == "ConstantSettings"


@pytest.mark.parametrize(
    ("overrides", "listed"),
    [
        (["model.d_model=512"], "model.d_model: 256 -> 512"),
        (["model=nano"], "model.n_layer: 4 -> 2"),
        (["seed=1"], "run.seed: 1234 -> 1"),
        (["data.seed=1"], "data.seed: null -> 1"),
        (["data.micro_batch_size=4"], "data.micro_batch_size: 16 -> 4"),
        (["data.target_batch_size=32"], "data.target_batch_size: null -> 32"),
        (["data.tokenizer=char"], "data.tokenizer: byte -> char"),
        (["data.block_size=64"], "data.block_size: null -> 64"),
        (["data=text", "data.path=x.txt"], "data.path: null -> x.txt"),
        (["precision=fp32"], "precision.mode: auto -> fp32"),
        (["optimizer.decay=all"], "optimizer.decay: matrices -> all"),
    ],
)
def test_changes_that_make_another_run_are_refused_and_leave_no_trace(
    runs: FakeRuns,
    finished_run: Path,
    capsys: pytest.CaptureFixture[str],
    overrides: list[str],
    listed: str,
) -> None:
    before = tree(finished_run)
    assert cli.run([f"run_dir={finished_run}", "resume=true", *overrides]) == 2
    line = error_of(capsys)
    assert line.startswith("error: resume cannot change ")
    assert listed in line
    assert "resume_strict=false" in line
    assert tree(finished_run) == before


def test_strictness_is_lifted_for_one_start(runs: FakeRuns) -> None:
    assert cli.run(["run_dir=R"]) == 0
    assert cli.run(["run_dir=R", "resume=true", "resume_strict=false", "data.seed=1"]) == 0
    assert runs.last.notes == ["resume override data.seed: null -> 1"]
    assert cli.run(["run_dir=R", "resume=true"]) == 0
    assert runs.last.config.resume_strict
    assert (runs.last.notes, runs.last.config.data.seed) == ([], 1)


def test_other_changes_are_free(runs: FakeRuns, finished_run: Path) -> None:
    free = [
        "optimizer.lr=0.5",
        "optimizer.weight_decay=0.5",
        "optimizer.betas=[0.8,0.9]",
        "max_steps=5",
        "data.max_steps=5",
        "device=cpu",
        "logging.level=DEBUG",
        "checkpoint.every_steps=1",
        "evaluation.every_steps=1",
        "data.num_workers=2",
        "run.max_minutes=1",
    ]
    assert cli.run([f"run_dir={finished_run}", "resume=true", *free]) == 0
    assert len(runs.last.notes) == len(free)
    assert all(note.startswith("resume override ") for note in runs.last.notes)


def test_lists_are_compared_by_value(runs: FakeRuns) -> None:
    assert cli.run(["run_dir=R", "optimizer.betas=[0.9,0.99]"]) == 0
    assert cli.run(["run_dir=R", "resume=true", "optimizer.betas=[0.9, 0.99]"]) == 0
    assert runs.last.notes == []


def test_permissions_for_targets_are_never_taken_from_a_saved_run(
    runs: FakeRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = ["model._target_=pydantic.BaseModel", "extras.allow_targets=[pydantic]"]
    assert cli.run([*foreign, "run_dir=R"]) == 0
    assert cli.run(["run_dir=R", "resume=true"]) == 2
    assert "extras.allow_targets=[pydantic.BaseModel]" in error_of(capsys)
    assert cli.run(["run_dir=R", "resume=true", "extras.allow_targets=[pydantic]"]) == 0
    assert runs.last.config.extras.allow_targets == ("pydantic",)
    assert runs.last.notes == []


def test_a_saved_configuration_is_not_trusted_for_targets(
    runs: FakeRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["run_dir=R"]) == 0
    saved = Path("R/.hydra/config.yaml")
    config = OmegaConf.load(saved)
    config.model = {"_target_": "pathlib.Path"}
    config.extras.allow_targets = ["pathlib"]
    OmegaConf.save(config, saved)
    assert cli.run(["run_dir=R", "resume=true"]) == 2
    assert "pathlib.Path" in error_of(capsys)


def test_a_run_started_from_python_is_resumed_with_its_config_json(runs: FakeRuns) -> None:
    config = SpeedtronicConfig.from_dict({"seed": 5, "scheduler": "linear"})
    Path("R/checkpoints/step_000000000010").mkdir(parents=True)
    Path("R/config.json").write_text(json.dumps(config.to_dict()))
    assert cli.run(["run_dir=R", "resume=true", "max_steps=20"]) == 0
    assert runs.last.config.run.seed == 5
    assert runs.last.config.run.max_steps == 20
    assert type(runs.last.config.scheduler).__name__ == "LinearSettings"
    assert runs.last.notes == ["resume override run.max_steps: 1000 -> 20"]
    assert cli.run(["run_dir=R", "resume=true"]) == 0
    assert runs.last.notes == []
    assert runs.last.config.run.seed == 5


def test_a_torn_first_hydra_folder_counts_as_none(runs: FakeRuns) -> None:
    Path("R/.hydra").mkdir(parents=True)
    Path("R/.hydra/config.yaml").write_text("model:\n  n_layer: 9\n")
    Path("R/.hydra/overrides.yaml").write_text("")
    assert cli.run(["run_dir=R", "resume=true"]) == 0
    assert section(runs, "model")["n_layer"] == 4


def test_resume_without_a_folder_warns_and_lists_the_newest_runs(
    runs: FakeRuns, finished_run: Path
) -> None:
    folders = [Path("outputs/mine") / name for name in ("oldest", "second", "third", "newest")]
    for number, folder in enumerate(folders):
        checkpoints = Path(shutil.copytree(finished_run, folder)) / "checkpoints"
        (checkpoints / f"step_{2000 + number:012d}").mkdir()
        os.utime(checkpoints, (1000 + number, 1000 + number))
    assert cli.run(["name=mine", "resume=true"]) == 0
    assert runs.last.run_dir.parent == Path.cwd() / "outputs" / "mine"
    assert runs.last.run_dir.name not in {folder.name for folder in folders}
    command = "python scripts/train.py run_dir=outputs/mine"
    assert runs.last.warnings == [
        "resume=true without run_dir=R starts a new run",
        f"to continue from step 2,003: {command}/newest resume=true",
        f"to continue from step 2,002: {command}/third resume=true",
        f"to continue from step 2,001: {command}/second resume=true",
    ]


def test_a_target_without_effect_is_said(runs: FakeRuns) -> None:
    assert cli.run(["run_dir=R", "data.max_steps=20"]) == 0
    assert cli.run(["run_dir=R", "resume=true", "max_steps=40"]) == 0
    assert runs.last.warnings == ["run.max_steps has no effect: data.max_steps=20 goes first"]


def test_a_dead_owner_is_noted(runs: FakeRuns) -> None:
    assert cli.run(["run_dir=R"]) == 0
    owner = {"pid": 2**22 + 1, "host": "h", "started": "2026-01-01"}
    Path("R/.lock.json").write_text(json.dumps(owner))
    assert cli.run(["run_dir=R", "resume=true"]) == 0
    assert runs.last.notes == [
        f"took the folder over from process {2**22 + 1} on h since 2026-01-01, "
        "which ended without releasing it"
    ]


# Mistakes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["optimizer.lrr=1"], "optimizer.lrr: unknown key, got 1; did you mean 'optimizer.lr'?"),
        (["+optimizer.lrr=1"], "optimizer.lrr: unknown key, got 1; did you mean 'optimizer.lr'?"),
        (["++optimizer.lrr=1"], "optimizer.lrr: unknown key, got 1; did you mean 'optimizer.lr'?"),
        (["+experimant=x"], "did you mean 'experiment'?"),
        (["optimizr=adamw"], "optimizr: unknown key, got 'adamw'; did you mean 'optimizer'?"),
        (["model=nanoo"], "model=nanoo does not exist; did you mean nano? options: "),
        (["experiment=nope"], "experiment=nope does not exist; options: "),
        (["model.n_head=7"], "model.n_head (7)"),
        (["seed=1,2"], "Ambiguous value for argument 'seed=1,2': write [a,b] for a list"),
        (["tags=[1,2"], "bad syntax in an override: "),
        (["model.n_layer"], "bad syntax in an override: "),
        (["+optimizer.lr=1"], "optimizer.lr is a known key: write optimizer.lr=VALUE without +"),
        (["run_dir=a", "hydra.run.dir=b"], "run_dir is given twice: a and b; give one"),
        (["run_dir="], "run_dir must name a folder, got nothing; write run_dir=PATH"),
        (["-m", "run_dir=a"], "run_dir is for one run, got a; use sweep_dir=S with -m"),
        (["sweep_dir=a"], "sweep_dir is for a multirun, got a; add -m or use run_dir=R"),
        (["--bad"], "unrecognized arguments: --bad; --hydra-help lists the options"),
        (["--experimental-rerun", "x"], "is not supported; use run_dir=R resume=true"),
        (["--config-dir=nowhere"], "--config-dir must name a folder, got "),
        (["hydra.run.dir=${oc.env:NO_SUCH}"], "hydra.run.dir: "),
        (["-m", "optimizer.lrr=1,2"], "optimizer.lrr: unknown key"),
        (["--cfg", "job", "optimizer.lrr=1"], "optimizer.lrr: unknown key, got 1; did you mean"),
    ],
)
def test_a_mistake_is_one_line_with_status_2_and_writes_nothing(
    runs: FakeRuns, capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    assert cli.run(words) == 2
    assert text in error_of(capsys)
    assert runs.calls == []
    if "-m" not in words:
        assert list(Path.cwd().iterdir()) == []


def test_a_fault_of_the_run_is_one_line_with_status_1(
    runs: FakeRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.error = NonFiniteError("20 attempts in a row\nwere not finite")
    assert cli.run(["run_dir=R"]) == 1
    assert error_of(capsys) == "error: 20 attempts in a row were not finite"


def test_full_errors_show_the_traceback(
    runs: FakeRuns, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    runs.error = NonFiniteError("bad")
    assert cli.run(["run_dir=R"]) == 1
    assert runs.last.full_error == "1"
    text = capsys.readouterr().err
    assert "Traceback" in text
    assert text.endswith("error: bad\n")


def test_an_unexpected_error_shows_its_traceback_with_status_1(
    runs: FakeRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.error = ZeroDivisionError("boom")
    assert cli.run(["run_dir=R"]) == 1
    text = capsys.readouterr().err
    assert "Traceback" in text
    assert text.endswith("ZeroDivisionError: boom\n")


def test_ctrl_c_ends_with_130_and_without_a_traceback(
    runs: FakeRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.error = KeyboardInterrupt()
    assert cli.run(["run_dir=R"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize(("code", "status"), [(3, 3), (None, 0), ("text", 1)])
def test_sys_exit_in_a_run_keeps_its_status(runs: FakeRuns, code: Any, status: int) -> None:
    runs.error = SystemExit(code)
    assert cli.run(["run_dir=R"]) == status


# Multirun -----------------------------------------------------------------------------------------


def test_a_multirun_trains_each_job_in_its_folder(runs: FakeRuns) -> None:
    assert cli.run(["-m", "seed=1,2", "sweep_dir=S w", "max_steps=3"]) == 0
    assert [call.config.run.seed for call in runs.calls] == [1, 2]
    assert [call.run_dir for call in runs.calls] == [Path.cwd() / "S w" / name for name in "01"]


def test_a_multirun_with_a_failed_job_trains_the_others_and_ends_with_1(
    runs: FakeRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["-m", "model.n_head=8,7,4", "sweep_dir=S"]) == 1
    assert len(runs.calls) == 2
    text = capsys.readouterr().err
    assert "job 1 failed:\nerror: model.d_model must be divisible by model.n_head (7)" in text


def test_a_multirun_does_not_mix_with_an_earlier_one(
    runs: FakeRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["-m", "seed=1", "sweep_dir=S"]) == 0
    assert cli.run(["-m", "seed=1", "sweep_dir=S"]) == 1
    assert (
        "holds a run (step 1000); use resume=true or another sweep_dir" in capsys.readouterr().err
    )


def test_a_signal_ends_a_multirun(runs: FakeRuns) -> None:
    runs.signal_number = 2
    assert cli.run(["-m", "seed=1,2", "sweep_dir=S"]) == 130
    assert len(runs.calls) == 1


def test_the_mode_may_come_from_a_configuration_file(runs: FakeRuns, edited_conf: Path) -> None:
    config = edited_conf / "config.yaml"
    config.write_text(config.read_text().replace("hydra:\n", "hydra:\n  mode: MULTIRUN\n", 1))
    assert cli.run(["hydra.sweep.dir=S"], conf=edited_conf) == 0
    assert runs.last.run_dir == Path.cwd() / "S" / "0"


def test_a_sweeper_gets_the_chosen_metric(runs: FakeRuns) -> None:
    claim_folder("R").release()
    config = SpeedtronicConfig.from_dict({"extras": {"return_metric": "steps"}, "max_steps": 9})
    outcome = cli.execute(config, folder=RunFolder(Path("R")), argv=[])
    assert outcome == cli.Outcome(value=9.0, exit_status=0)


# Questions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--help"], "Groups and their options"),
        (["--hydra-help"], "== Flags =="),
        (["--cfg", "job", "run_dir=R", "seed=3"], "seed: 3"),
        (["--info", "searchpath"], "Config search path"),
    ],
)
def test_questions_are_answered_without_torch_and_without_a_folder(
    tmp_path: Path, words: list[str], text: str
) -> None:
    script = (
        "import sys; from speedtronic import cli; status = cli.run(sys.argv[1:]);"
        "assert 'torch' not in sys.modules; sys.exit(status)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert text in answer.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_closed_pipe_is_no_traceback(tmp_path: Path) -> None:
    command = f"{sys.executable} {ROOT}/scripts/train.py --cfg job | head -1"
    answer = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in answer.stderr
    assert "BrokenPipe" not in answer.stderr
