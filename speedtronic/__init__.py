"""Speedtronic: fast, exactly repeatable training."""
