"""Results -> text. Nothing here writes a file or a terminal.

Import from the modules: what a table needs of rich, JSON does not wait for.
"""
