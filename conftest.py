"""Loads the plugin from a checkout that is not installed too; the entry point has the same name, so
it loads once.
"""

pytest_plugins = ["kernelgauge.plugin"]
