# The benchmark on a GPU:
#
#     docker build -t memtrade .
#     docker run --rm --gpus all -v "$PWD/runs:/results" memtrade --strategy all --layers 50
#
# Without --gpus the trials run in the arena, on the CPU.
FROM python:3.12-slim

RUN useradd --create-home --uid 1000 memtrade && mkdir /results && chown memtrade /results
WORKDIR /home/memtrade/memtrade

# What the package depends on changes seldom: a layer of its own.
COPY --chown=memtrade pyproject.toml setup.py constraints.txt README.md LICENSE ./
COPY --chown=memtrade memtrade memtrade
RUN pip install --no-cache-dir -c constraints.txt '.[gpu]'

COPY --chown=memtrade benchmark.py max_batch.py ./
COPY --chown=memtrade results/published results/published

USER memtrade
VOLUME /results
ENTRYPOINT ["python", "benchmark.py", "--results", "/results"]
CMD ["--strategy", "original,checkpoints,lms,ome", "--layers", "50", "--batch-size", "32"]
