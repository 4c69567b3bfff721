#!/usr/bin/env bash
# One night on a Slurm cluster: an array of shards, one GPU each, and a job that merges what they left.
# For cron on a login node (17 2 * * * cd /path/to/the/repository && SHARDS=2 templates/slurm/submit.sh).
#
#   SHARDS    how many parts, and so how many GPUs at once (default: 2). More than the suite has groups of a module,
#             shape, dtype and pass, which stay together, leave some with nothing to measure
#   REPORTS   a folder that every node sees (default: reports/nightly)
#   HISTORY   a folder that every node sees, or a bucket (default: history, beside reports)
#   VENV      the environment with kernelgauge (default: .venv)
#
# Exit code: that of the merge. 0: all parts are there, everything was decided, nothing failed.
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
export SHARDS=${SHARDS:-2}
export HISTORY=${HISTORY:-$PWD/history}
export VENV=${VENV:-$PWD/.venv}
RUN_DIR=${REPORTS:-$PWD/reports/nightly}/$(date -u +%Y%m%dT%H%M%SZ)
export RUN_DIR
mkdir -p "$RUN_DIR"

array=$(sbatch --parsable --array="1-$SHARDS" --output="$RUN_DIR/shard-%a.log" "$here/nightly.sbatch")
array=${array%%;*} # "id;cluster" where there are several clusters

# afterany: whatever became of the shards, what is there is merged. --wait: the merge's exit code is ours.
code=0
sbatch --wait --dependency="afterany:$array" --output="$RUN_DIR/merge.log" "$here/merge.sbatch" || code=$?
cat "$RUN_DIR/merge.log" || true # no log: the merge was never started, and the code says so
exit "$code"
