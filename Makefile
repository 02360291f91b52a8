# Every target makes the environment first; a fresh clone needs nothing but Python 3.11 or later and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed


.PHONY: help install run figures test test-whole part hybrids judge test-serve test-starting test-interop test-trl test-datasets test-lm-eval test-peft test-gguf test-gpu test-cluster test-mup test-processors mutants fuzz table table-parallel lint docs clean

help:
	@echo "make run    compare language models of six ages, in six to eight minutes on two cores; leaves"
	@echo "            runs/six_ages/report.html"
	@echo "make install  the environment alone; '. .venv/bin/activate' then finds weft"
	@echo "make test   the tests, but for long ones: some eight minutes on two cores"
	@echo "make test-whole  all tests, as continuous integration runs them: under half an hour"
	@echo "make part NAME=lstm  the page, the laws, the oracle and the tables of one part, in about half a minute"
	@echo "make test-interop  the tests against transformers"
	@echo "make test-peft  the tests against peft"
	@echo "make test-lm-eval  the tests against lm-eval"
	@echo "make test-trl  the tests against trl"
	@echo "make test-datasets  the tests against datasets"
	@echo "make table  docs/families_table.md, measured against transformers"
	@echo "make table-parallel  docs/parallel_table.md: every way to train against one process, for every mixer"
	@echo "make test-gguf  the tests against llama.cpp, which is built for them"
	@echo "make test-gpu  the tests on a GPU, which PyTorch must be built for: every part against the CPU"
	@echo "make test-cluster  the scripts of examples/cluster, as two machines that are this one"
	@echo "make test-mup  the tests against the package mup"
	@echo "make test-processors  the tests as other processors and other numbers of threads run them: more than half an hour"
	@echo "make hybrids  the laws on 1,000 hybrids drawn from all parts: some six minutes on two cores"
	@echo "make judge  the referee on the museum, on 300 hybrids and on models of other authors: under an hour on two cores"
	@echo "make test-serve  10,000 requests drawn from the document of a server: under half an hour"
	@echo "make test-starting  every part and preset, at its defaults, learns from the first steps: under ten minutes"
	@echo "make mutants  mistakes put into the source one by one, which the tests must see: under half an hour;"
	@echo "              make mutants ONLY='beam-* sampling-*' for some"
	@echo "make fuzz   hostile files and options for every command and reader, for an hour; FUZZ_MINUTES=10 for"
	@echo "            less, FUZZ_PHASES=readers for one of the two"
	@echo "make lint   ruff and mypy"
	@echo "make docs   the documentation, into docs/_build/html"

$(STAMP): pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev,docs]'
	touch $@

install: $(STAMP)

run: $(STAMP)
	$(BIN)/weft compare --study examples/six_ages.yaml --out runs/six_ages

# What `make run` has found becomes what the README quotes.
figures: run
	$(BIN)/python recipes/six_ages/record.py runs/six_ages

# Processes of one thread each: threads that fight over the cores cost more than they give on tiny tensors. Modules are
# compiled once, also where the environment says otherwise: the tests start many processes. A file's tests run in one
# process, one after the other, so that what they share is made once; files in their order, for the long ones are not
# those of the most tests, and would come last.
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
test: $(STAMP)
	$(PYTEST) --quick

# All of them; RECORD=FILE.xml keeps the time of each, from which tests/long_tests.py chooses those that are left out.
test-whole: $(STAMP)
	$(PYTEST) $(if $(RECORD),--junitxml=$(RECORD))

# One part: its page, and every test that stands in its file or runs on its examples.
PART = tests/laws/test_every_part.py tests/laws/test_bad_configs.py tests/core/test_schema.py tests/core/test_in_words.py \
	tests/core/test_config_tree.py tests/analysis/test_flops.py tests/analysis/test_plan.py tests/pictures/test_part_page.py \
	tests/integration/test_checkpointing.py tests/integration/test_dropout_fields.py tests/integration/test_transforms.py \
	tests/decoding/test_decoding_rows.py tests/decoding/test_decoding_tape.py tests/architecture/test_meanings.py \
	tests/mixers tests/feedforward tests/positions tests/norms tests/blocks tests/heads tests/masks
part: $(STAMP)
	@test -n "$(NAME)" || { echo "Name the part by its kind: make part NAME=lstm" >&2; exit 2; }
	$(BIN)/ruff check src tests
	$(BIN)/python docs/generate.py $(NAME)
	$(PYTEST) --dist load -k "$(NAME)" $(PART)
	@echo "$(NAME): done; the page is docs/_generated/parts, make mutants and make table-parallel are left for a new part"

# Hybrids of parts drawn at random, which obey the laws too: more of them than `make test` draws.
HYBRIDS ?= 1000
hybrids: $(STAMP)
	WEFT_HYBRIDS=$(HYBRIDS) $(PYTEST) --dist load tests/laws/test_hybrids.py

# The referee on everything that it must catch and must not accuse; `make test` asks it about some of it.
judge: $(STAMP)
	WEFT_JUDGE=1 $(PYTEST) --dist load tests/judge

# Requests drawn from the document of a server, sound and broken; `make test` draws some.
test-serve: $(STAMP)
	WEFT_SERVE_CASES=1250 $(PYTEST) tests/server

# Every part and preset at its defaults learns from the first steps; `make test` runs a sample.
test-starting: $(STAMP)
	WEFT_STARTING=1 $(PYTEST) --dist load tests/laws/test_starting.py

# Against transformers, which nothing else needs.
test-interop: $(STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[interop]'
	$(PYTEST) tests/against_transformers

# Against peft, in whose format adapters are read and written.
test-peft: $(STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[interop]' 'peft>=0.21'
	$(PYTEST) tests/against_peft
# Against lm-eval and its own model of transformers.
test-lm-eval: $(STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[interop]' 'lm_eval[hf]>=0.4.9'
	TQDM_DISABLE=1 $(PYTEST) tests/against_lm_eval
# Against trl, its losses and its templates.
test-trl: $(STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[interop,trl]'
	$(PYTEST) tests/against_trl

# Against datasets: what it wrote, loads, and reads from a Hub, which the tests serve on this machine.
test-datasets: $(STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[datasets]'
	$(PYTEST) tests/against_datasets

# Against the package of the authors of muP.
test-mup: $(STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps 'mup==1.0.0' 'pyyaml'
	$(PYTEST) tests/against_mup

# On a GPU, with the PyTorch that the environment has: PYTHON=... BIN=... name one that is built for it.
test-gpu:
	$(PYTEST) tests/on_gpu

# The scripts for machines that train together, two torchruns on this machine in their place.
test-cluster: $(STAMP)
	$(PYTEST) tests/on_two_machines

# Against llama.cpp. The package is built from its sources, which takes minutes and a C++ compiler.
test-gguf: $(STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[gguf]' 'llama-cpp-python>=0.3.16'
	$(PYTEST) tests/llamacpp

# Held to the instructions of older processors, and on 1, 2 and 4 threads.
test-processors: $(STAMP)
	cd tests && PYTHONDONTWRITEBYTECODE= ../$(BIN)/python -m processors

# Every command with hostile files and options for half of the time, then everything that reads files. What finds a
# fault is kept in fuzz_found.
FUZZ_MINUTES ?= 60
FUZZ_PHASES ?= commands,readers
fuzz: $(STAMP)
	FUZZ_MINUTES=$(FUZZ_MINUTES) FUZZ_PHASES=$(FUZZ_PHASES) OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m fuzz

# Mistakes in copies of the source; each must turn a test red. ONLY: names of mutants, * for anything.
ONLY ?= *
mutants: $(STAMP)
	cd tests && PYTHONDONTWRITEBYTECODE= ../$(BIN)/python -m mutants.run $(foreach name,$(ONLY),'$(name)')

# The largest difference from transformers that each family of models shows.
table: $(STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[interop]'
	cd tests && OMP_NUM_THREADS=1 ../$(BIN)/python -m against_transformers.table

# Every way to train, against one process: every mixer, every column. It goes on where it was stopped.
table-parallel: $(STAMP)
	cd tests && OMP_NUM_THREADS=1 ../$(BIN)/python -m parallel.table.measure

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(STAMP)
	$(BIN)/sphinx-build -W -q -b html docs docs/_build/html

clean:
	rm -rf $(VENV) build dist docs/_build
