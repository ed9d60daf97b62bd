"""Text: chat templates, encoding, incremental detokenization, stop strings."""
