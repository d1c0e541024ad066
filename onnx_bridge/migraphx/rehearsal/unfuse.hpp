// What the fusions of the gpu target made, as operators that ref can run.
//
// Ref has no fused_reduce, and it evaluates a pointwise module in several threads that write into one map. What a fused
// operator computes is kept: it is inlined as it is.
#pragma once

#include <string>
#include <vector>

#include <migraphx/instruction.hpp>
#include <migraphx/iterator_for.hpp>
#include <migraphx/make_op.hpp>
#include <migraphx/module.hpp>

namespace rehearsal {

using migraphx::instruction_ref;
using migraphx::module;
using Instructions = std::vector<instruction_ref>;

// What a fused operator computes, inlined. Its pointwise modules are written for single elements: their literals are
// broadcast to the elements of the operator.
Instructions inline_pointwise(module& m, instruction_ref ins, const module& body, const Instructions& inputs)
{
    const auto like = inputs.front();
    const auto broadcasting =
        [&](module& into, instruction_ref at, const auto& op, Instructions operands, const auto& modules) {
            for(auto& operand : operands)
            {
                const auto& from = operand->get_shape();
                if(from.dynamic()) // so are all but the literals
                    continue;
                if(like->get_shape().dynamic())
                    operand = into.insert_instruction(at, migraphx::make_op("multibroadcast"), operand, like);
                else if(const auto& lens = like->get_shape().lens(); from.lens() != lens)
                    operand = into.insert_instruction(
                        at, migraphx::make_op("multibroadcast", {{"out_lens", lens}}), operand);
            }
            return into.insert_instruction(at, op, operands, modules);
        };
    return m.insert_inline(ins, body, inputs, nullptr, broadcasting);
}

Instructions inline_concat(module& m, instruction_ref ins)
{
    const auto bodies = ins->module_inputs();
    auto input        = ins->inputs().begin();
    Instructions parts;
    for(std::size_t i = 0; i + 1 < bodies.size(); i++)
    {
        const auto last = input + bodies[i]->get_parameter_names().size();
        parts.push_back(inline_pointwise(m, ins, *bodies[i], {input, last}).front());
        input = last;
    }
    const auto axis = ins->get_operator().to_value().at("axis").to<std::int64_t>();
    Instructions rest{m.insert_instruction(ins, migraphx::make_op("concat", {{"axis", axis}}), parts)};
    rest.insert(rest.end(), input, ins->inputs().end()); // the concatenation's parameter sorts first
    return inline_pointwise(m, ins, *bodies.back(), rest);
}

Instructions inlined(module& m, instruction_ref ins)
{
    const auto& name = ins->name();
    if(name == "pointwise")
        return inline_pointwise(m, ins, *ins->module_inputs().front(), ins->inputs());
    if(name == "fused_concat")
        return inline_concat(m, ins);
    if(name == "fused_reduce" or name == "split_fused_reduce" or name == "group")
        return m.insert_inline(ins, *ins->module_inputs().front(), ins->inputs());
    return {};
}

struct unfuse
{
    std::string name() const { return "unfuse"; }

    void apply(module& m) const
    {
        for(bool found = true; found;) // a fused_reduce has pointwise modules
        {
            found = false;
            for(auto ins : migraphx::iterator_for(m))
            {
                if(ins->outputs().empty())
                    continue;
                const auto results = inlined(m, ins);
                if(results.empty())
                    continue;
                found = true;
                if(results.size() == 1)
                {
                    m.replace_instruction(ins, results.front());
                    continue;
                }
                for(auto output : Instructions(ins->outputs().begin(), ins->outputs().end()))
                {
                    const auto index = output->get_operator().to_value().at("index").to<std::size_t>();
                    m.replace_instruction(output, results.at(index));
                    m.remove_instruction(output); // or it would be inlined again
                }
            }
        }
    }
};

} // namespace rehearsal
