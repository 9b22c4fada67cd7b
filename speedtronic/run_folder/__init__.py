"""What a run leaves on disk beside its checkpoints: who owns the folder, what ran, how it ended."""
