# make benchmark   compares the four strategies on ResNet-50, in about five minutes
# make test        what the CI runs
#
# Both set everything up first: a virtual environment in .venv with TensorFlow and this package.
# Another Python than the one found: make PYTHON=/path/to/python3.12 test

# The first Python from 3.11 to 3.13 that can make virtual environments.
PYTHON ?= $(shell for python in python3.13 python3.12 python3.11 python3 python; do \
	if $$python -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
		2>/dev/null; then echo $$python; break; fi; done)
VENV := .venv
BIN := $(VENV)/bin
# Made last, so that an installation that was cut short is done again.
STAMP := $(VENV)/installed

.PHONY: eigen benchmark test lint types contracts tests docs speed tables published readme notebooks format clean

benchmark: $(STAMP)
	$(BIN)/python benchmark.py --strategy original,checkpoints,lms,ome --layers 50 --batch-size 32 --steps 3

# What is read only needs a core each; the tests have both.
test: $(STAMP)
	$(MAKE) -j2 --output-sync=target lint types contracts docs
	$(MAKE) tests

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/pyright --pythonpath $(BIN)/python

contracts: $(STAMP)
	$(BIN)/lint-imports

# A file of tests stays in one process, whose TensorFlow and traced models its tests share; which
# files come first, tests/conftest.py says. Three on two cores: tests wait for children a third of
# their time, and these wait ten seconds where TensorFlow runs out of memory. Peaks are held with
# oneDNN on and off (tests/tf/test_ask.py).
IN_THREE := -n 3 --dist loadfile --no-loadscope-reorder
tests: $(STAMP)
	$(BIN)/pytest $(IN_THREE)

# All tests that ask kernels, with Eigen's.
eigen: $(STAMP)
	TF_ENABLE_ONEDNN_OPTS=0 $(BIN)/pytest $(IN_THREE) -m kernels

# The documentation, in build/site.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# How long planning, simulating and rewriting take, from ResNet-18 to 200, and at 50,000 nodes; and a
# summary of EfficientNetB0.
BENCHMARK := $(BIN)/pytest --benchmark-columns=median,stddev,rounds --benchmark-sort=fullname
speed: $(STAMP)
	$(BENCHMARK) benchmarks/test_speed.py --benchmark-json=results/speed/speed.json
	$(BENCHMARK) benchmarks/test_planning.py --benchmark-json=results/speed/planning.json
	$(BENCHMARK) benchmarks/test_scale.py --benchmark-json=results/speed/scale.json
	$(BENCHMARK) benchmarks/test_answers.py --benchmark-json=results/speed/answers.json

# All that is made of the committed records: the README's tables, the notebooks, the pages.
tables: readme notebooks
	$(BIN)/memtrade accuracy results/measured --format markdown > results/predicted/arena.md
	$(BIN)/memtrade accuracy results/measured --format csv > results/predicted/arena.csv
	for each in results/machines/*/; do $(BIN)/memtrade accuracy $$each --format markdown > $${each%/}.md; done

# All beside what was published: the thesis' networks under its tools' rules, measured anew; what is predicted. With
# OPENAI=CHECKOUT TFLMS=CHECKOUT PYTHON37=PATH (memtrade/papers/originals.py says which) the original tools, too.
PAPERS := thesis_variants thesis_prediction thesis_rest thesis_inception thesis_log_beside gpipe_reserved \
	torchgpipe_reserved gpt2_partitions device_check
THEIR_NETS := --layers 50,101,152,200,0 --batch-size 8,32
SLIM := $(addprefix --model-option ,num_classes=1001 batch_norm=inference dropout=0 head=pool)
published: $(STAMP)
	$(BIN)/memtrade sweep thesis_tools --results results/thesis
	$(if $(PYTHON37),$(BIN)/python -m memtrade.papers.originals results/originals --openai $(OPENAI) --tflms $(TFLMS) \
		--python37 $(PYTHON37) $(THEIR_NETS))
	$(BIN)/memtrade run --model inception-v4 $(SLIM) --batch-size 32 --optimizer adam --order dataflow \
		--strategy ome --option rule=openai --option select=read_once --log thesis --results results/thesis_log
	$(BIN)/memtrade pipeline sweep torchgpipe_at_size --one-at-a-time --memory-limit 20GiB --steps 1 \
		--results results/pipeline/torchgpipe_at_size
	$(BIN)/python -m pip install --quiet scikit-learn  # which ships the digits
	$(BIN)/python -m memtrade.papers.transparency results/transparency docs/images/transparency.png
	for each in $(PAPERS); do $(BIN)/python -m memtrade.papers.$$each results/predicted || exit 1; done
	for each in gpipe_gpt2 torchgpipe_memory torchgpipe_speed; do $(BIN)/memtrade pipeline published $$each || exit 1; done

readme: $(STAMP)
	$(BIN)/python docs/fill.py README.md docs/one-step.md

notebooks: $(STAMP)
	$(BIN)/python notebooks/run.py notebooks/*.ipynb

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .import_linter_cache .hypothesis

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make: no Python from 3.11 to 3.13 with venv was found: install one, or say make PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[cpu,dev,docs]'
	@touch $@
