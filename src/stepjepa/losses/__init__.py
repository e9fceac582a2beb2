"""Losses on plain tensors. Nothing here knows of models, forests or trainers."""
