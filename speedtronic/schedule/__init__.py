"""Speedtronic: schedule."""
