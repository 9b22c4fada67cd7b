"""The parts of ``scripts/bench.py``: one file a subject, and how figures are measured and shown."""
