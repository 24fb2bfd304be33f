#include "runtime/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "runtime/arena.h"
#include "runtime/cpu_device.h"
#include "runtime/short_lock.h"
#include "support/bytes.h"
#include "support/error.h"

namespace trainc::runtime {
namespace {

void require_target(const std::string& plan, const std::string& made_for, const Device& device) {
  const std::string target = made_for.empty() ? "cpu" : made_for;
  if (target != device.target())
    throw UserError(
        fmt::format("plan {} was compiled for {}; this device is {}. Compile it here.", plan, target, device.target()));
}

struct Kind {
  std::string names;
  MakeDevice make;
};

struct Registry {
  std::map<std::string, Kind> kinds;
  std::map<std::string, std::shared_ptr<const Device>> made;  // by name

  Registry() {
    kinds["cpu"] = {"cpu",
                    [](const std::string& which) { return which.empty() ? std::make_shared<CpuDevice>() : nullptr; }};
  }
};

/// Under the short lock. It is never destroyed: a device's driver may be gone by then.
Registry& registry() {
  static Registry* const registry = new Registry;
  return *registry;
}

/// Of a device, or a plan, that has no quicker way.
class WholeRuns : public Trips {
 public:
  explicit WholeRuns(Executable& executable) : executable_(executable) {}
  void place(const Call& call) override { call_ = &call; }
  void run() override { executable_.run(*call_); }

 private:
  Executable& executable_;
  const Call* call_ = nullptr;
};

}  // namespace

Executable::Executable(plan::Plan plan) : plan_(std::move(plan)) { plan::verify(plan_); }
std::unique_ptr<Trips> Executable::trips() { return std::make_unique<WholeRuns>(*this); }

std::unique_ptr<Executable> Device::load(plan::Plan plan) const {
  require_target(plan.name, plan.device, *this);
  return make(std::move(plan));
}

std::unique_ptr<Foreach> Device::load(plan::Foreach plan) const {
  require_target(plan.name, plan.device, *this);
  return make(std::move(plan));
}

double Device::seconds_of(const plan::Kernel&, int64_t, const std::vector<int64_t>&) const {
  throw InternalError("kernels are not timed on " + description());
}

double Device::seconds_of(const plan::Product&, int64_t) const {
  throw InternalError("products are not timed on " + description());
}

std::shared_ptr<void> HostMemory::allocate(int64_t bytes) const {
  const auto memory = std::make_shared<AlignedMemory>(std::max<int64_t>(bytes, 1));
  return {memory, memory->data()};
}
void HostMemory::copy_in(void* device, const void* host, int64_t bytes) const { copy_bytes(device, host, bytes); }
void HostMemory::copy_out(void* host, const void* device, int64_t bytes) const { copy_bytes(host, device, bytes); }

std::shared_ptr<const Device> device(const std::string& name) {
  const size_t colon = name.find(':');
  MakeDevice make;
  std::string known;
  {
    const ShortLock lock;
    Registry& all = registry();
    if (const auto made = all.made.find(name); made != all.made.end()) return made->second;
    if (const auto kind = all.kinds.find(name.substr(0, colon)); kind != all.kinds.end()) make = kind->second.make;
    for (const auto& [word, kind] : all.kinds) known += (known.empty() ? "" : "; ") + kind.names;
  }
  std::shared_ptr<const Device> found;
  if (make && colon != name.size() - 1) found = make(colon == std::string::npos ? "" : name.substr(colon + 1));
  if (!found) throw UserError(name + ": no such device; there are " + known);
  const ShortLock lock;
  return registry().made.emplace(name, std::move(found)).first->second;  // another thread's, where it was first
}

void register_device(const std::string& kind, const std::string& names, MakeDevice make) {
  std::vector<std::shared_ptr<const Device>> replaced;  // let go without the lock
  const ShortLock lock;
  registry().kinds[kind] = {names, std::move(make)};
  std::erase_if(registry().made, [&](auto& made) {
    const bool of_kind = made.first == kind || made.first.starts_with(kind + ":");
    if (of_kind) replaced.push_back(std::move(made.second));
    return of_kind;
  });
}

}  // namespace trainc::runtime
