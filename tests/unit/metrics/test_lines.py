"""The line a person reads about an event."""

from __future__ import annotations

import math

import pytest

from speedtronic.metrics.lines import describe_event, format_count, format_seconds, seconds_left

STEP = {"step": 10, "loss": 2.5, "lr": 3e-3, "tokens_per_sec": 12345.6, "steps_per_sec": 2.0}


def test_a_step_shows_loss_rate_speed_and_time_left() -> None:
    assert describe_event("train_step", STEP, total_steps=300) == (
        "step 10/300  loss 2.5000  lr 3.00e-03  12.3k tokens/s  2:25 left"
    )


def test_a_step_without_target_shows_no_time_left() -> None:
    assert describe_event("train_step", STEP) == (
        "step 10  loss 2.5000  lr 3.00e-03  12.3k tokens/s"
    )


def test_a_loss_that_is_not_a_number_is_shown_as_such() -> None:
    assert describe_event("train_step", {"step": 1, "loss": math.nan}) == "step 1  loss nan"


def test_missing_values_are_left_out() -> None:
    assert describe_event("train_step", {"step": 1, "loss": None}) == "step 1"


def test_an_evaluation_names_its_four_numbers() -> None:
    payload = {
        "step": 100,
        "loss": 1.9436,
        "perplexity": 6.984,
        "bits_per_byte": 2.804,
        "accuracy": 0.4512,
        "seconds": 1.0,
    }

    assert describe_event("eval", payload) == (
        "step 100  held-out loss 1.9436  perplexity 6.984  2.8040 bits per byte  accuracy 45.1%"
    )


def test_a_checkpoint_names_path_size_and_time() -> None:
    payload = {"step": 5, "path": "c/step_5", "size_bytes": 12_345_678, "seconds": 0.1}

    assert describe_event("checkpoint", payload) == "step 5  saved c/step_5 (12.3 MB in 0.10 s)"
    assert describe_event("checkpoint", {"step": 5, "path": "p"}) == "step 5  saved p"


def test_other_events_have_no_line() -> None:
    assert describe_event("train_stats", {"step": 1, "grad_norm": 1.0}) is None


@pytest.mark.parametrize(
    ("rate", "expected"), [(2.0, 145.0), (0.0, None), (None, None), (math.nan, None)]
)
def test_time_left_needs_a_rate(rate: float | None, expected: float | None) -> None:
    assert seconds_left({"step": 10, "steps_per_sec": rate}, total_steps=300) == expected


def test_no_time_is_left_past_the_target() -> None:
    assert seconds_left({"step": 11, "steps_per_sec": 1.0}, total_steps=10) == 0.0


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "0:00"), (59.6, "1:00"), (75, "1:15"), (3700, "1:01:40"), (math.inf, "?")],
)
def test_seconds_are_shown_as_a_clock_does(seconds: float, expected: str) -> None:
    assert format_seconds(seconds) == expected


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0.4, "0"), (9_800, "9800"), (12_345, "12.3k"), (4_560_000, "4.56M"), (math.inf, "inf")],
)
def test_counts_are_short(count: float, expected: str) -> None:
    assert format_count(count) == expected
