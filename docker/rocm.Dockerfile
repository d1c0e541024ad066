# A machine with an AMD GPU: ROCm's own MIGraphX, with the target gpu.
#   docker build -f docker/rocm.Dockerfile -t onnx-bridge:rocm .
ARG ROCM=7.1.1
FROM rocm/dev-ubuntu-24.04:${ROCM}-complete
RUN apt-get update && apt-get install -y --no-install-recommends migraphx migraphx-dev python3-venv && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN python3 -m venv /opt/onnx-bridge && /opt/onnx-bridge/bin/pip install --no-cache-dir -c /src/constraints.txt /src && rm -rf /src
RUN useradd --create-home --groups video,render user || useradd --create-home --groups video user
USER user
ENV PATH=/opt/onnx-bridge/bin:$PATH PYTHONPATH=/opt/rocm/lib
WORKDIR /models
ENTRYPOINT ["onnx-bridge"]
CMD ["--help"]
