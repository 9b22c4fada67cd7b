"""Speedtronic: distributed."""
