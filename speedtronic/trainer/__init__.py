"""Speedtronic: trainer."""
