# The benchmark on a GPU, with the records in ./runs:
#
#     docker build -t memtrade .
#     mkdir -p runs
#     docker run --rm --gpus all --user "$(id -u):$(id -g)" -v "$PWD/runs:/results" memtrade \
#         --strategy all --layers 50
#
# Without --gpus the trials run in the arena, on the CPU. Another command than the benchmark:
# docker run --rm --entrypoint memtrade memtrade predict --layers 50
FROM python:3.12-slim

# Any user may write records and what libraries cache, whatever --user says.
ENV HOME=/tmp PYTHONDONTWRITEBYTECODE=1
RUN useradd --no-create-home --uid 1000 memtrade && mkdir /results && chmod 1777 /results
WORKDIR /opt/memtrade

# TensorFlow and CUDA take gigabytes and change seldom: a layer of their own.
COPY constraints.txt ./
RUN pip install --no-cache-dir -c constraints.txt 'tensorflow[and-cuda]'

COPY pyproject.toml setup.py README.md LICENSE ./
COPY memtrade memtrade
RUN pip install --no-cache-dir -c constraints.txt '.[gpu]'

COPY benchmark.py max_batch.py ./

USER memtrade
VOLUME /results
ENTRYPOINT ["python", "benchmark.py", "--results", "/results"]
CMD ["--strategy", "original,checkpoints,lms,ome", "--layers", "50", "--batch-size", "32"]
