"""Generators: a model in memory, vLLM or a server answers chats through one protocol; `generate` collects solutions."""
