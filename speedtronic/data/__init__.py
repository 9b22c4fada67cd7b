"""Where batches come from: corpora, tokenizers, token files, loaders and the trainer's feed.

Nothing is imported here, so that reading settings and writing token files cost no torch.
"""
