"""Speedtronic: models."""
