"""Strict JSON, copies and tags of events."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedtronic.metrics.records import copy_payload, encode_record, find_scalars


def parse_strictly(line: str) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"not strict JSON: {constant}")

    record: dict[str, Any] = json.loads(line, parse_constant=refuse)
    return record


def test_event_and_step_come_first_and_numbers_keep_every_digit() -> None:
    line = encode_record("train_step", {"loss": 0.1 + 0.2, "step": 7, "samples": 2**60}, step=3)

    assert line == (
        '{"event": "train_step", "step": 7, "loss": 0.30000000000000004, '
        '"samples": 1152921504606846976}'
    )


def test_a_payload_without_step_gets_the_last_one() -> None:
    assert encode_record("compile", {"ok": True}, step=5) == (
        '{"event": "compile", "step": 5, "ok": true}'
    )


def test_the_events_name_wins_over_a_key_of_the_payload() -> None:
    assert parse_strictly(encode_record("eval", {"event": "other"}, step=0))["event"] == "eval"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32("nan")])
def test_a_number_that_is_not_finite_becomes_null_and_is_flagged(value: float) -> None:
    record = parse_strictly(encode_record("train_step", {"step": 1, "loss": value}, step=0))

    assert record == {"event": "train_step", "step": 1, "loss": None, "nonfinite": True}


def test_a_number_deep_inside_is_flagged_too() -> None:
    record = parse_strictly(encode_record("x", {"a": [{"b": (1.0, math.inf)}]}, step=0))

    assert record["a"] == [{"b": [1.0, None]}]
    assert record["nonfinite"] is True


def test_arrays_scalars_paths_and_sets_have_a_json_form() -> None:
    payload = {
        "scalar": np.int64(3),
        "flag": np.bool_(True),
        "array": np.array([1.5, 2.5]),
        "path": Path("/a/b"),
        "set": {"b", "a"},
        1: "integer key",
    }

    record = parse_strictly(encode_record("x", payload, step=0))  # type: ignore[arg-type]

    assert record == {
        "event": "x",
        "step": 0,
        "scalar": 3,
        "flag": True,
        "array": [1.5, 2.5],
        "path": "/a/b",
        "set": ["a", "b"],
        "1": "integer key",
    }


def test_tensors_have_a_json_form() -> None:
    torch = pytest.importorskip("torch")

    record = parse_strictly(
        encode_record("x", {"loss": torch.tensor(1.5), "ids": torch.tensor([1, 2])}, step=0)
    )

    assert record["loss"] == 1.5
    assert record["ids"] == [1, 2]


@given(
    st.dictionaries(
        st.text(),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=8,
        ),
    )
)
def test_any_payload_is_one_line_of_strict_json(payload: dict[str, Any]) -> None:
    line = encode_record("event", payload, step=0)

    assert len(line.splitlines()) == 1
    assert line.isascii()
    assert parse_strictly(line)["event"] == "event"


def test_containers_are_copied_all_the_way_down_and_leaves_are_shared() -> None:
    leaf = object()
    payload = {"a": [{"b": [1]}], "c": ({"d": 2},), "e": {1}, "leaf": leaf}

    copy = copy_payload(payload)
    copy["a"][0]["b"].append(9)
    copy["c"][0]["d"] = 9
    copy["e"].add(9)

    assert payload == {"a": [{"b": [1]}], "c": ({"d": 2},), "e": {1}, "leaf": leaf}
    assert copy["leaf"] is leaf


def test_scalars_are_the_numbers_under_the_names_of_dashboards() -> None:
    payload = {"step": 3, "loss": 2, "ok": True, "text": "a", "lr/decayed": 0.5, "none": None}

    assert find_scalars("train_stats", payload) == {"train/loss": 2.0, "train/lr/decayed": 0.5}
    assert find_scalars("eval", {"step": 3, "loss": 1.5}) == {"eval/loss": 1.5}


@pytest.mark.parametrize("event", ["train_start", "train_end"])
def test_start_and_end_of_a_fit_are_no_curves(event: str) -> None:
    assert find_scalars(event, {"step": 3, "target": 10, "final_loss": 1.5}) == {}
