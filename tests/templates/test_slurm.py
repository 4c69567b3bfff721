"""A night on a Slurm cluster, played with stand-ins for sbatch, srun, nvidia-smi, pytest and kernelgauge."""

import re

import pytest

from .sandbox import TEMPLATES, Sandbox, shellcheck

SLURM = TEMPLATES / "slurm"
SCRIPTS = sorted(path.name for path in SLURM.iterdir())

# As sbatch does it: it copies the script away, runs each task of an array in an environment of its own, writes what it
# says to --output (%a: the task), answers with the id of the job at once, or with --wait with the job's exit code.
SBATCH = r"""
array=1 output=/dev/null wait=""
while (($# > 1)); do
  case $1 in
    --array=*) array=${1#*=} tasks=yes ;;
    --output=*) output=${1#*=} ;;
    --wait) wait=yes ;;
  esac
  shift
done
cp "$1" "$SANDBOX_CALLS/../spooled"
code=0
for ((task = ${array%-*}; task <= ${array#*-}; task++)); do
  if [[ -n ${tasks:-} ]]; then export SLURM_ARRAY_TASK_ID=$task; fi
  bash "$SANDBOX_CALLS/../spooled" > "${output/\%a/$task}" 2>&1 || code=$?
done
echo "4711;cluster"
if [[ -n $wait ]]; then exit "$code"; fi
"""
# The machine of task $DIES is gone in the middle of it: whoever started srun is killed.
SRUN = r"""
if [[ $SLURM_ARRAY_TASK_ID == "${DIES:-}" ]]; then kill -KILL "$PPID"; exit 1; fi
exec "$@"
"""
PYTEST = r"""
while (($# > 1)); do
  if [[ $1 == --perf-reports ]]; then mkdir -p "$2/latest"; echo '{}' > "$2/latest/results.json"; fi
  shift
done
exit "${PYTEST_CODE:-0}"
"""
MERGE = 'echo "merged $*"\nexit "${MERGE_CODE:-0}"\n'


@pytest.fixture
def cluster(sandbox: Sandbox) -> Sandbox:
    sandbox.stand_in("sbatch", SBATCH)
    sandbox.stand_in("srun", SRUN)
    sandbox.stand_in("nvidia-smi", 'exit "${NVIDIA_SMI_CODE:-0}"\n')
    sandbox.stand_in("pytest", PYTEST)
    sandbox.stand_in("kernelgauge", MERGE)
    sandbox.stand_in("date", "echo 20261121T021700Z\n")
    return sandbox


def night(cluster: Sandbox, **environment: str):
    return cluster.run(str(SLURM / "submit.sh"), **environment)


@pytest.mark.parametrize("name", SCRIPTS)
def test_shellcheck_finds_nothing_in_a_script(name):
    assert shellcheck((SLURM / name).read_text()) == ""


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_ends_at_its_first_error(name):
    assert "\nset -euo pipefail\n" in (SLURM / name).read_text()


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name.endswith(".sbatch")])
def test_directives_come_before_the_first_command_after_which_slurm_reads_none(name):
    lines = (SLURM / name).read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    directives = [i for i, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert directives
    assert max(directives) < first
    assert all(re.fullmatch(r"#SBATCH --[a-z-]+(=\S+)?", lines[i]) for i in directives)


def test_each_task_of_the_array_has_one_gpu_and_measures_its_own_shard(cluster):
    done = night(cluster, SHARDS="3", REPORTS=str(cluster.folder / "re ports"))
    assert done.returncode == 0, done.stderr
    run = cluster.folder / "re ports" / "20261121T021700Z"
    assert cluster.calls("pytest") == [
        [
            *("perf", "--perf-device", "cuda", "--perf-strict"),
            *("--perf-shard", f"{shard}/3"),
            *("--perf-reports", f"{run}/shard-{shard}"),
            *("--perf-history", f"{cluster.work}/history"),
            *("--junitxml", f"{run}/shard-{shard}/latest/junit.xml"),
        ]
        for shard in (1, 2, 3)
    ]
    assert [call[0] for call in cluster.calls("srun")] == ["pytest"] * 3
    assert "\n#SBATCH --gres=gpu:1\n" in (SLURM / "nightly.sbatch").read_text()


def test_the_merge_waits_for_every_task_however_it_ended_and_gets_all_that_is_there(cluster):
    done = night(cluster, SHARDS="2")
    run = cluster.work / "reports" / "nightly" / "20261121T021700Z"
    array, merge = cluster.calls("sbatch")
    assert array == ["--parsable", "--array=1-2", f"--output={run}/shard-%a.log", str(SLURM / "nightly.sbatch")]
    assert merge == ["--wait", "--dependency=afterany:4711", f"--output={run}/merge.log", str(SLURM / "merge.sbatch")]
    assert cluster.calls("kernelgauge") == [["merge", f"{run}/shard-1/", f"{run}/shard-2/", "--to", f"{run}/merged"]]
    assert "merged merge" in done.stdout


@pytest.mark.parametrize("dies", [1, 2, 3])
def test_a_machine_that_dies_takes_no_other_part_with_it(cluster, dies):
    night(cluster, SHARDS="3", DIES=str(dies))
    run = cluster.work / "reports" / "nightly" / "20261121T021700Z"
    others = [f"{run}/shard-{shard}/" for shard in (1, 2, 3) if shard != dies]
    assert cluster.calls("kernelgauge") == [["merge", *others, "--to", f"{run}/merged"]]


@pytest.mark.parametrize("code", [0, 1, 2])
@pytest.mark.parametrize("dies", ["", "2"])
def test_the_night_ends_as_the_merge_ends(cluster, dies, code):
    assert night(cluster, SHARDS="2", DIES=dies, MERGE_CODE=str(code)).returncode == code


def test_a_merge_that_was_never_started_is_not_green(cluster):
    cluster.stand_in("sbatch", "if [[ $1 == --wait ]]; then exit 1; fi; echo 4711\n")
    assert night(cluster).returncode == 1


def test_a_cluster_that_takes_no_job_is_not_green(cluster):
    cluster.stand_in("sbatch", "exit 1\n")
    assert night(cluster).returncode == 1
    assert len(cluster.calls("sbatch")) == 1


def task(cluster: Sandbox, **environment: str):
    given = {"SHARDS": "2", "RUN_DIR": "night", "SLURM_ARRAY_TASK_ID": "2"} | environment
    return cluster.run("bash", str(SLURM / "nightly.sbatch"), **{name: text for name, text in given.items() if text})


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4, 5])
def test_a_task_ends_as_pytest_ends(cluster, code):
    assert task(cluster, PYTEST_CODE=str(code)).returncode == code


@pytest.mark.parametrize("missing", ["SHARDS", "RUN_DIR", "SLURM_ARRAY_TASK_ID"])
def test_a_task_that_was_not_submitted_as_one_says_what_it_lacks_and_measures_nothing(cluster, missing):
    done = task(cluster, **{missing: ""})
    assert done.returncode != 0
    assert missing in done.stderr
    assert cluster.calls("pytest") == []


def test_a_node_that_has_lost_its_gpu_measures_nothing(cluster):
    assert task(cluster, NVIDIA_SMI_CODE="9").returncode == 9
    assert cluster.calls("pytest") == []


def test_a_lost_part_is_measured_again_by_itself_as_the_same_part(cluster):
    script = str(SLURM / "nightly.sbatch")
    cluster.run("sbatch", "--array=2-2", script, SHARDS="3", RUN_DIR="night")
    (call,) = cluster.calls("pytest")
    assert call[call.index("--perf-shard") + 1] == "2/3"


def test_srun_gets_the_cpus_of_the_job_and_the_programs_of_the_environment(cluster):
    cluster.stand_in("pytest", 'echo "cpus $SRUN_CPUS_PER_TASK"\n', at=cluster.folder / "my venv" / "bin")
    done = task(cluster, VENV=str(cluster.folder / "my venv"), SLURM_CPUS_PER_TASK="8")
    assert done.stdout == "cpus 8\n"
