"""How small a slowdown each method catches at equal measuring time: run.py measures and evaluates."""
