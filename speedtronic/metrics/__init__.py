"""Metrics: one logger of text and events, and the hooks that show or forward them.

Import the pieces from their modules (``metrics.logger``, ``metrics.tensorboard``, ...); nothing
here imports torch.
"""
