"""Models: the bundled GPT, sampling from it, and names for the user's own."""
