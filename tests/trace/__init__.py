# ruff: noqa: A005  (it is tests.trace, and shadows nothing)
