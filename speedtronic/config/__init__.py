"""Speedtronic: config."""
