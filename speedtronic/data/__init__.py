"""Speedtronic: data."""
