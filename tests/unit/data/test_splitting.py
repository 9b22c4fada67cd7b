"""What is held out."""

from __future__ import annotations

import pytest

from speedtronic.data.splitting import held_out_period, is_held_out, tail_start


@pytest.mark.parametrize(
    ("num_files", "fraction", "period"),
    [
        (40, 0.05, 20),
        (39, 0.05, None),
        (1, 0.05, None),
        (674, 0.05, 20),
        (20, 0.1, 10),
        (4, 0.5, 2),
        (100, 0.6, None),
        (100, 0.0, None),
    ],
)
def test_files_are_held_out_where_at_least_two_are(num_files, fraction, period):
    assert held_out_period(num_files, fraction=fraction) == period


def test_every_twentieth_file_is_held_out():
    held_out = [index for index in range(100) if is_held_out(index, period=20)]
    assert held_out == [19, 39, 59, 79, 99]


@pytest.mark.parametrize(
    ("length", "fraction", "start"),
    [(100, 0.05, 95), (1000, 0.0, 1000), (10, 0.05, 10), (30, 0.05, 28), (7, 0.9, 1)],
)
def test_the_tail_has_the_rounded_size(length, fraction, start):
    assert tail_start(length, fraction=fraction) == start
