// The passes of MIGraphX's gpu target that need no GPU, as functions on a program of the C library.
//
// A library for the process that has loaded MIGraphX; `pass_library.py` calls it.

#include <exception>
#include <sstream>
#include <stdexcept>
#include <string>

#include <migraphx/dead_code_elimination.hpp>
#include <migraphx/pass_manager.hpp>
#include <migraphx/program.hpp>

#include "groups.hpp"
#include "operators.hpp"
#include "unfuse.hpp"

namespace {

std::string names, operators, message;

} // namespace

extern "C" {

// The names of the groups of passes, in order, one a line.
const char* rehearsal_groups()
{
    names.clear();
    for(const auto& group : rehearsal::groups(true))
        names += group.name + "\n";
    return names.c_str();
}

// Runs the first `count` groups on a program, in place, and makes it one that ref can run; returns an error message, or
// null. The struct behind a migraphx_program_t has the program as its only member.
const char* rehearsal_run(migraphx::program* program, std::size_t count, bool fast_math)
{
    operators.clear();
    try
    {
        for(const auto& group : rehearsal::groups(fast_math))
        {
            if(count-- == 0)
                break;
            migraphx::run_passes(*program, group.passes);
            if(group.name != "simplify_qdq")
                continue;
            std::ostringstream out;
            for(const auto* m : program->get_modules())
                rehearsal::describe(*m, out);
            operators = out.str();
        }
        migraphx::run_passes(*program, {rehearsal::unfuse{}, migraphx::dead_code_elimination{}});
        return nullptr;
    }
    catch(const std::exception& error)
    {
        message = error.what();
        return message.c_str();
    }
}

// A line of JSON for each convolution, matrix product, quantizelinear and dequantizelinear that the program of the last
// run had after simplify_qdq.
const char* rehearsal_operators() { return operators.c_str(); }
}
