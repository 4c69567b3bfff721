"""How small a slowdown each method catches at equal measuring time, and how often each raises a false alarm.

python benchmarks/detection/run.py --out DIR                    measure on every visible GPU, and evaluate
python benchmarks/detection/run.py --evaluate DIR/raw.npz --out DIR
python benchmarks/detection/replay.py SAMPLES.npz               on recorded samples, without a GPU
"""
