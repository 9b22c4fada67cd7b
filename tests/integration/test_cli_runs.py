"""Real runs through ``scripts/train.py``: signals, edited files, foreign code, several jobs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[2]
TRAIN = [sys.executable, str(ROOT / "scripts" / "train.py")]


def train(*words: str, cwd: Path, status: int = 0) -> str:
    """Run the command line to its end and return what it printed."""
    answer = subprocess.run(
        [*TRAIN, *words], cwd=cwd, capture_output=True, text=True, timeout=240, check=False
    )
    output = answer.stdout + answer.stderr
    assert answer.returncode == status, output
    return output


def events(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the records of one event; a torn last line is left out."""
    if not (folder / "metrics.jsonl").exists():
        return []
    found = []
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if record["event"] == name:
            found.append(record)
    return found


def curve(folder: Path) -> list[tuple[int, float, float]]:
    return [(r["step"], r["loss"], r["lr"]) for r in events(folder, "train_step")]


def checkpoint_tensors(folder: Path, step: int) -> dict[str, list[Any]]:
    """Return every tensor of a checkpoint by file and name."""
    directory = folder / "checkpoints" / f"step_{step:012d}"
    tensors = {
        f"{path.name}/{name}": tensor.tolist()
        for path in directory.glob("*.safetensors")
        for name, tensor in load_file(path).items()
    }
    assert len(tensors) > 20
    return tensors


def wait_for_step(process: subprocess.Popen[str], folder: Path, step: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        if any(record["step"] >= step for record in events(folder, "train_step")):
            return
        time.sleep(0.02)
    raise AssertionError(f"step {step} was not reached")


def start(*words: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*TRAIN, *words], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGUSR1, 138)])
def test_a_signal_saves_and_ends_with_its_status(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    folder = tmp_path / "R"
    process = start("debug=smoke", "max_steps=1000000", "run_dir=R", cwd=tmp_path)
    wait_for_step(process, folder, 3)
    process.send_signal(number)
    _, error = process.communicate(timeout=120)
    assert process.returncode == status, error
    assert "Traceback" not in error
    result = json.loads((folder / "result.json").read_text())
    assert result["status"] == "interrupted"
    assert (folder / "checkpoints" / f"step_{result['steps']:012d}").is_dir()
    assert not (folder / ".lock.json").exists()
    segment = json.loads((folder / "run.json").read_text())["segments"][0]
    assert (segment["status"], segment["steps"]) == ("interrupted", result["steps"])


def test_a_killed_run_continues_with_its_own_values_after_the_files_were_edited(
    tmp_path: Path,
) -> None:
    """Case 3: kill at a step, edit the YAML file, resume: bit-equal to an undisturbed run."""
    conf = Path(shutil.copytree(ROOT / "conf", tmp_path / "conf"))
    words = [
        f"--config-path={conf}",
        "debug=smoke",
        "optimizer.lr=0.05",
        "scheduler=linear",
        "seed=7",
        "max_steps=40",
        "checkpoint.every_steps=3",
    ]
    train(*words, "run_dir=A", cwd=tmp_path)
    process = start(*words, "run_dir=B", cwd=tmp_path)
    wait_for_step(process, tmp_path / "B", 10)
    process.kill()
    process.communicate()
    first = {p.name: p.read_bytes() for p in (tmp_path / "B" / ".hydra").iterdir()}
    file = conf / "optimizer" / "adamw.yaml"
    OmegaConf.save({**OmegaConf.load(file), "weight_decay": 0.9}, file)
    output = train(words[0], "run_dir=B", "resume=true", cwd=tmp_path)
    assert "kept saved value optimizer.weight_decay: 0.1" in output
    assert "took the folder over from process" in output
    assert curve(tmp_path / "A") == curve(tmp_path / "B")
    assert checkpoint_tensors(tmp_path / "A", 40) == checkpoint_tensors(tmp_path / "B", 40)
    now = {p.name: p.read_bytes() for p in (tmp_path / "B" / ".hydra").iterdir() if p.is_file()}
    assert now == first
    segments = json.loads((tmp_path / "B" / "run.json").read_text())["segments"]
    assert [segment["status"] for segment in segments] == ["killed", "completed"]


def test_a_model_of_the_users_own_trains_from_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self, vocab_size, width):\n"
        "        super().__init__()\n"
        "        self.embed = torch.nn.Embedding(vocab_size, width)\n"
        "        self.head = torch.nn.Linear(width, vocab_size)\n"
        "    def forward(self, input_ids, labels=None):\n"
        "        return {'logits': self.head(self.embed(input_ids))}\n"
    )
    model = ["model._target_=nets.Net", "+model.width=8"]
    small = ["data=synthetic", "data.block_size=16", "max_steps=3", "evaluation.max_batches=2"]
    train(*small, *model, "run_dir=R", cwd=tmp_path)
    assert json.loads((tmp_path / "R" / "result.json").read_text())["steps"] == 3


def test_a_multirun_trains_every_job_and_counts_the_failed_one(tmp_path: Path) -> None:
    output = train(
        "-m", "debug=smoke", "optimizer.lr=0.1,-1,0.2", "sweep_dir=S", cwd=tmp_path, status=1
    )
    assert "job 1 failed:\nerror: optimizer.lr: " in output
    results = [tmp_path / "S" / name / "result.json" for name in "012"]
    assert [path.exists() for path in results] == [True, False, True]
    losses = [json.loads(results[at].read_text())["final_loss"] for at in (0, 2)]
    assert losses[0] != losses[1]


def test_two_starts_at_once_get_two_folders_or_one_owner(tmp_path: Path) -> None:
    apart = [start("debug=smoke", cwd=tmp_path) for _ in range(2)]
    together = [start("debug=smoke", "run_dir=R", cwd=tmp_path) for _ in range(2)]
    for process in [*apart, *together]:
        process.communicate(timeout=240)
    assert [process.returncode for process in apart] == [0, 0]
    assert len(list((tmp_path / "outputs" / "debug").iterdir())) == 2
    assert sorted(process.returncode for process in together) == [0, 2]


def test_a_wheel_ships_the_configuration_tree(tmp_path: Path) -> None:
    """Case 12: installed elsewhere, the command works and its configurations can be searched."""
    wheel = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    ignore = shutil.ignore_patterns("__pycache__", "local")
    shutil.copytree(ROOT / "speedtronic", source / "speedtronic", ignore=ignore)
    shutil.copytree(ROOT / "conf", source / "conf", ignore=ignore)
    subprocess.run([*wheel, "-w", str(tmp_path), str(source)], check=True)
    site = tmp_path / "site"
    shutil.unpack_archive(next(tmp_path.glob("speedtronic-*.whl")), site, format="zip")
    shipped = {str(p.relative_to(site / "speedtronic" / "conf")) for p in site.rglob("*.yaml")}
    expected = {str(p.relative_to(ROOT / "conf")) for p in (ROOT / "conf").rglob("*.yaml")}
    assert shipped == {name for name in expected if not name.startswith("local/")}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.yaml").write_text("defaults: [{optimizer: adamw}, _self_]\n")
    script = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); import speedtronic;"
        "assert 'site' in speedtronic.__file__; from speedtronic.cli import main; main()"
    )
    command = [sys.executable, "-c", script, str(site), "--cfg", "job"]
    plain = subprocess.run(
        [*command, "optimizer.lr=0.3"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert OmegaConf.create(plain.stdout).optimizer.lr == 0.3
    other = f"--config-path={tmp_path / 'other'}"
    searched = subprocess.run(
        [*command, other, "hydra.searchpath=[pkg://speedtronic.conf]"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(site)},
    )
    assert OmegaConf.create(searched.stdout).optimizer.lr == 0.001
