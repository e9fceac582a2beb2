"""Losses on plain tensors. Nothing here knows about models, forests or trainers."""
