"""The commands that people type. Each module is one command; `main` finds it."""
