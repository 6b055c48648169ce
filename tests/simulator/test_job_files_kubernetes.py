"""Manifests of Kubernetes as jobs: commands, environment and GPUs of their pods."""

import pytest

import joulecast as jc
from joulecast.errors import InputError

SETTINGS = "--model_name_or_path Qwen/Qwen3-8B --max_length 2048 --per_device_train_batch_size 1 --bf16 --packing"
POD = """
      containers:
      - name: pytorch
        image: own
        env:
        - {name: STEPS, value: "8"}
        - {name: TOKEN, valueFrom: {secretKeyRef: {name: a, key: b}}}
        command: [torchrun]
        args:
        - train.py
        - --model_name_or_path=Qwen/Qwen3-8B
        - --max_length=2048
        - --per_device_train_batch_size=1
        - --gradient_accumulation_steps=$(STEPS)
        - --bf16
        - --packing
        resources:
          limits: {nvidia.com/gpu: 8, cpu: 64}
"""
PYTORCH_JOB = f"""apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {{name: a}}
spec:
  nprocPerNode: "8"
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template:
        spec:{POD.replace(chr(10), chr(10) + "    ")}
    Worker:
      replicas: 3
      template:
        spec:{POD.replace(chr(10), chr(10) + "    ")}
"""
MPI_JOB = f"""apiVersion: kubeflow.org/v2beta1
kind: MPIJob
spec:
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      template: {{spec: {{containers: [{{name: a, command: [mpirun, -np, "16", python, train.py], args: [
        {", ".join(SETTINGS.split())}]}}]}}}}
    Worker:
      replicas: 2
      template:
        spec: {{containers: [{{name: a, command: [sshd, -De], resources: {{limits: {{nvidia.com/gpu: 8}}}}}}]}}
"""
TRAIN_JOB = f"""apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
spec:
  runtimeRef: {{name: torch-distributed}}
  trainer:
    numNodes: 2
    numProcPerNode: 4
    resourcesPerNode: {{limits: {{nvidia.com/gpu: 4}}}}
    command:
    - /bin/bash
    - -ec
    - |
      cd /work
      torchrun train.py {SETTINGS}
"""
JOB_SET = f"""apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
spec:
  replicatedJobs:
  - name: workers
    replicas: 2
    template:
      spec:
        parallelism: 4
        completions: 4
        template:
          spec:
            initContainers: [{{name: a, command: [wget, b]}}]
            containers:
            - name: a
              command: [bash, -c, "torchrun --nproc_per_node 2 train.py {SETTINGS}"]
              resources: {{requests: {{amd.com/gpu: "2"}}}}
"""


def convert(tmp_path, text, **options):
    (path := tmp_path / "job.yaml").write_text(text, encoding="utf-8")
    return jc.convert(path, **{"gpu": "h100-sxm", **options})


@pytest.mark.parametrize(
    ("text", "gpus"),
    [(PYTORCH_JOB, 32), (MPI_JOB, 16), (TRAIN_JOB, 8), (JOB_SET, 16)],
    ids=["pytorch", "mpi", "train", "set"],
)
def test_pods_say_commands_and_gpus(tmp_path, text, gpus):
    found = convert(tmp_path, text)
    assert found.tables["cluster"]["gpus"] == gpus
    assert found.sources["cluster.gpus"] == "GPUs of all pods"
    assert found.tables["workload"]["sequence_length"] == 2048
    assert convert(tmp_path, text, gpus=4).sources["cluster.gpus"] == "--gpus"
    assert not any("is left out" in told or "--env" in told for told in found.warnings)


def test_a_containers_environment_is_in_its_arguments(tmp_path):
    found = convert(tmp_path, PYTORCH_JOB)
    assert found.tables["workload"]["global_batch_size"] == 32 * 8
    line = PYTORCH_JOB.splitlines().index("            args:") + 1
    assert found.sources["workload.sequence_length"] == f"max_length (line {line})"


def test_the_first_job_of_several_documents_is_read(tmp_path):
    before = "apiVersion: v1\nkind: ConfigMap\ndata: {a: b}\n---\n"
    found = convert(tmp_path, f"{before}{PYTORCH_JOB}---\n{JOB_SET}")
    assert found.tables["cluster"]["gpus"] == 32
    line = PYTORCH_JOB.splitlines().index("            args:") + 1 + before.count("\n")
    assert found.sources["workload.sequence_length"] == f"max_length (line {line})"


def test_a_manifest_without_a_command_says_what_to_give(tmp_path):
    with pytest.raises(InputError, match=r"job\.yaml: no container of this manifest has a command\. Give the command"):
        convert(tmp_path, TRAIN_JOB.partition("    command")[0])
