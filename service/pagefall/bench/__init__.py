"""`pagefall bench`: what is measured, and how."""
