"""Generators: a model in memory, vLLM or a server answers chats through one protocol. `generate` collects solutions.

Everything that lets a model answer goes one way:

    rows of a file -> questions -> `Request` -> `Generator` -> `Reply` -> `output.Output` -> scores
"""
