"""Speedtronic: core."""
