// text_runner FOLDER: a plan for the interpreted device with its kernels as CUDA C++, compiled for the host, and what
// the runtime asks of a driver in a step. FOLDER holds `plan`, the bytes of each input that is read (`in0`, `in1`, ...)
// and `generator`: seed and offset of its masks, u64. Written there: the results (`out0`, ...), the inputs once more,
// and `calls.json`, which is {"kernels": distinct ones, "launches", "products", "runs": [the calls of each run on the
// null driver]}.
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "../host_text.h"

namespace {

using namespace trainc;
using Bytes = std::vector<uint8_t>;

Bytes read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}
void write(const std::filesystem::path& path, const Bytes& bytes) {
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

/// Memory for all that a run of a plan is given.
struct Memory {
  std::vector<std::optional<Bytes>> inputs, outputs;  // none: it is not read, or is no memory of its own
  Bytes temporaries, generator;
  runtime::Call call;

  Memory(const plan::Plan& plan, const std::filesystem::path& folder)
      : inputs(plan.input_count), temporaries(plan.temp_bytes + 1), generator(read(folder / "generator")) {
    for (size_t i = 0; i < inputs.size(); ++i)
      if (const auto path = folder / ("in" + std::to_string(i)); std::filesystem::exists(path)) inputs[i] = read(path);
    for (const plan::Buffer& b : plan.buffers)
      if (b.space == plan::MemorySpace::Input && inputs[b.index] &&
          static_cast<int64_t>(inputs[b.index]->size()) < b.bytes)
        throw std::runtime_error(fmt::format("in{} has {} bytes, not {}", b.index, inputs[b.index]->size(), b.bytes));
    for (int b : plan.outputs) {
      outputs.emplace_back();
      if (b >= 0 && plan.buffers[b].space == plan::MemorySpace::Output)
        outputs.back() = Bytes(plan.buffers[b].bytes, 0xCD);
    }
    for (auto& bytes : inputs) call.inputs.push_back(place(bytes));
    for (auto& bytes : outputs) call.outputs.push_back(place(bytes));
    call.temp = temporaries.data();
    call.generator = {[&] { return generator; },
                      [&](const auto&, const auto& to) { return generator.assign(to.begin(), to.end()), true; }};
  }
  Memory(const Memory&) = delete;

 private:
  static void* place(std::optional<Bytes>& bytes) {
    if (!bytes) return nullptr;
    bytes->reserve(bytes->size() + 1);  // an empty one has an address, too
    return bytes->data();
  }
};

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) throw std::runtime_error("it takes a folder");
  const std::filesystem::path folder = argv[1];
  const Bytes saved = read(folder / "plan");
  const plan::Plan plan = plan::load({reinterpret_cast<const char*>(saved.data()), saved.size()});

  const auto host = std::make_shared<testing::HostDriver>(TRAINC_CXX);
  host->add(plan);
  host->compile();
  Memory memory(plan, folder);
  {
    runtime::cuda::CudaExecutable executable(plan, host);
    executable.run(memory.call);
    executable.finish();
  }
  const auto store = [&](const char* kind, const std::vector<std::optional<Bytes>>& all) {
    for (size_t i = 0; i < all.size(); ++i)
      if (all[i]) write(folder / (kind + std::to_string(i)), *all[i]);
  };
  store("in", memory.inputs);
  store("out", memory.outputs);

  const auto null = std::make_shared<runtime::cuda::NullDriver>("interpret");
  runtime::cuda::CudaExecutable executable(plan, null);
  nlohmann::json runs = nlohmann::json::array();
  for (int run = 0; run < 4; ++run) {
    null->calls.clear();
    executable.run(memory.call);
    runs.push_back(null->calls);
  }
  std::ofstream(folder / "calls.json") << nlohmann::json{{"kernels", host->distinct()},
                                                         {"launches", host->launches},
                                                         {"products", host->products},
                                                         {"runs", std::move(runs)}};
} catch (const std::exception& e) {
  std::fprintf(stderr, "text_runner: %s\n", e.what());
  return 1;
}
