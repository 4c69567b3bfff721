"""The commands of `kernelgauge`: each adds its parser, and wires what is done elsewhere to the terminal."""
