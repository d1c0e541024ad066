# Any x86-64 machine: MIGraphX's target ref, unpacked from Debian's packages.
#   docker build -f docker/ref.Dockerfile -t onnx-bridge .
FROM python:3.12-slim-bookworm
COPY . /src
RUN pip install --no-cache-dir -c /src/constraints.txt /src && rm -rf /src
# Any user may run it (--user), and keep verdicts.
ENV ONNX_BRIDGE_CACHE=/cache
RUN useradd --create-home user && mkdir --mode=1777 /cache
USER user
RUN onnx-bridge runtime install
WORKDIR /models
ENTRYPOINT ["onnx-bridge"]
CMD ["--help"]
