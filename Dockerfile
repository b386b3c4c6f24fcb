# `multibit serve` in a container: one process for one index. docs/containers.md describes how to run it.
FROM python:3.11-slim AS build
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN python -m venv /opt/multibit \
  && /opt/multibit/bin/pip install --no-cache-dir -c constraints.txt ".[onnx,serve]"

FROM python:3.11-slim
COPY --from=build /opt/multibit /opt/multibit
# /tmp is the only folder that is written: the optimised encoders and the compiled kernels go there
ENV PATH=/opt/multibit/bin:$PATH \
  PYTHONUNBUFFERED=1 \
  HOME=/tmp \
  MULTIBIT_CACHE=/tmp/multibit \
  NUMBA_CACHE_DIR=/tmp/numba \
  MULTIBIT_HOST=0.0.0.0
USER 10001:10001
VOLUME /data
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
  CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8080/readyz')"]
ENTRYPOINT ["multibit", "serve"]
CMD ["/data/model", "--index", "/data/run/index"]
