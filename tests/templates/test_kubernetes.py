"""The manifests of Kubernetes: valid, without rights that they do not need, and their shell texts do what they say."""

import subprocess
from typing import Any

import pytest

from .sandbox import TEMPLATES, Sandbox, shellcheck

yaml = pytest.importorskip("yaml", reason="the manifests are read with PyYAML: pip install pyyaml")

MANIFESTS: dict[str, dict[str, Any]] = {
    manifest["metadata"]["name"]: manifest
    for path in sorted((TEMPLATES / "kubernetes").glob("*.yaml"))
    for manifest in yaml.safe_load_all(path.read_text())
}
NAMES = sorted(MANIFESTS)
MEASURING = ["kernelgauge-nightly", "kernelgauge-shards"]
OLDEST = "1.29"  # has backoffLimitPerIndex


def job(name: str) -> dict[str, Any]:
    return MANIFESTS[name]["spec"]["jobTemplate"]["spec"]


def pod(name: str) -> dict[str, Any]:
    return job(name)["template"]["spec"]


def containers(name: str) -> list[dict[str, Any]]:
    return [*pod(name).get("initContainers", []), *pod(name)["containers"]]


def validate(manifest: dict[str, Any], version: str | None) -> None:
    checker = pytest.importorskip("kubernetes_validate", reason="Kubernetes' schemas: pip install kubernetes-validate")
    checker.validate(manifest, version or checker.latest_version(), strict=True)


@pytest.mark.parametrize("version", [OLDEST, None], ids=["oldest", "newest"])
@pytest.mark.parametrize("name", NAMES)
def test_a_manifest_is_valid_by_the_schema_and_has_no_field_that_is_not_in_it(name, version):
    validate(MANIFESTS[name], version)


def test_the_schema_refuses_a_field_that_is_misspelt():
    checker = pytest.importorskip("kubernetes_validate", reason="Kubernetes' schemas: pip install kubernetes-validate")
    spec = MANIFESTS["kernelgauge-nightly"]["spec"]
    wrong = {**MANIFESTS["kernelgauge-nightly"], "spec": {**spec, "concurencyPolicy": "Forbid"}}
    with pytest.raises(checker.ValidationError):
        validate(wrong, None)


@pytest.mark.parametrize("name", NAMES)
def test_a_night_is_measured_once_and_ends_in_time(name):
    assert MANIFESTS[name]["spec"]["concurrencyPolicy"] == "Forbid"
    assert job(name)["activeDeadlineSeconds"] <= 3600
    assert pod(name)["restartPolicy"] == "Never"


def test_one_pod_that_fails_is_not_started_again():
    assert job("kernelgauge-nightly")["backoffLimit"] == 0
    assert job("kernelgauge-merge")["backoffLimit"] == 0


def test_a_shard_that_fails_ends_no_other_shard():
    shards = job("kernelgauge-shards")
    assert "backoffLimit" not in shards  # with it, the first failure would end the job
    assert shards["backoffLimitPerIndex"] == 0
    assert shards["completionMode"] == "Indexed"


def test_the_number_of_shards_is_the_same_wherever_it_stands():
    (shard,) = pod("kernelgauge-shards")["containers"]
    (said,) = [each["value"] for each in shard["env"] if each["name"] == "SHARDS"]
    shards = job("kernelgauge-shards")
    assert (shards["completions"], shards["parallelism"]) == (int(said), int(said))


def test_the_merge_starts_on_the_same_day_when_every_shard_has_ended():
    started, merged = (
        sum(
            int(part) * unit
            for part, unit in zip(MANIFESTS[name]["spec"]["schedule"].split()[:2], (1, 60), strict=True)
        )
        for name in ("kernelgauge-shards", "kernelgauge-merge")
    )
    spec = MANIFESTS["kernelgauge-shards"]["spec"]
    latest_end = started * 60 + spec["startingDeadlineSeconds"] + job("kernelgauge-shards")["activeDeadlineSeconds"]
    assert latest_end < merged * 60
    assert merged * 60 + MANIFESTS["kernelgauge-merge"]["spec"]["startingDeadlineSeconds"] < 24 * 3600


@pytest.mark.parametrize("name", NAMES)
def test_no_container_is_root_or_has_a_right_that_it_does_not_need(name):
    security = pod(name)["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["runAsUser"] > 0
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod(name)["automountServiceAccountToken"] is False
    for container in containers(name):
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@pytest.mark.parametrize("name", NAMES)
def test_every_volume_that_is_mounted_is_declared(name):
    declared = {volume["name"] for volume in pod(name)["volumes"]}
    mounted = {mount["name"] for container in containers(name) for mount in container["volumeMounts"]}
    assert mounted == declared


@pytest.mark.parametrize("name", MEASURING)
def test_what_measures_asks_for_one_whole_gpu_and_for_cpus_of_its_own(name):
    (container,) = pod(name)["containers"]
    assert container["resources"]["limits"] == container["resources"]["requests"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert container["resources"]["limits"]["cpu"].isdecimal()


@pytest.mark.parametrize("name", NAMES)
def test_shellcheck_finds_nothing_in_a_container(name):
    for container in pod(name)["containers"]:
        assert container["command"] == ["bash", "-euo", "pipefail", "-c"]
        (text,) = container["args"]
        # Set by the manifest or by Kubernetes.
        assert shellcheck(f'set -euo pipefail\n: "$SHARDS" "$JOB_COMPLETION_INDEX"\n{text}') == ""


# -- what they do ---------------------------------------------------------------------------------------------------


@pytest.fixture
def node(sandbox: Sandbox) -> Sandbox:
    sandbox.stand_in("pytest", 'exit "${CODE:-0}"\n')
    sandbox.stand_in("kernelgauge", 'exit "${CODE:-0}"\n')
    sandbox.stand_in("date", "if [[ $2 == +%F ]]; then echo 2026-11-21; else echo 20261121T021700Z; fi\n")
    return sandbox


def run(node: Sandbox, name: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """The container's command, with its volume in the sandbox."""
    (container,) = pod(name)["containers"]
    (text,) = container["args"]
    declared = {each["name"]: each["value"] for each in container["env"] if each["name"] == "SHARDS"}
    return node.run(*container["command"], text.replace("/data/", f"{node.folder}/data/"), **(declared | environment))


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("name", MEASURING)
def test_a_pod_ends_as_pytest_ends(node, name, code):
    assert run(node, name, CODE=str(code), JOB_COMPLETION_INDEX="0").returncode == code


def test_the_night_keeps_its_reports_and_its_history_on_the_volume(node):
    run(node, "kernelgauge-nightly")
    data = f"{node.folder}/data"
    reports = f"{data}/reports/20261121T021700Z"
    assert node.calls("pytest") == [
        [
            *("perf", "--perf-device", "cuda", "--perf-strict", "--perf-reports", reports),
            *("--perf-history", f"{data}/history", "--junitxml", f"{reports}/latest/junit.xml"),
        ]
    ]


def test_kubernetes_counts_from_0_and_shards_from_1(node):
    for index in ("0", "1"):
        run(node, "kernelgauge-shards", JOB_COMPLETION_INDEX=index)
    shards = [call[call.index("--perf-shard") + 1] for call in node.calls("pytest")]
    reports = [call[call.index("--perf-reports") + 1] for call in node.calls("pytest")]
    assert shards == ["1/2", "2/2"]
    assert reports == [f"{node.folder}/data/shards/2026-11-21/shard-{shard}" for shard in (1, 2)]


@pytest.mark.parametrize("code", [0, 1, 2])
def test_the_merge_takes_the_folder_of_every_shard_of_the_day_and_ends_as_the_command_ends(node, code):
    night = node.folder / "data" / "shards" / "2026-11-21"
    for shard in ("shard-1", "shard-2"):
        (night / shard).mkdir(parents=True)
    (night / "shard-1.log").touch()
    assert run(node, "kernelgauge-merge", CODE=str(code)).returncode == code
    assert node.calls("kernelgauge") == [["merge", f"{night}/shard-1/", f"{night}/shard-2/", "--to", f"{night}/merged"]]
