"""The bundled model, loader, optimizer and schedule together: resumed from files, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from speedtronic.checkpoint.manager import CheckpointManager
from speedtronic.core.seeding import seed_everything
from speedtronic.data.evaluation import EvaluationBatches
from speedtronic.data.loader import TokenLoader
from speedtronic.models.gpt import GPT
from speedtronic.optim.adamw import build_adamw
from speedtronic.precision import plan_precision
from speedtronic.schedule.build import build_schedule
from speedtronic.trainer import Trainer
from tests.unit.trainer.builders import Recorder, assert_same_tensors, make_logger

NUM_STEPS = 12
BLOCK = 16
TOKENS = np.random.default_rng(0).integers(0, 32, 40 * BLOCK + 1).astype(np.uint16)


def build(folder, mode: str, recorder: Recorder) -> Trainer:
    seed_everything(5)
    device = torch.device("cpu")
    model = GPT(vocab_size=32, max_seq_len=BLOCK, n_layer=2, n_head=2, d_model=16, dropout=0.2)
    optimizer = build_adamw(
        model, lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, device=device
    )
    return Trainer(
        model,
        optimizer,
        TokenLoader(TOKENS, block_size=BLOCK, micro_batch_size=4, seed=5),
        device=device,
        config={
            "data": {"micro_batch_size": 4, "target_batch_size": 8},
            "evaluation": {"every_steps": 4},
        },
        scheduler=build_schedule(optimizer, kind="cosine", horizon=NUM_STEPS),
        precision=plan_precision(mode=mode, device=device),
        logger=make_logger(recorder, every_steps=1),
        checkpoint_manager=CheckpointManager(folder, every_steps=5, keep_best=1),
        eval_dataloader=EvaluationBatches(
            TOKENS[: 8 * BLOCK + 1], block_size=BLOCK, micro_batch_size=4, max_batches=None
        ),
    )


@pytest.mark.parametrize("mode", ["fp32", "bf16"])
def test_a_language_model_resumed_three_times_is_bit_exact(tmp_path, mode) -> None:
    expected = Recorder()
    straight = build(tmp_path / "straight", mode, expected)
    straight.fit(NUM_STEPS)
    straight_state = straight.checkpoint_manager.load_latest()
    straight.checkpoint_manager.close()

    found = Recorder()
    for target in (3, 8, 9, NUM_STEPS):
        trainer = build(tmp_path / "parts", mode, found)
        state = trainer.checkpoint_manager.load_latest()
        if state is not None:
            trainer.resume(state)
        trainer.fit(target)
        state = trainer.checkpoint_manager.load_latest()
        trainer.checkpoint_manager.close()

    def curve(recorder):
        return [
            (record["step"], record["loss"], record["lr"]) for record in recorder.of("train_step")
        ]

    assert curve(found) == curve(expected)
    final = expected.of("eval")[-1], found.of("eval")[-1]
    assert final[0]["loss"] == final[1]["loss"]
    for part in ("model", "optimizer", "scheduler", "rng", "data"):
        assert_same_tensors(state[part], straight_state[part], part)
