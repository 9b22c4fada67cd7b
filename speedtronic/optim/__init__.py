"""Speedtronic: optim."""
