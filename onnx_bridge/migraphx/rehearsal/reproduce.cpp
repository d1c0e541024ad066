// Shows what a model computes on ref after the first groups of passes of the gpu target (groups.hpp).
//
//   reproduce MODEL.onnx GROUPS NAME=FILE…
//
// GROUPS is their number, 0 for ref alone; each FILE holds the bytes of an input.

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <string>

#include <migraphx/argument.hpp>
#include <migraphx/dead_code_elimination.hpp>
#include <migraphx/onnx.hpp>
#include <migraphx/pass_manager.hpp>
#include <migraphx/program.hpp>
#include <migraphx/register_target.hpp>

#include "groups.hpp"
#include "unfuse.hpp"

int main(int argc, char** argv)
{
    if(argc < 3)
    {
        std::cerr << "usage: reproduce MODEL.onnx GROUPS NAME=FILE...\n";
        return 2;
    }
    std::map<std::string, std::string> files;
    for(int i = 3; i < argc; i++)
    {
        const std::string given = argv[i];
        const auto end          = given.rfind('=');
        files[given.substr(0, end)] = given.substr(end + 1);
    }
    auto program      = migraphx::parse_onnx(argv[1]);
    std::size_t count = std::strtoul(argv[2], nullptr, 10);
    for(const auto& group : rehearsal::groups(true))
    {
        if(count-- == 0)
            break;
        std::cout << "running " << group.name << std::endl;
        migraphx::run_passes(program, group.passes);
    }
    migraphx::run_passes(program, {rehearsal::unfuse{}, migraphx::dead_code_elimination{}});
    program.compile(migraphx::make_target("ref"));
    migraphx::parameter_map parameters;
    for(const auto& [name, shape] : program.get_parameter_shapes())
    {
        migraphx::argument value{shape};
        std::ifstream(files.at(name), std::ios::binary).read(value.data(), shape.bytes());
        parameters[name] = value;
    }
    for(const auto& output : program.eval(parameters))
        std::cout << output << "\n";
    return 0;
}
