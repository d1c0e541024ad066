# A machine with an AMD GPU: ROCm's own MIGraphX, with the target gpu.
#   docker build -f docker/rocm.Dockerfile -t onnx-bridge:rocm .
# Another ROCm: --build-arg IMAGE=rocm/dev-ubuntu-24.04:<release>-complete, an image whose apt finds the package migraphx.
ARG IMAGE=rocm/dev-ubuntu-24.04:7.1.1-complete
FROM ${IMAGE}
RUN apt-get update && apt-get install -y --no-install-recommends migraphx migraphx-dev python3-venv && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN python3 -m venv /opt/onnx-bridge && /opt/onnx-bridge/bin/pip install --no-cache-dir -c /src/constraints.txt /src && rm -rf /src
# Any user may run it (--user), and keep verdicts.
ENV ONNX_BRIDGE_CACHE=/cache PATH=/opt/onnx-bridge/bin:$PATH PYTHONPATH=/opt/rocm/lib
RUN useradd --create-home onnx-bridge && mkdir --mode=1777 /cache
USER onnx-bridge
WORKDIR /models
ENTRYPOINT ["onnx-bridge"]
CMD ["--help"]
