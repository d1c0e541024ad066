"""The worker: programs of the real MIGraphX in another process, and every way in which that process can end."""

from __future__ import annotations

import dataclasses
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser

from onnx_bridge.core.errors import (
    MigraphxError,
    OutOfMemory,
    ProgramLost,
    RuntimeFailure,
    WorkerCrashed,
    WorkerTimeout,
)
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.program import DynamicDimension, OnnxOptions, Tensor, type_of
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.migraphx.worker import Worker
from passes.isolation.limits import Limits


def onnx_model(graph: str, opset: int = 17) -> bytes:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {graph}').SerializeToString()


def matmul_model(size: int, count: int = 1) -> bytes:
    """A chain of square products, each ``size³`` multiply-adds."""
    nodes = "".join(f" y{i + 1} = MatMul(y{i}, y{i})" for i in range(count))
    graph = f"g (float[{size},{size}] y0) => (float[{size},{size}] y{count}) {{{nodes} }}"
    return onnx_model(graph)


def slow_model() -> bytes:
    """Convolutions, which take a minute on ``ref``."""
    nodes = "".join(f" y{i + 1} = Conv<pads=[1,1,1,1]>(y{i}, w)" for i in range(8))
    weights = "s = Constant<value_ints=[64,64,3,3]>() w = ConstantOfShape(s)"
    return onnx_model(f"g (float[1,64,64,64] y0) => (float[1,64,64,64] y8) {{ {weights} {nodes} }}")


SLOW_INPUT = {"y0": Tensor.of(np.zeros((1, 64, 64, 64), np.float32))}


def identity_model(dtype: int, shape: list[int]) -> bytes:
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", dtype, shape)],
        [helper.make_tensor_value_info("y", dtype, shape)],
    )
    opsets = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, ir_version=10, opset_imports=opsets).SerializeToString()


class TestPrograms:
    def test_parse_compile_run_save_load(self, worker: Worker, tmp_path: Path) -> None:
        model = onnx_model("g (float[2,3] x) => (float[3,2] y) { r = Relu(x) y = Transpose(r) }")
        program = worker.parse_onnx_buffer(model)
        assert list(program.get_parameter_shapes()) == ["x"]
        assert program.get_parameter_shapes()["x"].lens == (2, 3)
        assert program.get_parameter_shapes()["x"].dtype == np.float32
        assert [shape.lens for shape in program.get_output_shapes()] == [(3, 2)]
        program.compile("ref")
        x = np.arange(-3, 3, dtype=np.float32).reshape(2, 3)
        (y,) = program.run({"x": Tensor.of(x)})
        np.testing.assert_array_equal(y.numpy(), np.maximum(x, 0).T)
        program.save(tmp_path / "p.mxr")
        loaded = worker.load(tmp_path / "p.mxr")
        np.testing.assert_array_equal(loaded.run({"x": Tensor.of(x)})[0].numpy(), y.numpy())

    def test_a_loaded_program_takes_its_size(self, worker: Worker, tmp_path: Path) -> None:
        """MIGraphX reads a file whole before it makes a program of it; the memory is returned."""
        weights = onnx.numpy_helper.from_array(np.ones((4096, 4096), np.float32), "w")
        proto = onnx.load_from_string(onnx_model("g (float[1,4096] x) => (float[1,4096] y) { y = MatMul(x, w) }"))
        proto.graph.initializer.append(weights)
        program = worker.parse_onnx_buffer(proto.SerializeToString())
        program.compile("ref")
        program.save(tmp_path / "large.mxr")
        fresh = Worker(worker.runtime)
        fresh.start()
        programs = [fresh.load(tmp_path / "large.mxr") for _ in range(2)]
        lines = Path(f"/proc/{fresh.pid}/status").read_text().splitlines()
        held = next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
        assert held < 1024 * (64 * len(programs) + 50)
        fresh.close()

    def test_files_are_relative_to_the_caller(
        self, worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        Path("m.onnx").write_bytes(onnx_model("g (float[2] x) => (float[2] y) { y = Neg(x) }"))
        worker.start()
        monkeypatch.chdir("/")
        monkeypatch.chdir(tmp_path)
        program = worker.parse_onnx(Path("m.onnx"))
        program.compile("ref")
        program.save(Path("m.mxr"))
        assert (tmp_path / "m.mxr").exists()

    def test_strided_scalar_and_empty_outputs(self, worker: Worker) -> None:
        model = onnx_model("""g (float[2,3] x) => (float[3,2] t, float s, float[2,0] e, float[4,2,3] b) {
            r = Relu(x)  t = Transpose(r)  s = ReduceSum<keepdims=0>(r)
            zeros = Constant<value_ints=[0,0]>()  ends = Constant<value_ints=[2,0]>()  e = Slice(r, zeros, ends)
            shape = Constant<value_ints=[4,2,3]>()  b = Expand(r, shape) }""")
        program = worker.parse_onnx_buffer(model)
        program.compile("ref")
        x = np.random.default_rng(0).random((2, 3), np.float32)
        t, s, e, b = (each.numpy() for each in program.run({"x": Tensor.of(x)}))
        np.testing.assert_array_equal(t, x.T)
        assert s.shape == (1,)  # MIGraphX has no rank 0
        np.testing.assert_allclose(s[0], x.sum(), rtol=1e-6)
        assert e.shape == (2, 0)
        np.testing.assert_array_equal(b, np.broadcast_to(x, (4, 2, 3)))

    def test_large_outputs_outlive_the_next_run(self, worker: Worker) -> None:
        model = onnx_model("""g (float[300,200] x) => (float[200,300] t, float[300,200] i, float[2,300,200] b) {
            t = Transpose(x)  i = Identity(x)
            shape = Constant<value_ints=[2,300,200]>()  b = Expand(x, shape) }""")
        program = worker.parse_onnx_buffer(model)
        program.compile("ref")
        samples = [np.random.default_rng(seed).random((300, 200), np.float32) for seed in range(3)]
        found = [program.run({"x": Tensor.of(x)}) for x in samples]
        for x, (t, i, b) in zip(samples, found, strict=True):
            np.testing.assert_array_equal(t.numpy(), x.T)
            np.testing.assert_array_equal(i.numpy(), x)
            np.testing.assert_array_equal(b.numpy(), np.broadcast_to(x, (2, 300, 200)))

    def test_scalar_and_empty_inputs(self, worker: Worker) -> None:
        model = onnx_model("""g (float x, float[0,2] e, float[1,2] z) => (float y, float[1,2] f) {
            y = Neg(x)  f = Concat<axis=0>(e, z) }""")
        program = worker.parse_onnx_buffer(model, OnnxOptions(map_input_dims={"e": [0, 2]}))  # or 0 reads as unknown
        program.compile("ref")
        x, e, z = np.float32(2.5).reshape(()), np.zeros((0, 2), np.float32), np.ones((1, 2), np.float32)
        y, f = program.run({"x": Tensor.of(x), "e": Tensor.of(e), "z": Tensor.of(z)})
        assert y.numpy().item() == -2.5
        np.testing.assert_array_equal(f.numpy(), z)

    @pytest.mark.parametrize(
        "dtype",
        [
            *(np.bool_, np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fnuz),
            *(np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.uint64, np.int64),
        ],
    )
    def test_every_dtype_round_trips(self, worker: Worker, dtype: type) -> None:
        values = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
        onnx_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        program = worker.parse_onnx_buffer(identity_model(onnx_type, [2, 3]))
        assert program.get_parameter_shapes()["x"].dtype == np.dtype(dtype)
        program.compile("ref")
        (y,) = program.run({"x": Tensor.of(values)})
        assert y.numpy().dtype == np.dtype(dtype)
        np.testing.assert_array_equal(y.numpy().view(np.uint8), values.view(np.uint8))

    def test_packed_int4_constants(self, worker: Worker) -> None:
        weight = helper.make_tensor("w", TensorProto.INT4, [4], np.array([-8, -1, 0, 7]).astype(ml_dtypes.int4))
        graph = helper.make_graph(
            [helper.make_node("DequantizeLinear", ["w", "s"], ["f"]), helper.make_node("Add", ["f", "x"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
            [weight, helper.make_tensor("s", TensorProto.FLOAT, [], [0.5])],
        )
        model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
        program = worker.parse_onnx_buffer(model.SerializeToString())
        program.compile("ref")
        (y,) = program.run({"x": Tensor.of(np.zeros(4, np.float32))})
        np.testing.assert_array_equal(y.numpy(), [-4, -0.5, 0, 3.5])

    def test_non_contiguous_input(self, worker: Worker) -> None:
        program = worker.parse_onnx_buffer(onnx_model("g (float[3,2] x) => (float[3,2] y) { y = Neg(x) }"))
        program.compile("ref")
        x = np.arange(6, dtype=np.float32).reshape(2, 3).T
        np.testing.assert_array_equal(program.run({"x": Tensor.of(x)})[0].numpy(), -x)

    def test_dtypes_that_migraphx_lacks(self) -> None:
        assert type_of(np.dtype(np.complex64)) is None
        with pytest.raises(TypeError, match="complex64"):
            Tensor.of(np.zeros(1, np.complex64))

    def test_many_programs_at_a_time(self, worker: Worker) -> None:
        model = matmul_model(8)
        first = worker.parse_onnx_buffer(model)
        numbers = {worker.parse_onnx_buffer(model)._number for _ in range(50)}
        assert len(numbers) == 50
        assert list(first.get_parameter_shapes()) == ["y0"]
        assert not worker._dropped or worker.parse_onnx_buffer(model)


class TestOptions:
    DYNAMIC = "g (float[batch,3] x) => (float[batch,3] y) { y = Relu(x) }"

    @pytest.mark.parametrize(
        ("options", "lens"),
        [
            (OnnxOptions(), (1, 3)),
            (OnnxOptions(default_dim_value=5), (5, 3)),
            (OnnxOptions(map_input_dims={"x": [7, 3]}), (7, 3)),
        ],
    )
    def test_static_shapes(self, worker: Worker, options: OnnxOptions, lens: tuple[int, ...]) -> None:
        program = worker.parse_onnx_buffer(onnx_model(self.DYNAMIC), options)
        assert program.get_parameter_shapes()["x"].lens == lens

    @pytest.mark.parametrize(
        "options",
        [
            OnnxOptions(default_dyn_dim_value=DynamicDimension(1, 4, (2, 4))),
            OnnxOptions(map_dyn_input_dims={"x": [DynamicDimension(1, 4), DynamicDimension(3, 3)]}),
        ],
    )
    def test_dynamic_shapes(self, worker: Worker, options: OnnxOptions) -> None:
        program = worker.parse_onnx_buffer(onnx_model(self.DYNAMIC), options)
        shape = program.get_parameter_shapes()["x"]
        assert shape.dynamic
        assert [(each.min, each.max) for each in shape.dyn_dims] == [(1, 4), (3, 3)]
        program.compile("ref")
        x = np.full((3, 3), -1, np.float32)
        np.testing.assert_array_equal(program.run({"x": Tensor.of(x)})[0].numpy(), np.zeros((3, 3)))

    def test_loop_limits(self, worker: Worker) -> None:
        loop = """g (float[1] x) => (float[1] y, float[n,1] all) {
            many = Constant<value_int=1000000>()  yes = Constant<value = bool {1}>()
            y, all = Loop(many, yes, x) <body = b (int64 i, bool c, float[1] v) => (bool d, float[1] w, float[1] o) {
                d = Identity(c)  w = Add(v, v)  o = Identity(v) }> }"""
        limited = worker.parse_onnx_buffer(onnx_model(loop), OnnxOptions(max_loop_iterations=4, limit_max_iterations=4))
        assert limited.get_output_shapes()[1].lens[0] == 4

    def test_external_data_path(self, worker: Worker, tmp_path: Path) -> None:
        weight = np.arange(64, dtype=np.float32)
        (tmp_path / "w.bin").write_bytes(weight.tobytes())
        tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[64], data_location=TensorProto.EXTERNAL)
        for key, value in (("location", "w.bin"), ("offset", "0"), ("length", "256")):
            tensor.external_data.add(key=key, value=value)
        info = helper.make_tensor_value_info
        graph = helper.make_graph(
            [helper.make_node("Add", ["x", "w"], ["y"])],
            "g",
            [info("x", TensorProto.FLOAT, [64])],
            [info("y", TensorProto.FLOAT, [64])],
            [tensor],
        )
        model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
        program = worker.parse_onnx_buffer(model.SerializeToString(), OnnxOptions(external_data_path=tmp_path))
        program.compile("ref")
        (y,) = program.run({"x": Tensor.of(np.zeros(64, np.float32))})
        np.testing.assert_array_equal(y.numpy(), weight)


class TestQuantize:
    @pytest.mark.parametrize("precision", ["fp16", "bf16"])
    def test_half_precisions(self, worker: Worker, precision: str) -> None:
        program = worker.parse_onnx_buffer(matmul_model(16))
        program.quantize(precision)
        program.compile("ref")
        x = np.random.default_rng(0).standard_normal((16, 16), np.float32)
        (y,) = program.run({"y0": Tensor.of(x)})
        error = np.abs(y.numpy() - x @ x).max()
        assert 0 < error < 0.2  # rounded, and no more than that

    @pytest.mark.parametrize("precision", ["int8", "fp8"])
    def test_calibrated_precisions(self, worker: Worker, precision: str) -> None:
        weight = np.random.default_rng(1).standard_normal((16, 16)).astype(np.float32)
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [16, 16])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [16, 16])],
            [onnx.numpy_helper.from_array(weight, "w")],
        )
        model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
        x = np.random.default_rng(0).standard_normal((16, 16), np.float32)
        program = worker.parse_onnx_buffer(model.SerializeToString())
        program.quantize(precision, "ref", [{"x": Tensor.of(x)}, {"x": Tensor.of(x / 2)}])
        program.compile("ref")
        (y,) = program.run({"x": Tensor.of(x)})
        error = np.abs(y.numpy() - x @ weight).max()
        assert 1e-4 < error < 2.0


class TestRejections:
    """MIGraphX rejects a request with its own message, and the process is still usable."""

    def test_messages_are_those_of_migraphx(self, worker: Worker) -> None:
        worker.start()
        pid = worker.pid
        with pytest.raises(MigraphxError, match="^Failed reading onnx file") as caught:
            worker.parse_onnx_buffer(b"garbage")
        assert "onnx_parser.cpp" in caught.value.output  # unabridged
        with pytest.raises(MigraphxError, match="Unknown operator: Mish"):
            worker.parse_onnx_buffer(onnx_model("g (float[2] x) => (float[2] y) { y = Mish(x) }", opset=18))
        assert worker.pid == pid

    def test_wrong_parameters(self, worker: Worker) -> None:
        program = worker.parse_onnx_buffer(onnx_model("g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }"))
        program.compile("ref")
        with pytest.raises(MigraphxError, match="Parameter not found: x"):
            program.run({})
        with pytest.raises(MigraphxError, match="Incorrect shape"):
            program.run({"x": Tensor.of(np.zeros((3, 2), np.float32))})
        with pytest.raises(MigraphxError, match="Incorrect shape"):
            program.run({"x": Tensor.of(np.zeros((2, 3), np.float64))})

    def test_files(self, worker: Worker, tmp_path: Path) -> None:
        with pytest.raises(MigraphxError, match="Failure opening file"):
            worker.load(tmp_path / "absent.mxr")
        (tmp_path / "bad.mxr").write_bytes(b"not a program")
        with pytest.raises(RuntimeFailure):
            worker.load(tmp_path / "bad.mxr")
        program = worker.parse_onnx_buffer(matmul_model(4))
        with pytest.raises(MigraphxError, match="Failure opening file"):
            program.save(tmp_path / "no" / "such" / "folder.mxr")

    def test_targets(self, worker: Worker) -> None:
        assert worker.has_target("ref")
        assert not worker.has_target("nonsense")
        with pytest.raises(MigraphxError):
            worker.parse_onnx_buffer(matmul_model(4)).compile("nonsense")


class TestFailures:
    """A process that ends becomes a typed error, and the next request gets a fresh process."""

    def test_killed_in_the_middle_of_a_request(self, worker: Worker) -> None:
        program = worker.parse_onnx_buffer(slow_model())
        program.compile("ref")
        assert worker.pid is not None
        killer = threading.Timer(0.3, os.kill, (worker.pid, signal.SIGKILL))
        killer.start()
        with pytest.raises(WorkerCrashed, match=r"killed by SIGKILL during run") as caught:
            program.run(SLOW_INPUT)
        assert caught.value.signal is signal.SIGKILL
        assert caught.value.exit_code == 3
        with pytest.raises(ProgramLost):
            program.run({})
        assert list(worker.parse_onnx_buffer(matmul_model(4)).get_parameter_shapes()) == ["y0"]

    def test_migraphx_aborts(self, worker: Worker) -> None:
        """ScatterND with a negative index ends the process in an assertion or with a corrupted heap."""
        model = onnx_model("""g (float[4] x, float[1] u) => (float[4] y) {
            i = Constant<value = int64[1,1] {-1000000000}>()  y = ScatterND(x, i, u) }""")
        program = worker.parse_onnx_buffer(model)
        program.compile("ref")
        with pytest.raises(WorkerCrashed) as caught:
            program.run({"x": Tensor.of(np.zeros(4, np.float32)), "u": Tensor.of(np.ones(1, np.float32))})
        assert caught.value.signal in (signal.SIGABRT, signal.SIGSEGV)
        assert worker.version

    def test_died_between_requests(self, worker: Worker) -> None:
        """The next request gets a fresh process; programs of the old one are lost."""
        program = worker.parse_onnx_buffer(matmul_model(4))
        process = worker._child.process
        assert process is not None
        os.kill(process.pid, signal.SIGSEGV)
        process._popen.wait()
        with pytest.raises(ProgramLost):
            program.compile("ref")
        assert list(worker.parse_onnx_buffer(matmul_model(4)).get_parameter_shapes()) == ["y0"]

    def test_timeout(self, worker: Worker) -> None:
        program = worker.parse_onnx_buffer(slow_model())
        program.compile("ref")
        pid = worker.pid
        with worker.limited(Limits(timeout=0.3)), pytest.raises(WorkerTimeout, match="time limit of 0.3 s"):
            program.run(SLOW_INPUT)
        assert pid is not None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    def test_out_of_memory(self, worker: Worker) -> None:
        model = onnx_model("""g (float[1,1] x) => (float[30000,30000] y) {
            shape = Constant<value_ints=[30000,30000]>()  wide = Expand(x, shape)  y = Relu(wide) }""")
        with worker.limited(Limits(memory=1 << 30)):
            program = worker.parse_onnx_buffer(model)
            program.compile("ref")
            with pytest.raises(OutOfMemory, match="more memory than its limit of 1 GiB"):
                program.run({"x": Tensor.of(np.ones((1, 1), np.float32))})
        assert list(worker.parse_onnx_buffer(matmul_model(4)).get_parameter_shapes()) == ["y0"]

    def test_interrupted(self, worker: Worker) -> None:
        program = worker.parse_onnx_buffer(slow_model())
        program.compile("ref")
        pid = worker.pid
        threading.Timer(0.3, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            program.run(SLOW_INPUT)
        assert pid is not None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    def test_a_library_that_does_not_load(self, runtime: Runtime, tmp_path: Path) -> None:
        path = tmp_path / "libmigraphx_c.so.3"
        path.write_bytes(b"no library")
        broken = dataclasses.replace(runtime, kind="system", path=path)
        with pytest.raises(RuntimeFailure, match="cannot be loaded.*invalid ELF header|file too short"):
            Worker(broken).start()

    def test_much_output_does_not_block(self, runtime: Runtime) -> None:
        """With a trace on, a compile prints more than a pipe would hold."""
        traced = Worker(runtime, {"MIGRAPHX_TRACE_COMPILE": "1"})
        program = traced.parse_onnx_buffer(matmul_model(4, 300))
        program.compile("ref")
        process = traced._child.process
        assert process is not None
        assert os.fstat(process._output).st_size > 1 << 16
        traced.close()


class TestParents:
    """The worker ends with its parent, however the parent ends."""

    SCRIPT = textwrap.dedent("""
        import os, sys, threading
        from onnx_bridge.migraphx import kinds, runtime
        from onnx_bridge.migraphx.worker import Worker
        from tests.migraphx import test_worker
        worker = Worker(runtime.find(os.environ.get(kinds.VARIABLE) or "private"))
        program = worker.parse_onnx_buffer(test_worker.slow_model())
        program.compile("ref")
        {before}
        print(worker.pid, flush=True)
        {after}
    """)
    BUSY = "program.run(test_worker.SLOW_INPUT)"

    def run(self, before: str, after: str) -> tuple[subprocess.Popen[str], int]:
        code = self.SCRIPT.format(before=before, after=after)
        parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert parent.stdout is not None
        return parent, int(parent.stdout.readline())

    @staticmethod
    def gone(pid: int) -> bool:
        for _ in range(100):
            try:
                state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
            except (FileNotFoundError, ProcessLookupError):
                return True
            if state == "Z":  # dead; whoever inherited it has not yet reaped it
                return True
            time.sleep(0.05)
        return False

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
    def test_killed_while_the_worker_computes(self, runtime: Runtime, number: signal.Signals) -> None:
        parent, pid = self.run("", self.BUSY)
        time.sleep(0.2)
        parent.send_signal(number)
        parent.wait()
        assert self.gone(pid)

    def test_killed_while_the_worker_is_idle(self, runtime: Runtime) -> None:
        parent, pid = self.run("", "import time; time.sleep(60)")
        parent.kill()
        parent.wait()
        assert self.gone(pid)

    def test_killed_while_a_fork_of_it_lives_on(self, runtime: Runtime) -> None:
        fork = "\nchild = os.fork()\nif not child:\n    import time; os.close(1); time.sleep(20); os._exit(0)\n"
        parent, pid = self.run(fork, "import time; time.sleep(60)")
        parent.kill()
        parent.wait()
        assert self.gone(pid)

    @pytest.mark.parametrize("end", ["pass", "sys.exit(3)", "raise ValueError", "os._exit(0)"])
    def test_parent_exits(self, runtime: Runtime, end: str) -> None:
        parent, pid = self.run("", end)
        parent.wait()
        assert self.gone(pid)

    def test_interpreter_lock_is_held(self, tmp_path: Path) -> None:
        """The official module holds the interpreter's lock while it compiles: no thread of ours would run."""
        code = textwrap.dedent("""
            import ctypes, os, sys
            from passes.isolation.child import end_with_parent
            end_with_parent(int(sys.argv[1]), os.getppid())
            print("ready", flush=True)
            ctypes.PyDLL(None).sleep(60)
        """)
        lifeline, end = os.pipe()
        command = [sys.executable, "-c", code, str(lifeline)]
        child = subprocess.Popen(command, pass_fds=(lifeline,), stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        os.close(end)
        assert child.wait(10) == -signal.SIGIO


class TestSharing:
    def test_one_worker_for_a_runtime_and_an_environment(self, runtime: Runtime) -> None:
        plain, again = workers.shared(runtime), workers.shared(runtime)
        other = workers.shared(runtime, {"MIGRAPHX_TRACE_EVAL": "0"})
        assert plain is again
        assert other is not plain
        assert plain.start()
        assert other.start()
        assert plain.pid != other.pid
        other.close()

    def test_threads_share_a_worker(self, worker: Worker) -> None:
        program = worker.parse_onnx_buffer(onnx_model("g (float[1] x) => (float[1] y) { y = Add(x, x) }"))
        program.compile("ref")
        results: dict[int, float] = {}

        def run(value: int) -> None:
            for _ in range(20):
                (y,) = program.run({"x": Tensor.of(np.array([value], np.float32))})
                results[value] = y.numpy().item()

        threads = [threading.Thread(target=run, args=(value,)) for value in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == {value: 2.0 * value for value in range(8)}

    def test_program_is_lost_while_a_thread_waits(self, worker: Worker) -> None:
        """Its number may mean another program in a process that another thread has started meanwhile."""
        model = onnx_model("g (float[1] x) => (float[1] y) { y = Add(x, x) }")
        program = worker.parse_onnx_buffer(model)
        program.compile("ref")
        caught: list[type[BaseException]] = []

        def run() -> None:
            try:
                program.run({"x": Tensor.of(np.ones(1, np.float32))})
            except BaseException as error:
                caught.append(type(error))

        thread = threading.Thread(target=run)
        with worker._child.lock:
            thread.start()
            time.sleep(0.1)
            worker.close()
            other = worker.parse_onnx_buffer(model)
            other.compile("ref")
        thread.join()
        assert caught == [ProgramLost]

    def test_limits_are_per_thread(self, worker: Worker) -> None:
        entered, leave = threading.Event(), threading.Event()

        def hold() -> None:
            with worker.limited(Limits(timeout=7)):
                entered.set()
                leave.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        entered.wait()
        with worker.limited(Limits(timeout=9)):
            leave.set()
            thread.join()
            assert worker.limits.timeout == 9
        assert worker.limits.timeout is None

    def test_fork_starts_its_own_worker(self, runtime: Runtime) -> None:
        shared = workers.shared(runtime)
        shared.start()
        child = os.fork()
        if child == 0:
            try:
                own = workers.shared(runtime)
                fine = own is not shared and bool(own.start()) and own.pid != shared.pid
                own.close()
                os._exit(0 if fine else 1)
            except BaseException:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert list(shared.parse_onnx_buffer(matmul_model(4)).get_parameter_shapes()) == ["y0"]


def test_temporary_files_end_with_the_worker(runtime: Runtime) -> None:
    """MIGraphX 2.16 leaves programs whose passes failed in the folder for temporary files."""
    worker = Worker(runtime)
    worker.start()
    variables = Path(f"/proc/{worker.pid}/environ").read_bytes().split(b"\0")
    (folder,) = (Path(os.fsdecode(each[7:])) for each in variables if each.startswith(b"TMPDIR="))
    (folder / "left").touch()
    worker.close()
    assert folder.is_dir()  # the next process has the same one
    del worker
    gc.collect()
    assert not folder.exists()


def test_no_descriptors_leak(runtime: Runtime) -> None:
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    Worker(runtime).close()
    before = count()
    for _ in range(3):
        worker = Worker(runtime)
        program = worker.parse_onnx_buffer(matmul_model(4))
        program.compile("ref")
        program.run({"y0": Tensor.of(np.zeros((4, 4), np.float32))})
        worker.close()
    assert count() <= before + 1
