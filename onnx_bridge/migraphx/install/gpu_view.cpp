// What MIGraphX's gpu target makes of quantization, seen without a GPU.
//
//   gpu_view MODEL.onnx PROGRAM.mxr
//
// Parses a model, lets MIGraphX's own passes run over it that the gpu target runs up to and with simplify_qdq, writes
// the program (which `ref` can compile) and prints, as JSON, one line for each convolution and matrix product that
// comes out, and one for each quantizelinear and dequantizelinear.

#include <iostream>
#include <string>

#include <migraphx/dead_code_elimination.hpp>
#include <migraphx/eliminate_identity.hpp>
#include <migraphx/instruction.hpp>
#include <migraphx/iterator_for.hpp>
#include <migraphx/load_save.hpp>
#include <migraphx/normalize_ops.hpp>
#include <migraphx/onnx.hpp>
#include <migraphx/pass_manager.hpp>
#include <migraphx/program.hpp>
#include <migraphx/simplify_dyn_ops.hpp>
#include <migraphx/simplify_qdq.hpp>
#include <migraphx/split_single_dyn_dim.hpp>

namespace {

using migraphx::instruction_ref;

// Where an operand of a product comes from: behind what simplify_qdq looks through.
instruction_ref source(instruction_ref ins)
{
    while(ins->name() == "broadcast" or ins->name() == "multibroadcast" or ins->name() == "contiguous" or
          ins->name() == "transpose" or ins->name() == "reshape" or ins->name() == "convert" or
          ins->name() == "unsqueeze")
        ins = ins->inputs().front();
    return ins;
}

// Whether a weight is unpacked from 4 bits.
bool is_int4(instruction_ref ins)
{
    ins = source(ins);
    if(ins->name() != "dequantizelinear")
        return false;
    ins = source(ins->inputs().front());
    if(ins->name() == "slice") // what the last block has too much
        ins = source(ins->inputs().front());
    return ins->name() == "unpack_int4";
}

// Whether an operand is a zero point: one number, or one for each channel, spread over a tensor. Asymmetric products have
// further products that only correct for it.
bool is_zero_point(instruction_ref ins)
{
    if(ins->name() != "broadcast" and ins->name() != "multibroadcast")
        return false;
    const auto from = ins->inputs().front()->get_shape();
    return from.elements() == 1 or from.lens().size() <= 1;
}

void print(const migraphx::module& m)
{
    for(auto ins : migraphx::iterator_for(m))
    {
        const auto name    = ins->name();
        const auto& inputs = ins->inputs();
        const bool product = name == "convolution" or name == "convolution_backwards" or name == "dot" or
                             name == "quant_convolution" or name == "quant_dot";
        const bool correction = product and (is_zero_point(inputs[0]) or is_zero_point(inputs[1]));
        if(not product and name != "quantizelinear" and name != "dequantizelinear")
            continue;
        std::cout << R"({"operator": ")" << name << R"(", "dims": [)";
        const auto& lens = ins->get_shape().lens();
        for(std::size_t i = 0; i < lens.size(); i++)
            std::cout << (i == 0 ? "" : ", ") << lens[i];
        std::cout << R"(], "dtypes": [")" << inputs[0]->get_shape().type_string() << R"(", ")"
                  << inputs[1]->get_shape().type_string() << R"("], "correction": )"
                  << (correction and name.rfind("quant_", 0) == 0 ? "true" : "false") << R"(, "int4": )"
                  << (product and (is_int4(inputs[0]) or is_int4(inputs[1])) ? "true" : "false") << "}\n";
    }
}

} // namespace

int main(int argc, char** argv)
{
    if(argc != 3)
    {
        std::cerr << "usage: gpu_view MODEL.onnx PROGRAM.mxr\n";
        return 2;
    }
    try
    {
        auto program = migraphx::parse_onnx(argv[1]);
        migraphx::run_passes(program,
                             {
                                 migraphx::split_single_dyn_dim{},
                                 migraphx::dead_code_elimination{},
                                 migraphx::simplify_dyn_ops{},
                                 migraphx::dead_code_elimination{},
                                 migraphx::normalize_ops{},
                                 migraphx::dead_code_elimination{},
                                 migraphx::eliminate_identity{},
                                 migraphx::dead_code_elimination{},
                                 migraphx::simplify_qdq{},
                                 migraphx::dead_code_elimination{},
                             });
        for(const auto* m : program.get_modules())
            print(*m);
        migraphx::save(program, argv[2]);
    }
    catch(const std::exception& error)
    {
        std::cerr << error.what() << "\n";
        return 1;
    }
    return 0;
}
