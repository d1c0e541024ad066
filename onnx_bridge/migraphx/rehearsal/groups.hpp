// The passes of MIGraphX's gpu target that need no GPU.
//
// They are listed in the order and with the arguments of src/targets/gpu/target.cpp, for an MI300 (gfx942) with MLIR,
// hipBLASLt and MIOpen, as far as libmigraphx has them: up to where the target would choose kernels. They are named
// in groups, so that a difference can be attributed to one. What is in libmigraphx_gpu (prefuse_ops, fuse_mlir,
// lowering and what follows) is left out.

#pragma once

#include <set>
#include <string>
#include <vector>

#include <migraphx/dead_code_elimination.hpp>
#include <migraphx/eliminate_data_type.hpp>
#include <migraphx/eliminate_identity.hpp>
#include <migraphx/eliminate_pad.hpp>
#include <migraphx/fp8_ocp_to_fnuz.hpp>
#include <migraphx/fuse_attention.hpp>
#include <migraphx/fuse_concat.hpp>
#include <migraphx/fuse_pointwise_reduce.hpp>
#include <migraphx/inline_module.hpp>
#include <migraphx/insert_pad.hpp>
#include <migraphx/layout_convolution.hpp>
#include <migraphx/normalize_ops.hpp>
#include <migraphx/optimize_module.hpp>
#include <migraphx/pass.hpp>
#include <migraphx/propagate_precision.hpp>
#include <migraphx/rewrite_gelu.hpp>
#include <migraphx/rewrite_low_precision.hpp>
#include <migraphx/rewrite_pooling.hpp>
#include <migraphx/rewrite_reduce.hpp>
#include <migraphx/rewrite_rnn.hpp>
#include <migraphx/rewrite_topk.hpp>
#include <migraphx/shape.hpp>
#include <migraphx/simplify_dyn_ops.hpp>
#include <migraphx/simplify_qdq.hpp>
#include <migraphx/simplify_reshapes.hpp>
#include <migraphx/split_single_dyn_dim.hpp>
#include <migraphx/version.h>
#if __has_include(<migraphx/fuse_horizontal.hpp>)
#include <migraphx/fuse_horizontal.hpp>
#define HAS_FUSE_HORIZONTAL
#endif
#if __has_include(<migraphx/rewrite_resize.hpp>)
#include <migraphx/rewrite_resize.hpp>
#define HAS_REWRITE_RESIZE
#endif

namespace rehearsal {

using migraphx::shape;
using Types = std::set<shape::type_t>;

struct Group
{
    std::string name;
    std::vector<migraphx::pass> passes; // dead code is eliminated after each group
};

#if MIGRAPHX_VERSION_MINOR < 16
const std::set<std::string> device_functions{"logsoftmax",
                                             "nonzero",
                                             "prefix_scan_sum",
                                             "scatter_none",
                                             "topk",
                                             "rnn_var_sl_shift_output",
                                             "multinomial",
                                             "argmax",
                                             "argmin"};
#else
const std::set<std::string> device_functions{
    "nonzero", "prefix_scan_sum", "rnn_var_sl_shift_output", "multinomial", "argmax", "argmin"};
#endif
const std::set<std::string> products{"convolution", "quant_convolution", "dot", "quant_dot"};

Types all_but(const Types& supported)
{
    Types result(shape::types().begin(), shape::types().end());
    for(auto type : supported)
        result.erase(type);
    return result;
}

migraphx::pass to_float(const Types& types, const std::set<std::string>& operators = {"all"})
{
    return migraphx::eliminate_data_type{types, shape::float_type, operators};
}

const Types fnuz{shape::fp8e4m3fnuz_type, shape::fp8e5m2fnuz_type};
const Types ocp{shape::fp8e4m3fn_type, shape::fp8e5m2_type};

std::vector<migraphx::pass> eliminate_data_types([[maybe_unused]] bool fast_math)
{
    const auto uint8 = to_float({shape::uint8_type}, {"quant_convolution", "quant_dot", "pooling"});
    Types supported{shape::float_type,
                    shape::half_type,
                    shape::bf16_type,
                    shape::bool_type,
                    shape::int8_type,
                    shape::uint8_type,
                    shape::int32_type,
                    shape::tuple_type};
#if MIGRAPHX_VERSION_MINOR < 16
    supported.insert(fnuz.begin(), fnuz.end());
    supported.insert(ocp.begin(), ocp.end());
    return {uint8, to_float(all_but(supported))};
#else
    auto operators = products;
    operators.insert("pooling");
    std::vector<migraphx::pass> result;
    if(fast_math)
        result = {to_float({shape::double_type}),
                  migraphx::eliminate_data_type{{shape::int64_type}, shape::int32_type},
                  migraphx::eliminate_data_type{{shape::uint64_type}, shape::uint32_type}};
    const Types no_products{shape::bool_type,
                            shape::uint16_type,
                            shape::int16_type,
                            shape::int64_type,
                            shape::uint64_type,
                            shape::double_type};
    for(const auto& each : {uint8,
                            to_float(all_but(supported), device_functions),
                            to_float(fnuz, {"pooling"}),
                            to_float(ocp, operators),
                            to_float(no_products, products)})
        result.push_back(each);
    return result;
#endif
}

std::vector<Group> groups(bool fast_math)
{
    using namespace migraphx;
    simplify_qdq qdq;
    simplify_reshapes first, second;
    second.enable_op_shape_transform_op = true;
    fuse_attention attention;
#if MIGRAPHX_VERSION_MINOR >= 15
    first.enable_gather_rewrite = true;
    attention.attn_enabled      = true;
#endif
    std::vector<Group> result{
        {"simplify_dyn_ops", {split_single_dyn_dim{}, dead_code_elimination{}, simplify_dyn_ops{}}},
        {"normalize_ops", {normalize_ops{}, dead_code_elimination{}, eliminate_identity{}}},
        {"fp8_ocp_to_fnuz", {fp8_ocp_to_fnuz{}}},
        {"simplify_qdq", {qdq}},
        {"rewrite_rnn", {rewrite_rnn{}}},
        {"eliminate_data_type", eliminate_data_types(fast_math)},
#ifdef HAS_REWRITE_RESIZE
        {"rewrite_resize", {rewrite_resize{true}}},
#endif
        {"simplify_reshapes", {first, eliminate_identity{}}},
        {"eliminate_pad", {eliminate_pad{}}},
        {"insert_pad", {insert_pad{{"convolution"}}}},
        {"inline_module", {inline_module{}}},
        {"rewrite_pooling", {rewrite_pooling{}}},
        {"rewrite_gelu", {rewrite_gelu{fast_math}}},
        {"optimize_module", {optimize_module{}}},
        {"layout_convolution", {layout_convolution{}}},
#ifdef HAS_FUSE_HORIZONTAL
        {"fuse_horizontal", {fuse_horizontal{}}},
#endif
    };
#if MIGRAPHX_VERSION_MINOR < 16
    auto in_fnuz = device_functions, in_ocp = device_functions;
    in_fnuz.insert("pooling");
    in_ocp.insert("pooling");
    in_ocp.insert(products.begin(), products.end());
    result.push_back({"eliminate_data_type (fp8)", {to_float(fnuz, in_fnuz), to_float(ocp, in_ocp)}});
#endif
    const std::vector<Group> rest{
        {"rewrite_reduce", {rewrite_reduce{}}},
        {"rewrite_topk", {rewrite_topk{}}},
        {"rewrite_low_precision", {rewrite_low_precision{}}},
        {"propagate_precision", {propagate_precision{}}},
        {"simplify_reshapes (op_shape_transform)", {second}},
        {"fuse_attention", {attention}},
        {"optimize_module (again)", {optimize_module{}}},
        {"fuse_pointwise_reduce", {fuse_pointwise_reduce{}}},
        {"fuse_concat", {fuse_concat{}}},
    };
    result.insert(result.end(), rest.begin(), rest.end());
    for(auto& group : result)
        group.passes.push_back(dead_code_elimination{});
    return result;
}

} // namespace rehearsal
