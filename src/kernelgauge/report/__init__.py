"""Results -> text.

Nothing here writes a file or a terminal. Import from the modules: JSON must not wait for rich.
"""
