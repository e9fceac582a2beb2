"""Generators: a model in memory, vLLM or a server answers chats through one protocol. `generate` collects solutions.

Every command that generates text takes the same path:

    rows of a file -> questions -> `Request` -> `Generator` -> `Reply` -> `output.Output` -> scores
"""
