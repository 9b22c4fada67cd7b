"""Every row of the contract's loss resolution, and how batches become calls."""

from __future__ import annotations

import math
from collections import OrderedDict, UserDict
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from speedtronic.core.loss import (
    LabelRoute,
    causal_loss,
    count_labels,
    logits_and_labels,
    resolve_loss,
    resolve_splitter,
    split_batch,
)

LOG_2, LOG_4 = math.log(2), math.log(4)


def certain_logits() -> Tensor:
    """Return logits (1, 3, 4) with 4, 2 and 1 equally likely ids at positions 0, 1 and 2."""
    logits = torch.full((1, 3, 4), -1e9)
    logits[0, 0] = 0.0
    logits[0, 1, :2] = 0.0
    logits[0, 2, 0] = 0.0
    return logits.requires_grad_()


# --- mapping output


def test_a_loss_in_a_mapping_is_used_directly() -> None:
    output = {"loss": torch.tensor(2.5), "logits": certain_logits()}
    assert resolve_loss(output, {"labels": torch.zeros(1, 3, dtype=torch.long)}).item() == 2.5


def test_any_mapping_is_an_output() -> None:
    assert resolve_loss(UserDict(loss=torch.tensor(1.5)), None).item() == 1.5
    assert resolve_loss(OrderedDict(loss=torch.tensor(0.5)), None).item() == 0.5


def test_a_loss_that_is_none_counts_as_no_loss() -> None:
    labels = torch.tensor([[3, 1, 0]])
    loss = resolve_loss({"loss": None, "logits": certain_logits()}, {"labels": labels})
    assert loss.item() == pytest.approx((LOG_4 + LOG_2 + 0) / 3)


def test_three_dimensional_logits_without_loss_get_causal_cross_entropy() -> None:
    loss = resolve_loss({"logits": certain_logits()}, (None, torch.tensor([[3, 1, 0]])))
    assert loss.item() == pytest.approx((LOG_4 + LOG_2) / 3)


def test_labels_of_the_same_length_are_aligned_and_not_shifted() -> None:
    first_only = torch.tensor([[3, -100, -100]])
    assert causal_loss(certain_logits(), first_only).item() == pytest.approx(LOG_4)
    last_only = torch.tensor([[-100, -100, 0]])
    assert causal_loss(certain_logits(), last_only).item() == pytest.approx(0.0)


def test_one_label_less_drops_the_last_logits_and_not_the_first() -> None:
    logits = certain_logits()
    loss = causal_loss(logits, torch.tensor([[2, 0]]))
    assert loss.item() == pytest.approx((LOG_4 + LOG_2) / 2)
    loss.backward()
    assert logits.grad is not None
    assert logits.grad[0, 2].tolist() == [0, 0, 0, 0]


def test_ignored_labels_are_left_out_of_the_mean() -> None:
    assert causal_loss(certain_logits(), torch.tensor([[3, 1, -100]])).item() == pytest.approx(
        (LOG_4 + LOG_2) / 2
    )


def test_all_ignored_labels_give_zero_loss_with_gradient() -> None:
    logits = torch.randn(2, 3, 5, requires_grad=True)
    loss = causal_loss(logits, torch.full((2, 3), -100))
    assert loss.item() == 0.0
    loss.backward()
    assert logits.grad is not None
    assert logits.grad.abs().sum().item() == 0.0


@pytest.mark.parametrize(
    "dtype",
    [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32],
)
def test_integer_labels_of_any_width_are_cast(dtype: torch.dtype) -> None:
    labels = torch.tensor([[3, 1, 0]]).to(dtype)
    assert causal_loss(certain_logits(), labels).item() == pytest.approx((LOG_4 + LOG_2) / 3)


def test_half_precision_logits_are_reduced_in_fp32() -> None:
    logits = torch.zeros(1, 2, 3, dtype=torch.bfloat16, requires_grad=True)
    loss = causal_loss(logits, torch.tensor([[0, 2]]))
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(math.log(3), abs=1e-6)


@pytest.mark.parametrize(
    "labels",
    [torch.zeros(2, 4), torch.zeros(2, 1), torch.zeros(1, 3), torch.zeros(2, 3, 1), torch.zeros(6)],
)
def test_labels_of_another_length_are_an_error_with_both_shapes(labels: Tensor) -> None:
    labels = labels.long()
    with pytest.raises(ValueError, match=r"need integer labels") as caught:
        resolve_loss({"logits": torch.zeros(2, 3, 5)}, {"labels": labels})
    assert "(2, 3, 5)" in str(caught.value)
    assert str(tuple(labels.shape)) in str(caught.value)


def test_logits_without_labels_are_an_error_and_never_averaged() -> None:
    with pytest.raises(ValueError, match=r"got logits \(2, 3, 5\) float32 and labels none"):
        resolve_loss({"logits": torch.ones(2, 3, 5)}, {"input_ids": torch.zeros(2, 3)})
    with pytest.raises(ValueError, match=r"labels none"):
        resolve_loss((torch.ones(2, 3, 5),), torch.zeros(2, 3))


def test_labels_that_are_no_integers_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"labels \(2, 3\) float32"):
        causal_loss(torch.zeros(2, 3, 5), torch.zeros(2, 3))


def test_logits_of_two_dimensions_cannot_stand_in_for_a_loss() -> None:
    with pytest.raises(
        ValueError,
        match=r"only logits of shape \(B, T, V\) can stand in for one, got \(2, 5\) float32",
    ):
        resolve_loss({"logits": torch.zeros(2, 5)}, {"labels": torch.zeros(2, dtype=torch.long)})
    with pytest.raises(ValueError, match=r"got none; return"):
        resolve_loss({"hidden": torch.zeros(2, 5)}, None)


# --- tensor output


def test_a_bare_tensor_is_a_direct_loss_even_with_three_dimensions() -> None:
    labels = {"labels": torch.zeros(2, 2, dtype=torch.long)}
    assert resolve_loss(torch.tensor(4.0), labels).item() == 4.0
    assert resolve_loss(torch.arange(8.0).reshape(2, 2, 2), labels).item() == 3.5


def test_a_loss_that_is_no_scalar_is_averaged() -> None:
    assert resolve_loss({"loss": torch.tensor([1.0, 2.0, 6.0])}, None).item() == 3.0
    assert resolve_loss({"loss": torch.tensor([5.0])}, None).shape == ()


def test_half_precision_losses_are_averaged_in_fp32() -> None:
    loss = resolve_loss(torch.tensor([256.0, 1.0], dtype=torch.bfloat16), None)
    assert (loss.dtype, loss.item()) == (torch.float32, 128.5)


def test_double_precision_losses_stay_double() -> None:
    assert resolve_loss(torch.tensor(1.0, dtype=torch.float64), None).dtype == torch.float64


# --- tuple and list output


def test_a_tuple_that_starts_with_a_scalar_is_a_direct_loss() -> None:
    assert resolve_loss((torch.tensor(2.0), certain_logits()), None).item() == 2.0
    assert resolve_loss([torch.tensor(3.0)], None).item() == 3.0
    assert resolve_loss((torch.tensor([2.0, 4.0]), "extra"), None).item() == 3.0


def test_a_tuple_that_starts_with_logits_gets_causal_cross_entropy() -> None:
    batch = [torch.zeros(1, 3), torch.tensor([[3, 1, 0]])]
    assert resolve_loss((certain_logits(), "cache"), batch).item() == pytest.approx(
        (LOG_4 + LOG_2) / 3
    )
    assert resolve_loss([certain_logits()], (None, torch.tensor([[3, 1]]))).item() == pytest.approx(
        (LOG_4 + LOG_2) / 2
    )


def test_a_tuple_that_starts_with_logits_of_another_length_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"\(1, 3, 4\).*\(1, 5\)"):
        resolve_loss((certain_logits(), "cache"), (None, torch.zeros(1, 5, dtype=torch.long)))


def test_a_tuple_that_starts_with_two_dimensions_is_ambiguous() -> None:
    with pytest.raises(ValueError, match=r"got \(2, 5\) float32"):
        resolve_loss((torch.zeros(2, 5),), (None, torch.zeros(2, dtype=torch.long)))


@pytest.mark.parametrize(
    ("output", "name"), [("text", "str"), (None, "NoneType"), ((), "tuple"), (1.5, "float")]
)
def test_outputs_of_another_kind_are_named(output: Any, name: str) -> None:
    with pytest.raises(TypeError, match=rf"a model must return .* got {name}$"):
        resolve_loss(output, None)


def test_a_loss_that_is_a_number_has_no_gradient() -> None:
    with pytest.raises(TypeError, match=r"a loss must be a tensor with a gradient, got float"):
        resolve_loss({"loss": 1.5}, None)


# --- batches to calls


class Pair(NamedTuple):
    inputs: Tensor
    labels: Tensor


def test_a_mapping_is_passed_as_keywords() -> None:
    call = split_batch(UserDict(input_ids=1, labels=2, extra=3))
    assert (call.args, dict(call.kwargs), call.labels) == (
        (),
        {"input_ids": 1, "labels": 2, "extra": 3},
        2,
    )
    assert split_batch({"x": 1}).labels is None


@pytest.mark.parametrize("batch", [(1, 2), [1, 2], (1, 2, 3), Pair(1, 2)])
def test_a_tuple_or_list_of_two_or_more_is_inputs_and_labels(batch: Any) -> None:
    call = split_batch(batch)
    assert (call.args, dict(call.kwargs), call.labels) == ((1, 2), {}, 2)


def test_a_bare_tensor_is_passed_alone() -> None:
    tensor = torch.zeros(2)
    call = split_batch(tensor)
    assert call.args == (tensor,)
    assert (dict(call.kwargs), call.labels) == ({}, None)


@pytest.mark.parametrize(
    ("batch", "name"),
    [
        ("text", "str"),
        (3, "int"),
        (None, "NoneType"),
        ((1,), "tuple of length 1"),
        ([], "list of length 0"),
        ({1, 2}, "set"),
    ],
)
def test_batches_of_another_kind_are_named(batch: Any, name: str) -> None:
    with pytest.raises(
        TypeError, match=rf"a batch must be .* got {name}; change what the data loader yields"
    ):
        split_batch(batch)


class OneArgument(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class TwoArguments(nn.Module):
    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return x + target


class NamedLabels(nn.Module):
    def forward(
        self, input_ids: Tensor, mask: Tensor | None = None, labels: Tensor | None = None
    ) -> Tensor:
        return input_ids


class AnyKeyword(nn.Module):
    def forward(self, input_ids: Tensor, **rest: Any) -> Tensor:
        return input_ids


class AnyArgument(nn.Module):
    def forward(self, *fields: Any) -> Tensor:
        return fields[0]


@pytest.mark.parametrize(
    ("model", "args", "kwargs"),
    [
        (OneArgument(), (1,), {}),
        (nn.Linear(1, 1), (1,), {}),
        (nn.Sequential(), (1,), {}),
        (TwoArguments(), (1, 2), {}),
        (AnyArgument(), (1, 2), {}),
        (NamedLabels(), (1,), {"labels": 2}),
        (AnyKeyword(), (1,), {"labels": 2}),
    ],
)
def test_the_signature_of_forward_decides_where_the_labels_of_a_pair_go(
    model: nn.Module, args: Any, kwargs: Any
) -> None:
    call = resolve_splitter(model)((1, 2))
    assert (call.args, dict(call.kwargs), call.labels) == (args, kwargs, 2)


def test_a_model_without_labels_gets_a_mapping_without_them() -> None:
    splitter = resolve_splitter(OneArgument())
    assert splitter.route is LabelRoute.NONE
    call = splitter({"x": 1, "labels": 2})
    assert (dict(call.kwargs), call.labels) == ({"x": 1}, 2)
    assert dict(resolve_splitter(NamedLabels())({"input_ids": 1, "labels": 2}).kwargs) == {
        "input_ids": 1,
        "labels": 2,
    }


# --- counting and aligning


def test_labels_that_count_are_counted() -> None:
    labels = torch.tensor([[1, -100, 2], [-100, -100, -100]])
    assert count_labels({"input_ids": torch.zeros(2, 3), "labels": labels}) == 2
    assert count_labels((torch.zeros(2, 3), torch.zeros(2, 3))) == 6
    assert count_labels({"input_ids": torch.zeros(2, 3)}) == 2
    assert count_labels(torch.zeros(5, 3)) == 5


def test_logits_and_labels_are_found_and_aligned() -> None:
    logits, labels = torch.arange(24.0).reshape(2, 3, 4), torch.ones(2, 3, dtype=torch.int32)
    batch = {"labels": labels}
    for output in (
        {"loss": torch.tensor(1.0), "logits": logits},
        (torch.tensor(1.0), logits),
        [logits],
    ):
        found = logits_and_labels(output, batch)
        assert found is not None
        assert torch.equal(found.logits, logits)
        assert found.labels.dtype == torch.int64
    shorter = logits_and_labels({"logits": logits}, (None, labels[:, 1:]))
    assert shorter is not None
    assert torch.equal(shorter.logits, logits[:, :2])


def test_no_pair_is_found_where_there_is_none() -> None:
    labels = torch.ones(2, 3, dtype=torch.long)
    assert logits_and_labels(torch.zeros(2, 3, 4), {"labels": labels}) is None
    assert logits_and_labels({"loss": torch.tensor(1.0)}, {"labels": labels}) is None
    assert logits_and_labels({"logits": torch.zeros(2, 5, 4)}, {"labels": labels}) is None
    assert logits_and_labels({"logits": torch.zeros(2, 3, 4)}, torch.zeros(2, 3)) is None
