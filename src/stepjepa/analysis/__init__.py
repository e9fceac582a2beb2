"""Looking at what was trained: figures of the training curves."""
