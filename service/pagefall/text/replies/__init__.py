"""An answer's text, taken apart: what the model says, what it thinks, which tools it calls. One dialect a file."""
