"""What the server knows of its own traffic: who asked what, where the tokens came from, and why the rest was missed."""
