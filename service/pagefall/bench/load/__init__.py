"""`pagefall bench load`: a load generator for any OpenAI-compatible server."""
