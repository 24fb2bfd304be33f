#include "runtime/interpret/run_nest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>

#include "support/error.h"

namespace trainc::runtime::interpreted {

loop::LoopNest nest_of(const plan::Kernel& kernel) {
  loop::LoopNest nest = loop::parse({reinterpret_cast<const char*>(kernel.code.data()), kernel.code.size()});
  loop::verify(nest);
  return nest;
}

uint32_t run_nest(const loop::LoopNest& nest, const std::string& name, const std::vector<Argument>& arguments,
                  int64_t extent) {
  std::vector<interpret::View> views;
  for (const Argument& a : arguments) {
    // NaN: what is left unwritten does not go unseen
    if (a.fresh && a.bytes > 0) std::memset(a.data, 0xff, static_cast<size_t>(a.bytes));
    // A kernel may fill a part alone: a concatenation is several.
    views.push_back({static_cast<uint8_t*>(a.data), a.bytes, !a.fresh, false});
  }
  const interpret::Findings found = interpret::run_on_device(nest, views, extent);
  if (!found.messages.empty()) throw InternalError(fmt::format("{}: {}", name, fmt::join(found.messages, "; ")));
  return found.status;
}

}  // namespace trainc::runtime::interpreted
