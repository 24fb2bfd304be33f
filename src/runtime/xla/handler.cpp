#include "runtime/xla/handler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <string_view>

#include "runtime/runtime.h"
#include "support/error.h"

namespace trainc::runtime::xla {
namespace {

using plan::MemorySpace;

struct Published {
  std::shared_ptr<Executable> executable;
  bool flushes_denormals;
  std::vector<int64_t> all, needed;  // inputs
};

/// Never destroyed: XLA's threads may call until the process has ended.
struct Register {
  std::mutex mutex;
  std::map<std::string, Published, std::less<>> plans;
};
Register& all() {
  static auto* const made = new Register;
  return *made;
}

bool is_dense(const plan::Buffer& b) {
  int64_t stride = 1;
  for (size_t i = b.shape.size(); i-- > 0; stride *= b.shape[i]) {
    if (b.shape[i] == 0) return true;
    if (b.shape[i] != 1 && b.strides[i] != stride) return false;
  }
  return true;
}

int64_t bytes_of(const FfiBuffer& b) {
  static constexpr std::pair<int, int64_t> kSizes[] = {{1, 1},  {2, 1},  {3, 2},  {4, 4},  {5, 8},
                                                       {6, 1},  {7, 2},  {8, 4},  {9, 8},  {10, 2},
                                                       {11, 4}, {12, 8}, {16, 2}, {15, 8}, {18, 16}};
  for (const auto& [dtype, size] : kSizes)
    if (b.dtype == dtype) {
      int64_t bytes = size;
      for (int64_t i = 0; i < b.rank; ++i) bytes *= b.dims[i];
      return bytes;
    }
  throw InternalError(fmt::format("XLA's dtype {} is not known", b.dtype));
}

/// The pointers of XLA's buffers.
std::vector<void*> pointers(const FfiBuffers& given, size_t wanted, const char* what) {
  require(static_cast<size_t>(given.size) == wanted,
          fmt::format("XLA gives {} {}, the plan has {}", given.size, what, wanted));
  std::vector<void*> found;
  for (int64_t i = 0; i < given.size; ++i) {
    require(given.types[i] == kFfiBuffer, fmt::format("one of XLA's {} is no buffer", what));
    found.push_back(given.buffers[i]->data);
  }
  return found;
}

void require_bytes(const FfiBuffer& given, const plan::Buffer& wanted) {
  require(bytes_of(given) == wanted.bytes,
          fmt::format("XLA gives {} bytes for {}, the plan has {}", bytes_of(given), wanted.name, wanted.bytes));
}

void run(const Published& published, const FfiCall& xla) {
  const plan::Plan& plan = published.executable->plan();
  Call call;
  const std::vector<int64_t>& given = xla.arguments.size == plan.input_count ? published.all : published.needed;
  const std::vector<void*> arguments = pointers(xla.arguments, given.size(), "arguments");
  call.inputs.resize(static_cast<size_t>(plan.input_count));
  std::vector<const FfiBuffer*> described(call.inputs.size());
  for (size_t i = 0; i < given.size(); ++i)
    call.inputs[given[i]] = arguments[i], described[given[i]] = xla.arguments.buffers[i];
  const std::vector<void*> results = pointers(xla.results, plan.outputs.size(), "results");
  call.outputs = results;
  call.flushes_denormals = published.flushes_denormals;
  for (const plan::Buffer& b : plan.buffers) {
    if (b.space == MemorySpace::Input && described[b.index]) require_bytes(*described[b.index], b);
    if (b.space == MemorySpace::Output) require_bytes(*xla.results.buffers[b.index], b);
  }
  for (size_t i = 0; i < plan.outputs.size(); ++i)
    if (plan.buffers[plan.outputs[i]].space == MemorySpace::Input) call.outputs[i] = nullptr;
  published.executable->run(call);
  for (size_t i = 0; i < plan.outputs.size(); ++i) {
    const plan::Buffer& b = plan.buffers[plan.outputs[i]];
    if (b.space == MemorySpace::Input && b.bytes > 0 && call.inputs[b.index] != results[i])
      std::memcpy(results[i], call.inputs[b.index], static_cast<size_t>(b.bytes));
  }
}

std::string_view name_of_plan(const FfiAttributes& attributes) {
  for (int64_t i = 0; i < attributes.size; ++i)
    if (attributes.types[i] == kFfiString &&
        std::string_view(attributes.names[i]->data, attributes.names[i]->size) == "plan") {
      const auto* value = static_cast<const FfiBytes*>(attributes.values[i]);
      return {value->data, value->size};
    }
  throw InternalError("XLA calls a plan without its name");
}

Published published(std::string_view name) {
  const std::lock_guard lock(all().mutex);
  const auto found = all().plans.find(name);
  require(
      found != all().plans.end(),
      "XLA calls a plan that this process has not compiled: its executable was stored by another (jax's compilation "
      "cache). Compile the function again.");
  return found->second;
}

FfiError* error(const FfiCall& call, const char* message) {
  FfiErrorCreate create{sizeof create, nullptr, message, kFfiInternal};
  return call.api->create_error(&create);
}

bool is_known(const FfiVersion& v) {
  return v.major == kFfiMajor && v.minor >= kFfiOldestMinor && v.minor <= kFfiNewestMinor;
}

/// XLA asks which version of the interface a handler is made for: its own, where that is one of those that it is.
void answer(const FfiCall& call, FfiMetadata& metadata) {
  const FfiVersion& its = call.api->version;
  metadata.version.major = kFfiMajor;
  metadata.version.minor = is_known(its) ? its.minor : kFfiNewestMinor;
  metadata.traits = 0;
}

}  // namespace

void publish(const std::string& name, std::shared_ptr<Executable> executable, bool flushes_denormals) {
  const plan::Plan& plan = executable->plan();
  const auto refuse = [&](const std::string& why) {
    throw InternalError(fmt::format("plan {} cannot be called by XLA: {}", plan.name, why));
  };
  for (const plan::Step& s : plan.steps)
    if (s.kind == plan::StepKind::Extern || s.kind == plan::StepKind::Random) refuse(s.name + " needs a framework");
  for (const plan::Buffer& b : plan.buffers)
    if ((b.space == MemorySpace::Input || b.space == MemorySpace::Output) && !is_dense(b))
      refuse(b.name + " is not dense");
  if (plan.saved_bytes > 0) refuse("it is a part of a step");
  for (int b : plan.outputs)
    if (b < 0) refuse("a result is none");
  std::vector<int64_t> inputs(static_cast<size_t>(plan.input_count));
  std::iota(inputs.begin(), inputs.end(), 0);
  const std::lock_guard lock(all().mutex);
  all().plans.try_emplace(name, Published{std::move(executable), flushes_denormals, inputs, needed_inputs(plan)});
}

std::vector<int64_t> needed_inputs(const plan::Plan& plan) {
  std::set<int64_t> needed;
  const auto need = [&](int b) {
    if (b >= 0 && plan.buffers[b].space == MemorySpace::Input) needed.insert(plan.buffers[b].index);
  };
  for (const plan::Step& s : plan.steps) std::ranges::for_each(s.reads, need);
  for (const plan::Buffer& b : plan.buffers) need(b.over);
  std::ranges::for_each(plan.outputs, need);
  return {needed.begin(), needed.end()};
}

FfiError* handle(FfiCall* call) {
  for (FfiExtension* e = call->extensions; e; e = e->next)
    if (e->type == kFfiMetadata) {
      answer(*call, *reinterpret_cast<FfiMetadataExtension*>(e)->metadata);
      return nullptr;
    }
  if (call->stage != kFfiExecute) return nullptr;
  try {
    run(published(name_of_plan(call->attributes)), *call);
  } catch (const std::exception& e) { return error(*call, e.what()); }
  return nullptr;
}

void register_with(const FfiApi& api, const std::string& name) {
  const FfiVersion& its = api.version;
  if (!is_known(its))
    throw InternalError(
        fmt::format("XLA's interface of foreign functions is {}.{}, which is not known", its.major, its.minor));
  static constexpr std::string_view kPlatform = "Host";
  FfiRegister arguments{};
  arguments.struct_size = sizeof arguments;
  arguments.name = {name.data(), name.size()};
  arguments.platform = {kPlatform.data(), kPlatform.size()};
  arguments.execute = handle;
  FfiError* const refused = api.register_handler(&arguments);
  if (!refused) return;
  FfiErrorMessage told{sizeof told, nullptr, refused, nullptr};
  api.message_of_error(&told);
  const std::string message = told.message ? told.message : "without a reason";
  FfiErrorDestroy over{sizeof over, nullptr, refused};
  api.destroy_error(&over);
  throw InternalError("XLA refuses trainc's handler: " + message);
}

}  // namespace trainc::runtime::xla
