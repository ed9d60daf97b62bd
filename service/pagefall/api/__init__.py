"""The HTTP surface: OpenAI wire types, routes and errors."""
