# What a release consists of, in dist/: each step of .github/workflows/release.yml is one of these targets, so that a release can be tried on any machine.
DIST := dist
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
PLATFORM = $(shell $(BIN)/python -c 'import platform, sys; print(f"{sys.platform}-{platform.machine()}-cp3{sys.version_info.minor}")')
WHEEL = $(DIST)/dray-$(VERSION)-py3-none-any.whl
# Archives depend on the commit alone, not on the time at which they are made.
export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
IMAGE ?= dray:$(VERSION)
# What the image starts from; any image with python3 of 3.11 or newer and its venv module.
BASE ?= python:3.12-slim
# docker, podman and buildah understand the same Dockerfile.
BUILDER ?= $(firstword $(foreach program,docker podman buildah,$(if $(shell command -v $(program)),$(program))))

.PHONY: release dist sbom pyz checksums image check-version release-notes upload

$(STAMPS)/release: $(STAMPS)/run pyproject.toml
	@echo "installing what builds a release"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[release]'
	@touch $@

release: dist sbom pyz checksums ## everything of a release but the image, in dist/

check-version: ## fail unless pyproject, package and changelog name one version (and TAG, if given)
	@$(PYTHON) tools/check_version.py $(TAG)

dist: $(STAMPS)/release check-version ## wheel and source archive
	@rm -rf $(DIST) && mkdir -p $(DIST)
	@$(BIN)/python -m build --quiet --outdir $(DIST) .
	@$(BIN)/python -m twine check --strict $(DIST)/*

# The packages that pip chooses today for the wheel in an empty environment.
sbom: $(WHEEL) ## list of the wheel's packages, in CycloneDX
	@rm -rf build/sbom && $(PYTHON) -m venv build/sbom
	@build/sbom/bin/python -m pip install --quiet --disable-pip-version-check $(WHEEL)
	@$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
		--output-format JSON --output-file $(DIST)/dray-$(VERSION).cdx.json build/sbom/bin/python
	@rm -rf build/sbom

pyz: $(WHEEL) ## one executable file with all packages, for this platform and Python
	@$(BIN)/shiv --quiet --reproducible --compressed --console-script dray --python '/usr/bin/env python3' \
		--output-file $(DIST)/dray-$(VERSION)-$(PLATFORM).pyz $(WHEEL)

checksums: ## SHA-256 of all files of dist/
	@cd $(DIST) && rm -f SHA256SUMS && sha256sum * > SHA256SUMS && cat SHA256SUMS

image: $(WHEEL) ## container image of the wheel; IMAGE=name, BASE=image, BUILDER=docker|podman|buildah
	@test -n '$(BUILDER)' || { echo "install docker, podman or buildah, or set BUILDER"; exit 1; }
	@$(BUILDER) build --build-arg BASE=$(BASE) --file deploy/Dockerfile --tag $(IMAGE) .

release-notes: ## this version's entry of the changelog
	@awk '/^## /{wanted = ($$2 == "$(VERSION)"); next} wanted' CHANGELOG.md

upload: $(STAMPS)/release ## upload wheel and source archive to the package index
	@$(BIN)/python -m twine upload --non-interactive $(WHEEL) $(DIST)/dray-$(VERSION).tar.gz

$(WHEEL):
	@$(MAKE) --no-print-directory dist
