// The operators of a program that its quantization is about.
#pragma once

#include <ostream>
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
            << (product and (is_int4(inputs[0]) or is_int4(inputs[1])) ? "true" : "false") << "}\n";
    }
}

} // namespace rehearsal
