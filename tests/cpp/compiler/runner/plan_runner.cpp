// plan_runner PLAN INPUT...: loads a plan from its file, runs it on the bytes of the input files, writes PLAN.out0,
// PLAN.out1, ... Linked with the runtime alone: what a plan needs when it runs.
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <string>

#include "runtime/device.h"

namespace {
std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}
}  // namespace

int main(int argc, char** argv) try {
  using namespace trainc;
  const std::string path = argv[1];
  const std::unique_ptr<runtime::Executable> executable = runtime::device("cpu")->load(plan::load(read(path)));
  const plan::Plan& plan = executable->plan();
  std::vector<std::string> inputs, outputs;
  for (int i = 2; i < argc; ++i) inputs.push_back(read(argv[i]));
  runtime::Call call;
  for (std::string& bytes : inputs) call.inputs.push_back(bytes.data());
  for (int b : plan.outputs) outputs.emplace_back(static_cast<size_t>(plan.buffers.at(b).bytes), '\0');
  for (std::string& bytes : outputs) call.outputs.push_back(bytes.data());
  executable->run(call);
  for (size_t i = 0; i < outputs.size(); ++i)
    std::ofstream(path + ".out" + std::to_string(i), std::ios::binary) << outputs[i];
} catch (const std::exception& e) {
  std::fprintf(stderr, "plan_runner: %s\n", e.what());
  return 1;
}
