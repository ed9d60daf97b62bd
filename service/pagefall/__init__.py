"""Pagefall: an OpenAI-compatible LLM server whose prefix cache spans device memory, host RAM and storage."""

__version__ = "0.1.0"
