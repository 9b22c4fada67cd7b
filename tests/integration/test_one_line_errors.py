"""What a user gets wrong ends in one line, exit status 2, and loses nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from speedtronic import cli, evaluate, sample
from speedtronic.checkpoint import __main__ as checkpoints
from speedtronic.core.arguments import run_tool

TEXT = ("data=text", "data.path=text.txt", "model=nano", "model.max_seq_len=16")
QUICK = (
    *TEXT,
    "data.micro_batch_size=2",
    "precision=fp32",
    "data.max_steps=2",
    "evaluation.max_batches=1",
    "logging.tensorboard=false",
    "logging.plots=false",
    "run_dir=R",
)


@pytest.fixture(autouse=True)
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question\n" * 40)
    (tmp_path / "latin1.txt").write_bytes("to be or not to be: caf\xe9".encode("latin-1"))
    (tmp_path / "short.txt").write_text("to be")
    (tmp_path / "file").write_text("no folder")
    return tmp_path


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (("optimizer.lrr=1",), "optimizer.lrr: unknown key, got 1; did you mean 'optimizer.lr'?"),
        (("+optimizer.lrr=1",), "optimizer.lrr: unknown key, got 1; did you mean 'optimizer.lr'?"),
        (
            ("optimizer.muon_lr=0.1",),
            "optimizer.muon_lr: unknown key here, got 0.1; it belongs to optimizer=muon, muon_plus,"
            " muon_torch, normuon",
        ),
        (
            ("scheduler.decay_ratio=0.5",),
            "scheduler.decay_ratio: unknown key here, got 0.5; it belongs to scheduler=wsd",
        ),
        (
            ("optimizer.lr=fast",),
            "optimizer.lr: must be a number, got 'fast'; the default is 0.001",
        ),
        (
            ("optimizer.lr=-1",),
            "optimizer.lr: must be greater than 0, got -1; the default is 0.001",
        ),
        (
            ("model.n_head=7",),
            "model.d_model must be divisible by model.n_head (7), got 256;"
            " try model.n_head=8 or model.d_model=252",
        ),
        (
            ("data.target_batch_size=6", "data.micro_batch_size=4"),
            "data.target_batch_size must be a multiple of data.micro_batch_size (4), got 6; try 8",
        ),
        (
            ("data=text", "data.path=no.txt"),
            "data.path: there is no file no.txt (working directory {cwd}); check the path",
        ),
        (
            ("data=text", "data.path=latin1.txt"),
            "data.path: latin1.txt is not UTF-8: byte 0xe9 at byte offset 23 (unexpected end of"
            " data); convert the file to UTF-8 or leave it out",
        ),
        (
            (*TEXT, "data.path=short.txt"),
            "data.path: the training part has 5 tokens, fewer than a block needs"
            " (data.block_size + 1 = 17); give more data or a smaller data.block_size",
        ),
        (
            (*TEXT, "data.micro_batch_size=1000"),
            "data.micro_batch_size (1000) is larger than the training data (98 blocks of 16"
            " tokens); use at most 98 or data.drop_last=false",
        ),
        (
            ("run_dir=file/R",),
            "run folder {cwd}/file/R cannot be written: Not a directory; choose another with"
            " run_dir=PATH",
        ),
        (
            (*QUICK, "device=cuda:7"),
            "run.device must be a device of this machine (cpu), got 'cuda:7'; try run.device=auto",
        ),
        (
            (*TEXT, "data.tokenizer=bite"),
            "data.tokenizer: must be byte, char or file:PATH, got 'bite'; the default is 'byte'",
        ),
        (
            ("init_from=nowhere", *QUICK),
            "nowhere is no folder; give a run folder or a folder of checkpoints",
        ),
        (
            ("model._target_=os.system",),
            "model._target_: 'os.system' may not be called: it is in the standard library, which is"
            " never called; not even extras.allow_targets opens it; name a class of your own",
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_status_2(
    argv: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(argv) == 2
    assert capsys.readouterr().err == f"error: {line.format(cwd=Path.cwd())}\n"


def test_a_foreign_checkpoint_names_its_tensors_and_the_run_stays(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.run(QUICK) == 0
    saved = {path: path.read_bytes() for path in Path("R/checkpoints").rglob("*") if path.is_file()}
    capsys.readouterr()

    assert cli.run(("run_dir=R", "resume=true", "resume_strict=false", "model.d_model=32")) == 2

    line = capsys.readouterr().err
    assert line.startswith("error: the checkpoint belongs to another model: ")
    assert "embedding.weight has shape (256, 64), the model's has (256, 32)" in line
    assert line.count("\n") == 1
    assert {path: path.read_bytes() for path in saved} == saved


@pytest.mark.parametrize(
    ("main", "usage", "argv", "line"),
    [
        (sample.main, sample.USAGE, [], f"run must be given; usage: {sample.USAGE}"),
        (
            sample.main,
            sample.USAGE,
            ["nowhere"],
            "nowhere must be a run folder, but holds no config.json; check the path",
        ),
        (
            evaluate.main,
            evaluate.USAGE,
            ["nowhere", "data.paht=x"],
            "data.paht: unknown key, got 'x'; did you mean 'data.path'?",
        ),
    ],
)
def test_the_tools_say_what_is_wrong_in_one_line(
    main: Callable[..., int],
    usage: str,
    argv: list[str],
    line: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.argv", ["tool", *argv])
    assert run_tool(main, usage=usage) == 2
    assert capsys.readouterr().err == f"error: {line}\n"


def test_the_tools_read_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(QUICK) == 0
    capsys.readouterr()

    assert sample.main(["R", "prompt=to be", "tokens=5", "temperature=0"]) == 0
    assert capsys.readouterr().out.startswith("to be")
    assert evaluate.main(["R", "data.path=text.txt", "max_batches=2"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "R, step 2, on batches spread over text.txt:"
    assert [line.split()[0] for line in out.splitlines()[1:5]] == [
        "loss",
        "perplexity",
        "bits",
        "accuracy",
    ]
    assert checkpoints.main(["R"]) == 0
    assert "best, latest" in capsys.readouterr().out
    assert checkpoints.main(["R", "export=weights.safetensors"]) == 0
    assert Path("weights.safetensors").is_file()
    assert Path("weights.json").is_file()


def test_a_secret_of_the_command_line_is_in_no_file_and_must_be_given_again(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (workdir / "secret_data.py").write_text(
        "import torch\n"
        "class Data(torch.utils.data.Dataset):\n"
        "    def __init__(self, token):\n"
        "        assert token == 'hf_SECRET123'\n"
        "    def __len__(self):\n"
        "        return 8\n"
        "    def __getitem__(self, index):\n"
        "        ids = torch.arange(16) + index\n"
        "        return {'input_ids': ids, 'labels': ids}\n"
    )
    words = (
        "data._target_=secret_data.Data",
        "+data.token=hf_SECRET123",
        "model=nano",
        "model.vocab_size=64",
        "model.max_seq_len=16",
        "data.micro_batch_size=2",
        "data.max_steps=2",
        "run_dir=S",
    )
    try:
        assert cli.run(words) == 0, capsys.readouterr().err
        for path in Path("S").rglob("*"):
            assert not path.is_file() or b"hf_SECRET123" not in path.read_bytes(), path
        capsys.readouterr()

        assert cli.run(("run_dir=S", "resume=true", "data.max_steps=3")) == 2
        assert capsys.readouterr().err == (
            "error: data.token is a secret and was not saved with the run;"
            " give data.token=... again\n"
        )
        again = ("run_dir=S", "resume=true", "data.max_steps=3", "data.token=hf_SECRET123")
        assert cli.run(again) == 0, capsys.readouterr().err
        for path in Path("S").rglob("*"):
            assert not path.is_file() or b"hf_SECRET123" not in path.read_bytes(), path
    finally:
        sys.modules.pop("secret_data", None)
