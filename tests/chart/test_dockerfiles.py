"""Properties of the Dockerfiles that need no build."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
DOCKERFILES = {
    "engine": PROJECT / "engine_image" / "Dockerfile",
    "operator": PROJECT / "operator" / "Dockerfile",
}
PYPROJECT = tomllib.loads((PROJECT / "pyproject.toml").read_text())


def instructions(name):
    """[(instruction, arguments)] with continuation lines joined and comments left out."""
    lines = [line for line in DOCKERFILES[name].read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in joined.splitlines() if line.strip()]


def final_stage(name):
    parsed = instructions(name)
    start = max(i for i, (instruction, _) in enumerate(parsed) if instruction == "FROM")
    return parsed[start:]


def value(name, instruction):
    found = [arguments for key, arguments in final_stage(name) if key == instruction]
    assert len(found) == 1, f"{instruction}: {found}"
    return found[0]


both = pytest.mark.parametrize("name", DOCKERFILES)


@both
def test_every_stage_starts_from_the_base_the_user_names(name):
    parsed = instructions(name)
    assert parsed[0] == ("ARG", "BASE=python:3.11-slim")
    assert {a.split()[0] for i, a in parsed if i == "FROM"} == {"${BASE}"}
    assert "# syntax=" not in DOCKERFILES[name].read_text(), "a frontend would be pulled from a registry"


@both
def test_no_address_of_a_registry_or_index_is_written_in(name):
    assert not re.search(r"https?://|\.(org|io|com)/", DOCKERFILES[name].read_text())


@both
def test_it_runs_as_a_numbered_user_that_is_not_root(name):
    # Kubernetes checks runAsNonRoot by number; a name would be refused.
    assert value(name, "USER") == "65532:65532"


@both
def test_the_program_gets_the_signals_and_is_stopped_by_sigterm(name):
    assert value(name, "ENTRYPOINT") == f'["inflight-{name}"]'
    assert value(name, "STOPSIGNAL") == "SIGTERM"


def test_the_engine_serves_on_8000_and_the_operator_runs_by_default():
    assert value("engine", "EXPOSE") == "8000"
    assert value("operator", "CMD") == '["run"]'


@both
def test_labels_carry_the_version_of_the_project(name):
    versions = [a for i, a in final_stage(name) if i == "ARG" and a.startswith("VERSION=")]
    assert versions == [f"VERSION={PYPROJECT['project']['version']}"]
    assert f'licenses="{PYPROJECT["project"]["license"]}"' in value(name, "LABEL")


@both
def test_the_code_is_the_last_layer(name):
    """A change of code rebuilds nothing but the last layer: layers come from RUN, COPY and ADD only."""
    layers = [a for i, a in final_stage(name) if i in ("RUN", "COPY", "ADD")]
    folder = f"{'engine_image' if name == 'engine' else 'operator'}/inflight_{name}"
    assert [folder in layer for layer in layers] == [False] * (len(layers) - 1) + [True]


@both
def test_the_shared_packages_are_in_the_layer_of_the_code(name):
    last = [a for i, a in final_stage(name) if i == "RUN"][-1]
    assert "source=common,target=/build/common" in last
    assert "cp -r /build/common/* " in last
    assert "compileall -q /opt/inflight/lib/python3*/site-packages/inflight_*" in last


COMMANDS = {"engine": {"inflight-engine"}, "operator": {"inflight-operator", "inflight-gateway"}}


@both
def test_the_only_commands_of_the_project_in_it_are_its_own(name):
    """Installing the project makes a command for each program, and the others' code is not there."""
    (install,) = [a for i, a in final_stage(name) if i == "RUN" and "/tmp/project;" in a]
    removed = set(re.findall(r"/opt/inflight/bin/([\w-]+)", install.partition("rm -f ")[2]))
    assert removed == set(PYPROJECT["project"]["scripts"]) - COMMANDS[name]


@both
def test_dependencies_are_installed_by_one_layer_that_keeps_no_cache(name):
    layers = [a for i, a in final_stage(name) if i == "RUN"]
    assert not [a for i, a in final_stage(name) if i in ("COPY", "ADD")], "copied from a stage it would be there twice"
    (install,) = [layer for layer in layers if f"-r /build/{name}.txt" in layer]
    assert "--mount=type=cache" in install
    assert "--link-mode copy" in install  # links into the cache mount would dangle or be copied by the snapshot
    assert "--mount=type=tmpfs,target=/tmp" in install


def test_what_the_cpu_image_drops_is_dropped_by_the_layer_that_installs_it():
    (install,) = [a for i, a in final_stage("engine") if i == "RUN" and "engine.txt" in a]
    steps = ["-r /build/engine.txt", "image_drop_unlinked.py", "image_strip_elf.py", "image_prove.py"]
    positions = [install.rindex(step) for step in steps]
    assert positions == sorted(positions)


def test_the_engine_image_can_be_built_with_another_torch_and_for_gpus():
    arguments = {a.partition("=")[0]: a.partition("=")[2] for i, a in final_stage("engine") if i == "ARG"}
    assert arguments["VARIANT"] == "cpu"
    assert arguments["TORCH_INDEX"] == ""


@pytest.fixture
def without_a_compiler(tmp_path):
    """Runs the step of a stage that gets a compiler on a machine without one, where apt-get does as told."""

    def run(apt_get, stage="${BASE} AS kernels", **arguments):
        parsed = instructions("engine")
        first = parsed.index(("FROM", stage))
        (step,) = [a for i, a in parsed[first : first + 4] if i == "RUN" and "apt-get" in a]
        step = step.replace("/var/lib/apt", str(tmp_path))
        program = tmp_path / "apt-get"
        program.write_text(f"#!/bin/sh\n{apt_get}\n")
        program.chmod(0o755)
        environment = {"PATH": str(tmp_path), "CPU_KERNELS": "yes"} | arguments
        return subprocess.run([shutil.which("sh"), "-c", step], env=environment, capture_output=True, text=True)

    return run


def test_an_image_without_the_cpu_kernels_is_only_built_where_that_is_asked_for(without_a_compiler):
    assert ("ARG", "CPU_KERNELS=yes") in instructions("engine")
    assert without_a_compiler("exit 0").returncode == 0
    for apt_get in ("exit 100", '[ "$*" != "${*#*install}" ] && exit 100; exit 0'):
        failed = without_a_compiler(apt_get)
        assert failed.returncode == 1
        assert "CPU_KERNELS=no" in failed.stderr
    assert without_a_compiler("exit 100", CPU_KERNELS="no").returncode == 0
    assert without_a_compiler("exit 0", CPU_KERNELS="maybe").returncode == 2


def test_the_image_for_gpus_has_the_c_compiler_that_triton_needs(without_a_compiler):
    fails = 'echo "$*" >&2; exit 100'
    assert "update" not in without_a_compiler(fails, "${BASE}", VARIANT="cpu").stderr
    failed = without_a_compiler(fails, "${BASE}", VARIANT="gpu")
    assert failed.returncode == 1
    assert "take a BASE that has one" in failed.stderr
    installed = without_a_compiler('echo "$*" >&2; exit 0', "${BASE}", VARIANT="gpu")
    assert "install -y --no-install-recommends gcc libc6-dev" in installed.stderr


@pytest.mark.parametrize("variant", ["cpu", "gpu"])
def test_the_kernels_go_where_the_engine_looks_for_them(tmp_path, variant):
    """The last step, run on folders of its own."""
    code, kernels = tmp_path / "build" / "inflight_engine" / "native", tmp_path / "build" / "lib"
    installed = tmp_path / "opt" / "inflight"
    cost = tmp_path / "build" / "common" / "inflight_cost"
    for folder in (code, cost, kernels, installed / "bin", installed / "lib" / "python3.99" / "site-packages"):
        folder.mkdir(parents=True)
    (kernels / "libinflight-generic.so").touch()
    python = installed / "bin" / "python"
    python.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\n')
    python.chmod(0o755)
    step = [a for i, a in final_stage("engine") if i == "RUN"][-1]
    shell = re.sub(r" /(build|opt)/", rf" {tmp_path}/\1/", step[step.index("set -eu") :])
    assert subprocess.run(["sh", "-c", shell], env=os.environ | {"VARIANT": variant}).returncode == 0
    compiled = f"-m inflight_engine.execution.shipped_kernels {installed}/kernels"
    assert (compiled in (tmp_path / "calls").read_text()) == (variant == "gpu")
    native = "lib/python3.99/site-packages/inflight_engine/native"
    assert (installed / native / "lib" / "libinflight-generic.so").is_file()


def test_kernels_compiled_for_this_machine_stay_out_of_the_images():
    ignored = (PROJECT / ".dockerignore").read_text().splitlines()
    assert "engine_image/inflight_engine/native/lib" in ignored


def test_the_image_has_no_kernels_that_only_tests_use():
    steps = [a for i, a in instructions("engine") if i == "RUN" and "build.py" in a]
    assert steps
    assert not any("--tests" in step for step in steps)


def test_bytecode_is_made_by_the_build_and_never_by_the_run():
    for name in DOCKERFILES:
        assert "PYTHONDONTWRITEBYTECODE=1" in value(name, "ENV")
        stage = final_stage(name)
        # Were it set before, the imports and compileall of the build would leave nothing.
        last_run = max(i for i, (key, _) in enumerate(stage) if key == "RUN")
        assert next(i for i, (key, _) in enumerate(stage) if key == "ENV") > last_run


def test_bytecode_is_made_though_the_base_image_forbids_it(monkeypatch, tmp_path):
    import image_prove

    (tmp_path / "served_with.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(image_prove, "prove_torch", str)
    monkeypatch.setattr(image_prove, "prove_routes", str)
    monkeypatch.setattr(image_prove, "prove_builtin_model", str)
    monkeypatch.setattr(image_prove, "SERVING_MODULES", ("served_with",))
    image_prove.main()
    assert list(tmp_path.glob("__pycache__/served_with.*.pyc"))
    (install,) = [a for i, a in final_stage("operator") if i == "RUN" and "operator.txt" in a]
    assert "PYTHONDONTWRITEBYTECODE= /opt/inflight/bin/python -c 'import" in install


def test_the_context_holds_what_the_dockerfiles_mount_and_not_the_rest():
    rules = (PROJECT / ".dockerignore").read_text().split()
    assert rules[0] == "*"
    mounted = {
        found.split("/")[0]
        for path in DOCKERFILES.values()
        for found in re.findall(r"--mount=type=bind,source=([^,]+)", path.read_text())
    }
    copied = {word for path in DOCKERFILES.values() for word in re.findall(r"^COPY (.*) \S+$", path.read_text(), re.M)}
    needed = mounted | {word.rstrip("*") for line in copied for word in line.split()}
    assert needed <= {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    assert "**/__pycache__" in rules


def test_the_operator_image_proves_what_it_installs():
    (install,) = [a for i, a in final_stage("operator") if i == "RUN" and "operator.txt" in a]
    proved = set(re.search(r"-c 'import ([^']*)'", install)[1].replace(" ", "").split(","))
    modules = {
        "cryptography": "cryptography.x509",
        "grpcio": "grpc.aio",
        "jh2": "jh2._hazmat",
        "kubernetes": "kubernetes.aio",
        "prometheus-client": "prometheus_client",
        "pyyaml": "yaml",
        "pyzmq": "zmq",
        "xds-protos": "envoy.service.ext_proc.v3.external_processor_pb2_grpc",
    }
    extras = PYPROJECT["project"]["optional-dependencies"]
    required = {r.split("==")[0].lower() for extra in ("operator", "gateway") for r in extras[extra]}
    assert proved == {modules.get(name, name) for name in required}


def test_the_operator_image_is_pinned_with_the_dependencies_of_both_programs():
    (pins,) = [a for i, a in instructions("operator") if i == "RUN" and "pip compile" in a]
    assert set(re.findall(r"--extra (\w+)", pins)) == {"operator", "gateway"}


def test_the_engine_image_proves_what_it_installs():
    import image_prove

    modules = {
        "cryptography": "cryptography.hazmat.primitives.ciphers.aead",
        "grpcio": "grpc.aio",
        "huggingface-hub": "huggingface_hub",
        "jinja2": "jinja2",
        "opentelemetry-exporter-otlp-proto-http": "opentelemetry.exporter.otlp.proto.http.trace_exporter",
        "opentelemetry-sdk": "opentelemetry.sdk.trace",
        "prometheus-client": "prometheus_client",
        "pyyaml": "yaml",
        "pyzmq": "zmq",
        "safetensors": "safetensors.torch",
        "smg-grpc-proto": "smg_grpc_proto.generated.vllm_engine_pb2",
        "transformers": "transformers.modeling_utils",
    }
    apart = {"torch", "numpy"}  # proved by more than an import
    required = {r.split("==")[0].lower() for r in PYPROJECT["project"]["optional-dependencies"]["engine"]}
    assert set(image_prove.SERVING_MODULES) == {modules.get(name, name) for name in required - apart}
