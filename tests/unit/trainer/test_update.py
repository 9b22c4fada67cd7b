"""One attempt: how losses become an update, what is counted, what is read from the device."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler

from speedtronic.trainer.features import EagerForward
from speedtronic.trainer.update import (
    LabelMean,
    MicrobatchMean,
    Update,
    resolve_normalization,
    updated_parameters,
)
from tests.unit.trainer.builders import (
    FP32,
    SCALED,
    Bigram,
    Recorder,
    Regression,
    assert_same_tensors,
    make_regression,
    make_trainer,
    parameters_of,
    regression_batches,
)

ACCUMULATE_2 = {"data": {"micro_batch_size": 3, "target_batch_size": 6}}


class Feed:
    def __init__(self, batches) -> None:
        self._batches = iter(batches)

    def next(self):
        return next(self._batches)


def make_update(model, batches, *, k=1, clip=None, scaler=None, rule="microbatch", lr=0.1):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return Update(
        EagerForward(model),
        feed=Feed(batches),
        optimizer=optimizer,
        parameters=updated_parameters(model, optimizer),
        scaler=scaler or GradScaler("cpu", enabled=False),
        precision=FP32,
        device=torch.device("cpu"),
        normalization=resolve_normalization(rule, k),
        num_microbatches=k,
        grad_clip=clip,
    )


# ---------------------------------------------------------------- the formula


def test_the_reported_loss_is_the_mean_of_the_microbatch_losses() -> None:
    batches = regression_batches(3)
    model = make_regression()
    losses = [copy.deepcopy(model)(*batch) for batch in batches]
    attempt = make_update(model, batches, k=3).attempt()
    assert torch.equal(attempt.loss, (losses[0] + losses[1] + losses[2]).detach() / 3)
    assert not attempt.loss.requires_grad
    assert (attempt.samples, attempt.tokens, attempt.skip_reason) == (9, 36, None)


@pytest.mark.parametrize("rule", ["microbatch", "tokens"])
def test_a_loss_whose_memory_the_next_forward_overwrites_still_counts(rule) -> None:
    """A replayed CUDA graph returns its loss in the same memory each time."""

    class Replayed(nn.Module):
        def __init__(self, model) -> None:
            super().__init__()
            self.model = model
            self.last = None

        def forward(self, inputs, targets):
            loss = self.model(inputs, targets)
            if self.last is not None:
                self.last.copy_(loss.detach())
            self.last = loss.detach()
            return loss

    batches = regression_batches(3)
    expected = make_update(make_regression(), batches, k=3, rule=rule).attempt()
    replayed = make_update(Replayed(make_regression()), batches, k=3, rule=rule).attempt()
    assert torch.equal(replayed.loss, expected.loss)


def test_gradients_are_scaled_by_the_correction_bit_for_bit() -> None:
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randint(5, (2, 4), generator=generator)
    batches = [
        {"input_ids": inputs, "labels": torch.tensor([[1, 2, 3, -100], [-100] * 4])},
        {"input_ids": inputs, "labels": torch.randint(5, (2, 4), generator=generator)},
    ]
    model, twin = Bigram(), Bigram()
    twin.load_state_dict(model.state_dict())
    forward = EagerForward(twin)
    for batch, divisor in zip(batches, (2 * 3 / 3, 2 * 3 / 8), strict=True):
        (forward(batch) / divisor).backward()
    before = twin.table.weight.detach().clone()
    expected = before - twin.table.weight.grad.mul(2 * 3 / 11)
    make_update(model, batches, k=2, rule="tokens", lr=1.0).attempt()
    assert torch.equal(model.table.weight, expected)


def test_the_update_uses_the_mean_of_the_microbatch_gradients() -> None:
    batches = regression_batches(3)
    model = make_regression()
    gradients = []
    for batch in batches:
        twin = copy.deepcopy(model)
        twin(*batch).backward()
        gradients.append([p.grad for p in twin.parameters()])
    before = parameters_of(model)
    make_update(model, batches, k=3).attempt()
    for old, new, per_batch in zip(before, model.parameters(), zip(*gradients), strict=True):  # noqa: B905 - of equal length by construction
        torch.testing.assert_close(new.detach(), old - 0.1 * sum(per_batch) / 3)


def test_gradients_are_cleared_to_none() -> None:
    model = make_regression()
    make_update(model, regression_batches(1)).attempt()
    assert all(p.grad is None for p in model.parameters())


def test_a_loss_for_each_sample_is_averaged() -> None:
    class PerSample(Regression):
        def forward(self, inputs, targets):
            return ((self.head(torch.tanh(self.hidden(inputs))) - targets) ** 2).squeeze(-1)

    torch.manual_seed(0)
    model = PerSample()
    batches = regression_batches(1)
    expected = model(*batches[0]).mean().item()
    assert make_update(model, batches).attempt().loss.item() == expected


def test_clipping_limits_the_norm_and_reports_the_one_before() -> None:
    batches = regression_batches(1)
    model = make_regression()
    twin = copy.deepcopy(model)
    twin(*batches[0]).backward()
    norm = nn.utils.clip_grad_norm_(twin.parameters(), 0.01)
    before = parameters_of(model)
    attempt = make_update(model, batches, clip=0.01, lr=1.0).attempt()
    assert torch.equal(attempt.grad_norm, norm)
    moved = torch.cat(
        [(old - new).flatten() for old, new in zip(before, model.parameters(), strict=True)]
    )
    assert moved.norm().item() == pytest.approx(0.01, rel=1e-4)


def test_without_clipping_no_norm_is_measured() -> None:
    assert make_update(make_regression(), regression_batches(1)).attempt().grad_norm is None


def test_clipped_parameters_keep_the_order_of_the_model_whatever_the_groups() -> None:
    model = make_regression()
    names = dict(model.named_parameters())
    groups = [
        {"params": [names["head.weight"], names["hidden.weight"]]},
        {"params": [names["head.bias"], names["hidden.bias"]]},
    ]
    extra = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([*groups, {"params": [extra]}], lr=0.1)
    found = updated_parameters(model, optimizer)
    assert [id(p) for p in found] == [id(p) for p in [*model.parameters(), extra]]


def test_frozen_parameters_are_left_out() -> None:
    model = make_regression()
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
    assert [id(p) for p in updated_parameters(model, optimizer)] == [
        id(p) for p in model.head.parameters()
    ]


# ---------------------------------------------------------------- reads


def test_one_scalar_is_read_per_update_and_none_per_microbatch(monkeypatch) -> None:
    reads = []
    item = torch.Tensor.item

    def counting(tensor):
        reads.append(tensor.shape)
        return item(tensor)

    update = make_update(make_regression(), regression_batches(8), k=4, clip=1.0)
    monkeypatch.setattr(torch.Tensor, "item", counting)
    monkeypatch.setattr(torch.Tensor, "__float__", lambda tensor: pytest.fail("read"))
    monkeypatch.setattr(torch.Tensor, "__bool__", lambda tensor: pytest.fail("read"))
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: pytest.fail("read"))
    update.attempt()
    update.attempt()
    assert reads == [torch.Size([])] * 2


# ---------------------------------------------------------------- normalization by labels


def ragged_batches() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 5, (4, 6), generator=generator)
    labels = torch.randint(0, 5, (4, 6), generator=generator)
    labels[0, 1:] = -100
    labels[1, :] = -100
    labels[2, 4:] = -100
    return [{"input_ids": ids[i : i + 1], "labels": labels[i : i + 1]} for i in range(4)]


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [1, 0, 3, 2]])
def test_weighed_by_labels_microbatches_equal_one_large_batch(order) -> None:
    batches = [ragged_batches()[index] for index in order]
    torch.manual_seed(0)
    model = Bigram()
    large = {key: torch.cat([batch[key] for batch in batches]) for key in ("input_ids", "labels")}
    twin = copy.deepcopy(model)
    whole = make_update(twin, [large]).attempt()
    parts = make_update(model, batches, k=4, rule="tokens").attempt()
    assert parts.loss.item() == pytest.approx(whole.loss.item(), rel=1e-6)
    torch.testing.assert_close(model.table.weight, twin.table.weight, rtol=1e-6, atol=1e-7)


def test_labels_are_counted_anew_for_every_update() -> None:
    batches = ragged_batches()
    torch.manual_seed(0)
    model = Bigram()
    twin = copy.deepcopy(model)
    pairs = [
        {key: torch.cat([batches[i][key], batches[i + 2][key]]) for key in batches[0]}
        for i in range(2)
    ]
    whole = make_update(twin, pairs)
    parts = make_update(model, [batches[0], batches[2], batches[1], batches[3]], k=2, rule="tokens")
    for _ in range(2):
        assert parts.attempt().loss.item() == pytest.approx(whole.attempt().loss.item(), rel=1e-6)
    torch.testing.assert_close(model.table.weight, twin.table.weight, rtol=1e-6, atol=1e-7)


def test_the_mean_of_means_is_another_number_for_ragged_labels() -> None:
    torch.manual_seed(0)
    model = Bigram()
    twin = copy.deepcopy(model)
    make_update(model, ragged_batches(), k=4, rule="tokens").attempt()
    make_update(twin, ragged_batches(), k=4, rule="microbatch").attempt()
    assert not torch.allclose(model.table.weight, twin.table.weight, rtol=1e-3)


def test_equal_numbers_of_labels_give_the_same_bits_either_way() -> None:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 5, (3, 2, 6), generator=generator)
    batches = [{"input_ids": part, "labels": part} for part in ids]
    torch.manual_seed(0)
    model = Bigram()
    twin = copy.deepcopy(model)
    make_update(model, batches, k=3, rule="tokens").attempt()
    make_update(twin, batches, k=3, rule="microbatch").attempt()
    assert torch.equal(model.table.weight, twin.table.weight)


def test_an_update_without_any_label_has_loss_zero_and_moves_nothing() -> None:
    batch = ragged_batches()[1]
    torch.manual_seed(0)
    model = Bigram()
    before = parameters_of(model)
    attempt = make_update(model, [batch, batch], k=2, rule="tokens").attempt()
    assert attempt.loss.item() == 0
    assert attempt.skip_reason is None
    assert_same_tensors(before, parameters_of(model))


def test_the_configuration_chooses_the_normalization() -> None:
    assert isinstance(resolve_normalization("microbatch", 2), MicrobatchMean)
    assert isinstance(resolve_normalization("tokens", 2), LabelMean)
    options = {
        "data": {"micro_batch_size": 1, "target_batch_size": 4},
        "optimizer": {"grad_clip": None},
    }
    results = {}
    for rule in ("microbatch", "tokens"):
        torch.manual_seed(0)
        trainer = make_trainer(
            Bigram(), ragged_batches(), options={**options, "trainer": {"loss_normalization": rule}}
        )
        results[rule] = trainer.fit(1).final_loss
    assert results["microbatch"] != pytest.approx(results["tokens"], rel=1e-3)


# ---------------------------------------------------------------- scaler


class Overflowing(Regression):
    """Its gradients overflow in chosen forwards only when the loss is scaled."""

    def __init__(self, at: set[int]) -> None:
        super().__init__()
        self.at = at
        self.num_forwards = 0

    def forward(self, inputs, targets):
        self.num_forwards += 1
        loss = super().forward(inputs, targets)
        # The factors meet in the backward only: 65536 * 1e20 * 1e20 overflows.
        return _Inflate.apply(loss) if self.num_forwards in self.at else loss


class _Inflate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, loss):
        return loss.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 1e20 * 1e20


@pytest.mark.parametrize("clip", [1.0, None])
def test_an_overflow_skips_the_update_halves_the_scale_and_goes_on(clip) -> None:
    torch.manual_seed(0)
    recorder = Recorder()
    batches = regression_batches()
    trainer = make_trainer(
        Overflowing({2}),
        batches,
        options={"optimizer": {"grad_clip": clip}},
        precision=SCALED,
        with_schedule=True,
        recorder=recorder,
    )
    result = trainer.fit(2)
    assert recorder.of("optimizer_step_skipped") == [
        {"step": 2, "reason": "gradients overflowed at a loss scale of 65536"}
    ]
    assert (result.steps, result.samples, trainer.attempts) == (2, 6, 3)
    assert [record["lr"] for record in result.metrics] == [0.1 / 2, 0.1 / 3]
    state = trainer.state_dict()["scaler"]
    assert state["scale"] == 65536 / 2
    assert state["_growth_tracker"] == 1  # one good update since


def test_a_scaled_update_equals_the_unscaled_one() -> None:
    model = make_regression()
    twin = copy.deepcopy(model)
    make_update(model, regression_batches(4), k=4, clip=0.1).attempt()
    scaler = GradScaler("cpu", init_scale=2.0**10)  # a power of two scales without rounding
    make_update(twin, regression_batches(4), k=4, clip=0.1, scaler=scaler).attempt()
    assert_same_tensors(parameters_of(model), parameters_of(twin))


def test_gradients_are_clipped_after_unscaling() -> None:
    batches = regression_batches(1)
    model = make_regression()
    twin = copy.deepcopy(model)
    twin(*batches[0]).backward()
    norm = nn.utils.get_total_norm([p.grad for p in twin.parameters()])
    scaler = GradScaler("cpu", init_scale=2.0**16)
    attempt = make_update(model, batches, clip=1.0, scaler=scaler).attempt()
    assert torch.equal(attempt.grad_norm, norm)


def test_every_fit_has_a_new_scaler_that_goes_on_where_the_last_one_was() -> None:
    trainer = make_trainer(precision=SCALED)
    trainer.fit(2)
    first = trainer.state_dict()["scaler"]
    assert first["_growth_tracker"] == 2
    trainer.fit(3)
    assert trainer.state_dict()["scaler"]["_growth_tracker"] == 3


def test_a_saved_scaler_is_restored_by_the_next_fit() -> None:
    torch.manual_seed(0)
    source = make_trainer(Overflowing({1, 2}), precision=SCALED)
    source.fit(1)
    state = source.state_dict()
    assert state["scaler"]["scale"] == 65536 / 4
    target = make_trainer(precision=SCALED)
    target.resume(state)
    assert target.state_dict()["scaler"] == state["scaler"]
    target.fit(2)
    assert target.state_dict()["scaler"]["scale"] == 65536 / 4
    assert target.state_dict()["scaler"]["_growth_tracker"] == 2


def test_a_state_without_scaler_starts_a_new_one_and_one_with_scaler_is_ignored_in_fp32() -> None:
    plain, scaled = make_trainer(), make_trainer(precision=SCALED)
    plain.fit(1)
    scaled.fit(1)
    plain_state, scaled_state = plain.state_dict(), scaled.state_dict()
    assert plain_state["scaler"] is None
    plain.resume(scaled_state)
    assert plain.fit(2).steps == 2
    scaled.resume(plain_state)
    assert scaled.fit(2).steps == 2


def test_a_non_finite_loss_is_named_before_the_overflow() -> None:
    class NaN(Regression):
        def forward(self, inputs, targets):
            return super().forward(inputs, targets) * math.nan

    scaler = GradScaler("cpu")
    attempt = make_update(NaN(), regression_batches(1), clip=1.0, scaler=scaler).attempt()
    assert attempt.skip_reason == "non-finite loss"
