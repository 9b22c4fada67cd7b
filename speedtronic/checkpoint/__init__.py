"""Checkpoints: safetensors and JSON that appear whole, verify themselves and are never unpickled.

``manager`` is what a run uses, ``weights`` what others use; nothing is imported here.
"""
