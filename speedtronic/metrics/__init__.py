"""Speedtronic: metrics."""
