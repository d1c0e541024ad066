"""Test data of the ONNX standard: for each operator one case that stock MIGraphX gets right must stay right."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases

import onnx_bridge
from onnx_bridge.migraphx.runtime import Runtime

DATA = Path(onnx.__file__).parent / "backend/test/data"

NODE_CASES = [
    "test_abs",
    "test_acos_example",
    "test_acosh_example",
    "test_add",
    "test_and2d",
    "test_argmax_no_keepdims_example",
    "test_argmin_no_keepdims_example",
    "test_asin_example",
    "test_asinh_example",
    "test_atan_example",
    "test_atanh_example",
    "test_averagepool_2d_precomputed_pads",
    "test_basic_conv_with_padding",
    "test_batchnorm_example",
    "test_bitwise_and_i32_2d",
    "test_ceil_example",
    "test_clip_default_inbounds",
    "test_concat_1d_axis_0",
    "test_constant",
    "test_constantofshape_float_ones",
    "test_convtranspose",
    "test_cos_example",
    "test_cosh_example",
    "test_div_example",
    "test_dropout_default",
    "test_elu_example",
    "test_equal",
    "test_erf",
    "test_exp_example",
    "test_expand_dim_changed",
    "test_eyelike_without_dtype",
    "test_flatten_axis0",
    "test_floor_example",
    "test_gather_0",
    "test_gather_elements_0",
    "test_gathernd_example_int32",
    "test_gelu_tanh_1",
    "test_gemm_default_zero_bias",
    "test_globalaveragepool",
    "test_globalmaxpool",
    "test_greater",
    "test_greater_equal",
    "test_gridsample",
    "test_group_normalization_example",
    "test_gru_defaults",
    "test_hardmax_example",
    "test_hardsigmoid_example",
    "test_hardswish",
    "test_identity",
    "test_if",
    "test_instancenorm_example",
    "test_isinf",
    "test_isnan",
    "test_l2normalization_axis_0",
    "test_layer_normalization_4d_axis0",
    "test_leakyrelu_example",
    "test_less",
    "test_less_equal",
    "test_log_example",
    "test_logsoftmax_example_1",
    "test_lppool_1d_default",
    "test_lrn",
    "test_lstm_defaults",
    "test_matmul_2d",
    "test_matmulinteger",
    "test_max_example",
    "test_maxpool_2d_uint8",
    "test_mean_example",
    "test_min_example",
    "test_mul_example",
    "test_mvn",
    "test_neg_example",
    "test_nllloss_NC",
    "test_nonmaxsuppression_single_box",
    "test_not_2d",
    "test_or2d",
    "test_pow_example",
    "test_prelu_example",
    "test_reciprocal_example",
    "test_reduce_l1_keep_dims_example",
    "test_reduce_l2_keep_dims_example",
    "test_reduce_max_keepdims_example",
    "test_reduce_mean_keepdims_example",
    "test_reduce_min_keepdims_example",
    "test_reduce_prod_keepdims_example",
    "test_reduce_sum_keepdims_example",
    "test_reduce_sum_square_keepdims_example",
    "test_relu",
    "test_reshape_reordered_all_dims",
    "test_resize_upsample_scales_nearest",
    "test_round",
    "test_scatter_elements_without_axis",
    "test_scatter_without_axis",
    "test_scatternd",
    "test_sce_none",
    "test_selu_example",
    "test_shape_example",
    "test_shrink_hard",
    "test_sigmoid_example",
    "test_sign",
    "test_simple_rnn_defaults",
    "test_sin_example",
    "test_sinh_example",
    "test_size_example",
    "test_slice_default_axes",
    "test_softmax_example",
    "test_softplus_example",
    "test_softsign_example",
    "test_split_equal_parts_1d_opset13",
    "test_sqrt_example",
    "test_sub_example",
    "test_sum_example",
    "test_tan_example",
    "test_tanh_example",
    "test_thresholdedrelu_example",
    "test_transpose_default",
    "test_triu",
    "test_upsample_nearest",
    "test_where_example",
    "test_xor2d",
]

FOLDERS = sorted(
    path
    for group in ("pytorch-operator", "pytorch-converted")
    for path in (DATA / group).iterdir()
    if path.name
    in [
        "test_operator_conv",
        "test_operator_permute2",
        "test_operator_view",
        "test_Conv2d_depthwise",
        "test_Conv3d",
        "test_Embedding",
        "test_MaxPool2d",
        "test_PixelShuffle",
        "test_Softmax",
    ]
)


@functools.cache
def cases() -> dict[str, onnx.backend.test.case.test_case.TestCase]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases overflow and divide by zero on purpose
        return {case.name: case for case in collect_testcases(None)}


def write(folder: Path, name: str) -> Path:
    """A case as the folder that ONNX's own runner would make of it."""
    case = cases()[name]
    (folder / "test_data_set_0").mkdir()
    onnx.save(case.model, folder / "model.onnx")
    inputs, outputs = case.data_sets[0]
    for kind, arrays, values in (
        ("input", inputs, case.model.graph.input),
        ("output", outputs, case.model.graph.output),
    ):
        for index, (array, value) in enumerate(zip(arrays, values, strict=True)):
            tensor = numpy_helper.from_array(np.asarray(array), value.name)
            (folder / f"test_data_set_0/{kind}_{index}.pb").write_bytes(tensor.SerializeToString())
    return folder


def verify(folder: Path, tmp_path: Path) -> None:
    """Parity with ONNX Runtime on the folder's inputs, and the standard's own expectation of the outputs."""
    bundle = onnx_bridge.convert(folder / "model.onnx", tmp_path / "bundle", target="ref")
    report = onnx_bridge.check(bundle, inputs=folder)
    assert report.passed, report.to_json()
    actual = bundle(report.samples[0])
    for index, info in enumerate(bundle.outputs):
        tensor = onnx.load_tensor(folder / f"test_data_set_0/output_{index}.pb")
        expected = numpy_helper.to_array(tensor)
        assert actual[info.name].shape == expected.shape
        np.testing.assert_allclose(actual[info.name], expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", NODE_CASES)
def test_operator(runtime: Runtime, tmp_path: Path, name: str) -> None:
    (tmp_path / "case").mkdir()
    verify(write(tmp_path / "case", name), tmp_path)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_folder_of_the_onnx_package(runtime: Runtime, tmp_path: Path, folder: Path) -> None:
    verify(folder, tmp_path)
