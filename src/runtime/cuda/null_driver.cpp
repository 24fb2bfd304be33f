// Memory is the host's, kernels are their names, graphs are lists.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "runtime/cuda/cublaslt.h"
#include "runtime/cuda/driver.h"
#include "support/bytes.h"
#include "support/error.h"

namespace trainc::runtime::cuda {

Function NullDriver::load(const plan::Kernel& kernel) {
  ++held;
  return new std::string(kernel.name);
}
void NullDriver::unload(Function f) {
  --held;
  delete static_cast<std::string*>(f);
}
void* NullDriver::allocate(int64_t bytes) {
  void* p = std::malloc(static_cast<size_t>(bytes > 0 ? bytes : 1));
  if (!p) throw std::bad_alloc();
  ++held;
  return p;
}
void NullDriver::release(void* p) {
  --held;
  std::free(p);
}
uint32_t* NullDriver::allocate_status(int64_t words) {
  auto* p = static_cast<uint32_t*>(allocate(words * 4));
  std::memset(p, 0, static_cast<size_t>(words) * 4);
  return p;
}
void NullDriver::release_status(uint32_t* p) { release(p); }
void NullDriver::load_data(void* device, const void* host, int64_t bytes) {
  calls.push_back(fmt::format("load {} bytes", bytes));
  copy_bytes(device, host, bytes);
}
void NullDriver::read_data(void* host, const void* device, int64_t bytes) {
  calls.push_back(fmt::format("read {} bytes", bytes));
  copy_bytes(host, device, bytes);
}
void NullDriver::synchronize() { calls.push_back("wait"); }
void NullDriver::drain() noexcept { calls.push_back("wait"); }
void NullDriver::order(Stream before, Stream next) {
  calls.push_back(fmt::format("order {} {}", fmt::ptr(before), fmt::ptr(next)));
}
void NullDriver::copy_in(void* device, const void* host, int64_t bytes, Stream) {
  calls.push_back(fmt::format("copy in {} bytes", bytes));
  copy_bytes(device, host, bytes);
}
void NullDriver::copy(void*, const void*, int64_t bytes, Stream) {
  calls.push_back(fmt::format("copy {} bytes", bytes));
}
void NullDriver::launch(const Launch& l, Stream) {
  require(l.function && l.table && l.status && l.threads > 0 && l.blocks > 0, "a launch lacks something");
  if (fail_at == static_cast<int64_t>(launched.size())) throw InternalError("CUDA: out of resources (701)");
  calls.push_back(fmt::format("launch {} {} x {}", *static_cast<std::string*>(l.function), l.blocks, l.threads));
  launched.push_back(l);
  pass();
}
void NullDriver::multiply(const plan::Product& p, const Factors& f, Stream) {
  require(f.lhs && f.rhs && f.result && f.memory && f.bytes > 0 && (f.bias != nullptr) == p.bias &&
              (f.addend != nullptr) == p.addend && (f.sums != nullptr) == (p.sums_of != plan::SumsOf::None),
          "a product lacks something");
  calls.push_back(print(cublaslt_call(p)));
  pass(p);
}
bool NullDriver::has_algorithm(const plan::Product& p, int64_t) const {
  const auto named = [&](const auto& s) { return s.first == p.algorithm; };
  return p.algorithm.empty() || std::ranges::any_of(scripted, named);
}
std::vector<std::string> NullDriver::algorithms(const plan::Product&, int64_t, int most) const {
  std::vector<std::string> names;
  for (const auto& [name, seconds] : scripted)
    if (static_cast<int>(names.size()) < most) names.push_back(name);
  return names;
}
double NullDriver::seconds(const std::function<void(Stream)>& queue) {
  clock_ = 0;
  queue(nullptr);
  return clock_;
}
void NullDriver::pass(const plan::Product& p) {
  for (const auto& [name, seconds] : scripted)
    if (name == p.algorithm) clock_ += seconds;
}
Graph NullDriver::record(const std::vector<GraphNode>& nodes) {
  calls.push_back(fmt::format("record {}", nodes.size()));
  ++held;
  return new std::vector<GraphNode>(nodes);
}
void NullDriver::run(Graph graph, Stream stream) {
  calls.push_back("graph");
  for (const GraphNode& node : *static_cast<std::vector<GraphNode>*>(graph)) {
    if (const auto* l = std::get_if<Launch>(&node)) launch(*l, stream);
    else multiply(*std::get<Multiplication>(node).product, std::get<Multiplication>(node).factors, stream);
  }
}
void NullDriver::release_graph(Graph graph) {
  --held;
  delete static_cast<std::vector<GraphNode>*>(graph);
}

}  // namespace trainc::runtime::cuda
