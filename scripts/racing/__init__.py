"""The parts of ``scripts/race.py``: runs read, settings compared, numbers written and drawn."""
