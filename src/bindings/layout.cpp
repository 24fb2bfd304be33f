// What lies where in a plan's memory, and when: for reports.
#include "bindings/bindings.h"
#include "plan/live.h"

namespace trainc::bindings {
namespace {

using nlohmann::json;
using plan::MemorySpace;

const char* arena_of(const plan::Buffer& b) {
  switch (b.space) {
    case MemorySpace::Saved: return b.index < 0 ? "saved, no slot" : "saved";
    case MemorySpace::Temp: return "temporary";
    case MemorySpace::Input:
    case MemorySpace::Output:
    case MemorySpace::Constant:
    case MemorySpace::Extern:
    case MemorySpace::Draw: return nullptr;
  }
  return nullptr;
}

std::string type_of(const plan::Buffer& b) {
  std::string text = std::string(name_of(b.dtype)) + "[";
  for (size_t i = 0; i < b.shape.size(); ++i) text += (i ? "," : "") + std::to_string(b.shape[i]);
  return text + (b.bits ? "] bits" : "]");
}

}  // namespace

std::string layout_text(const plan::Plan& p) {
  const std::vector<plan::LiveRange> wanted = plan::memory_ranges(p);
  std::vector<int> writer(p.buffers.size(), -1), reader(p.buffers.size(), -1);
  for (size_t i = p.steps.size(); i-- > 0;) {
    for (const int b : p.steps[i].writes) writer[b] = static_cast<int>(i);
    for (const int b : p.steps[i].reads) reader[b] = static_cast<int>(i);
  }
  json buffers = json::array();
  for (size_t i = 0; i < p.buffers.size(); ++i) {
    const plan::Buffer& b = p.buffers[i];
    const char* arena = arena_of(b);
    if (!arena || wanted[i].first < 0 || b.bytes == 0) continue;
    const int maker = writer[i] >= 0 ? writer[i] : reader[i];  // a slot that the forward wrote: who reads it first
    json one = {
        {"name", b.name},          {"arena", arena},           {"offset", b.offset},     {"bytes", b.bytes},
        {"type", type_of(b)},      {"first", wanted[i].first}, {"last", wanted[i].last}, {"written", writer[i] >= 0},
        {"origins", json::array()}};
    if (maker >= 0) one["origins"] = p.steps[maker].origins;
    if (b.over >= 0) one["over"] = p.buffers[b.over].name;
    buffers.push_back(std::move(one));
  }
  return json{
      {"steps", p.steps.size()}, {"temporary", p.temp_bytes}, {"saved", p.saved_bytes}, {"buffers", std::move(buffers)}}
      .dump();
}

}  // namespace trainc::bindings
