"""Speedtronic: checkpoint."""
