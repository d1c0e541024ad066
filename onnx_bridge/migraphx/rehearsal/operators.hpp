// The operators of a program that its quantization is about.
#pragma once

#include <iomanip>
#include <ostream>
#include <set>
#include <string>

#include <migraphx/instruction.hpp>
#include <migraphx/iterator_for.hpp>
#include <migraphx/module.hpp>

namespace rehearsal {

// Where an operand of a product comes from: behind what simplify_qdq looks through.
migraphx::instruction_ref source(migraphx::instruction_ref ins)
{
    while(ins->name() == "broadcast" or ins->name() == "multibroadcast" or ins->name() == "contiguous" or
          ins->name() == "transpose" or ins->name() == "reshape" or ins->name() == "convert" or
          ins->name() == "unsqueeze")
        ins = ins->inputs().front();
    return ins;
}

// Whether a weight is unpacked from 4 bits.
bool is_int4(migraphx::instruction_ref ins)
{
    ins = source(ins);
    if(ins->name() != "dequantizelinear")
        return false;
    ins = source(ins->inputs().front());
    if(ins->name() == "slice") // what the last block has too much
        ins = source(ins->inputs().front());
    return ins->name() == "unpack_int4";
}

// Whether an operand is a zero point: one number, or one for each channel, spread over a tensor. Asymmetric products
// have further products that only correct for it.
bool is_zero_point(migraphx::instruction_ref ins)
{
    if(ins->name() != "broadcast" and ins->name() != "multibroadcast")
        return false;
    const auto from = ins->inputs().front()->get_shape();
    return from.elements() == 1 or from.lens().size() <= 1;
}

// The ONNX nodes that an instruction comes from, where MIGraphX keeps them (from 2.16 on).
template <class Instruction>
auto nodes_of(const Instruction& ins, int) -> decltype(ins.get_debug_symbols())
{
    return ins.get_debug_symbols();
}

template <class Instruction>
std::set<std::string> nodes_of(const Instruction&, long)
{
    return {};
}

void describe(const migraphx::module& m, std::ostream& out)
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
        out << R"({"operator": ")" << name << R"(", "dims": [)";
        const auto& lens = ins->get_shape().lens();
        for(std::size_t i = 0; i < lens.size(); i++)
            out << (i == 0 ? "" : ", ") << lens[i];
        out << R"(], "dtypes": [")" << inputs[0]->get_shape().type_string() << R"(", ")"
            << inputs[1]->get_shape().type_string() << R"("], "correction": )"
            << (correction and name.rfind("quant_", 0) == 0 ? "true" : "false") << R"(, "int4": )"
            << (product and (is_int4(inputs[0]) or is_int4(inputs[1])) ? "true" : "false") << R"(, "nodes": [)";
        const char* separator = "";
        for(const auto& node : nodes_of(*ins, 0))
        {
            out << separator << std::quoted(node);
            separator = ", ";
        }
        out << "]}\n";
    }
}

} // namespace rehearsal
