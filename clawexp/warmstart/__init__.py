"""How the tiny model that ships with clawexp was made: a tokenizer, demonstrations, supervised learning.

    python -m clawexp.warmstart FOLDER

Demonstrations are noisy on purpose: the model learns to speak to each harness and to copy, and to be right less
than half the time. What is left to learn is what an experiment shows.
"""
