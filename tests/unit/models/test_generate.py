"""Sampling: its own random numbers, greedy and top-k, context and modes."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from speedtronic.core.seeding import rng_state
from speedtronic.models.generate import generate
from speedtronic.models.gpt import GPT


class Fixed(nn.Module):
    """Gives the same odds for the next token whatever the context, and notes its lengths."""

    def __init__(self, odds: list[float]) -> None:
        super().__init__()
        self.register_buffer("logits", torch.tensor(odds).log())
        self.lengths: list[int] = []

    def forward(self, input_ids: Tensor) -> dict[str, Tensor]:
        self.lengths.append(input_ids.shape[1])
        return {"logits": self.logits.expand(*input_ids.shape, -1)}


class Successor(nn.Module):
    """Is sure that the next token is the last one plus one."""

    def forward(self, input_ids: Tensor) -> dict[str, Tensor]:
        return {"logits": nn.functional.one_hot(input_ids + 1, 50).float() * 100}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_gpt() -> GPT:
    torch.manual_seed(0)
    return GPT(vocab_size=11, max_seq_len=8, n_layer=1, n_head=2, d_model=16, dropout=0.5)


def sample(model: nn.Module, prompt: Tensor, **changes: Any) -> Tensor:
    return generate(model, prompt, **{"max_new_tokens": 5, "generator": seeded(), **changes})


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_prompt_and_continuation_come_back_in_the_shape_of_the_prompt(temperature: float) -> None:
    one = sample(Successor(), torch.tensor([3, 7]), temperature=temperature)
    assert one.tolist() == [3, 7, 8, 9, 10, 11, 12]
    two = sample(Successor(), torch.tensor([[3], [20]]), temperature=temperature, max_new_tokens=2)
    assert two.tolist() == [[3, 4, 5], [20, 21, 22]]
    assert sample(Successor(), torch.tensor([3]), max_new_tokens=0).tolist() == [3]


def test_temperature_zero_takes_the_likeliest_and_draws_nothing() -> None:
    generator = seeded()
    before = generator.get_state()
    ids = sample(Fixed([0.3, 0.4, 0.3]), torch.tensor([0]), temperature=0.0, generator=generator)
    assert ids.tolist() == [0, 1, 1, 1, 1, 1]
    assert torch.equal(generator.get_state(), before)


def test_tokens_are_drawn_by_their_odds() -> None:
    prompt = torch.zeros(4000, 1, dtype=torch.long)
    drawn = Counter(sample(Fixed([0.5, 0.3, 0.2]), prompt, max_new_tokens=1)[:, 1].tolist())
    for token, odds in enumerate((0.5, 0.3, 0.2)):
        assert drawn[token] / 4000 == pytest.approx(odds, abs=0.032)  # four standard deviations


def test_temperature_sharpens_the_odds() -> None:
    prompt = torch.zeros(4000, 1, dtype=torch.long)
    drawn = sample(Fixed([0.8, 0.2]), prompt, max_new_tokens=1, temperature=0.5)[:, 1]
    assert (drawn == 0).float().mean().item() == pytest.approx(0.64 / 0.68, abs=0.015)


def test_top_k_draws_from_the_likeliest_only() -> None:
    prompt = torch.zeros(2000, 1, dtype=torch.long)
    drawn = Counter(
        sample(Fixed([0.1, 0.3, 0.2, 0.4]), prompt, max_new_tokens=1, top_k=2)[:, 1].tolist()
    )
    assert set(drawn) == {1, 3}
    assert drawn[3] / 2000 == pytest.approx(4 / 7, abs=0.045)
    assert sample(Fixed([0.1, 0.9]), torch.tensor([0]), top_k=1).tolist() == [0, 1, 1, 1, 1, 1]
    assert len(sample(Fixed([0.1, 0.9]), torch.tensor([0]), top_k=99)) == 6


def test_equal_seeds_give_equal_text_and_others_differ() -> None:
    model, prompt = make_gpt(), torch.tensor([1])
    texts = [
        sample(model, prompt, max_new_tokens=20, generator=seeded(s)).tolist() for s in (5, 5, 6)
    ]
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


def test_no_random_number_of_training_is_used() -> None:
    model = make_gpt()
    before = rng_state()
    sample(model, torch.tensor([1]))
    after = rng_state()
    assert torch.equal(before["torch"], after["torch"])
    assert (before["python"], before["numpy"]) == (after["python"], after["numpy"])


def test_the_context_is_cut_to_what_the_model_takes() -> None:
    model = Fixed([0.5, 0.5])
    model.max_seq_len = 3
    sample(model, torch.zeros(2, dtype=torch.long))
    assert model.lengths == [2, 3, 3, 3, 3]
    successor = Successor()
    successor.max_seq_len = 2
    assert sample(successor, torch.tensor([30, 20, 10])).tolist()[3:] == [11, 12, 13, 14, 15]
    gpt_ids = sample(make_gpt(), torch.zeros(30, dtype=torch.long))
    assert gpt_ids.shape == (35,)


def test_modes_come_back_even_those_of_single_modules_and_after_errors() -> None:
    model = make_gpt()
    model.blocks[0].dropout.eval()
    modes = [module.training for module in model.modules()]
    sample(model, torch.tensor([1]))
    assert [module.training for module in model.modules()] == modes
    with pytest.raises(IndexError):
        sample(model, torch.tensor([99]))
    assert [module.training for module in model.modules()] == modes


def test_dropout_is_off_meanwhile_and_no_graph_is_kept() -> None:
    model, prompt = make_gpt(), torch.tensor([1, 2])
    assert (
        sample(model, prompt, temperature=0.0).tolist()
        == sample(model, prompt, temperature=0.0).tolist()
    )
    assert not sample(model, prompt).requires_grad


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"prompt": torch.zeros(0, dtype=torch.long)},
            "prompt_ids must hold at least one token, got none",
        ),
        ({"temperature": -1.0}, "temperature must be at least 0, got -1.0"),
        ({"top_k": 0}, "top_k must be at least 1 or None, got 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    prompt = changes.pop("prompt", torch.tensor([0]))
    with pytest.raises(ValueError, match=re.escape(message)):
        sample(Fixed([1.0]), prompt, **changes)
