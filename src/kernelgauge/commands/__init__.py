"""The commands of `kernelgauge`: each adds its parser, and wires what is done elsewhere to the terminal.

What only one of them needs is imported when it runs: a command that takes a tenth of a second is not to wait for the others.
"""
