"""Optimizers: which parameters decay, AdamW, any other class, and restoring their state exactly."""
