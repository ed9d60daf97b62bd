"""The moving parts: who owns which state, and the messages between them.

`tokenizer` faces the HTTP layer, `scheduler` decides, `runner` computes. Deciding itself is in `pagefall.scheduling`.
"""
