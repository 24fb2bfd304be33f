#include "compiler/codegen.h"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <unordered_map>

namespace trainc::compiler {

void dump(const std::string& name, const std::string& text) {
  if (write_dump(name, text).empty()) throw UserError("TRAINC_DUMP: cannot write " + name + "; set TRAINC_DUMP_DIR to a directory that you can write");
}

std::string device_of(const Options& options) {
  if (!options.gpu) return "";
  return options.interpreted ? "interpret" : std::string(name_of(*options.gpu));
}

loop::LoopNest anonymous(loop::LoopNest nest) {
  nest.name = "kernel";
  nest.origins.clear();
  nest.bytes = nest.flops = 0;
  return nest;
}

int64_t storage_bytes(const Type& type, const Dims& strides) {
  if (type.numel() == 0) return 0;
  int64_t last = 0;
  for (size_t k = 0; k < type.shape.size(); ++k) last += (type.shape[k] - 1) * strides[k];
  return (last + 1) * size_of(type.dtype);
}

namespace {

/// Machine code of one nest, and where it is entered.
emit::Blob code_of(const loop::LoopNest& nest, const Options& options, emit::cuda::Entry entry) {
  if (!options.gpu) return emit::compile(nest, options.level);
  if (!options.interpreted) return {emit::cuda::compile(emit::cuda::source(nest, entry), nest.name, *options.gpu).code, 0};
  const std::string text = loop::print(nest);
  return {{text.begin(), text.end()}, 0};
}

}  // namespace

Code generate(const std::vector<const loop::LoopNest*>& nests, const Options& options, emit::cuda::Entry entry, SharedKernels::Impl::Role* role) {
  Code code;
  if (options.dry) {
    code.kernel_of.assign(nests.size(), -1);
    code.given.resize(nests.size());
    for (const loop::LoopNest* n : nests) code.kernels.push_back({n->name, {}, 0, n->scratch_bytes(), n->threads});
    return code;
  }
  // Kernels of identical layers differ in names and origins only.
  std::unordered_map<std::string, size_t> known;      // by text: the first nest of it
  std::unordered_map<const SharedKernel*, int> used;  // of other plans' too: its place in this one
  std::vector<SharedKernel*> shared;                  // of distinct[i], or null
  std::vector<loop::LoopNest> distinct;
  std::vector<int> place;                             // of distinct[i] among the plan's kernels
  const auto add = [&](loop::LoopNest nest, SharedKernel* of) {
    place.push_back(static_cast<int>(code.kernels.size()));
    code.kernels.push_back({nest.name, {}, 0, nest.scratch_bytes(), nest.threads});
    distinct.push_back(std::move(nest)), shared.push_back(of);
    return place.back();
  };
  for (const loop::LoopNest* n : nests) {
    loop::LoopNest plain = anonymous(*n);
    const size_t i = code.kernel_of.size();
    auto [it, fresh] = known.emplace(loop::print(plain), i);
    if (!fresh) {
      code.kernel_of.push_back(code.kernel_of[it->second]);
      code.given.push_back(code.given[it->second]);
      continue;
    }
    plain.name = n->name;
    if (!role) {
      code.kernel_of.push_back(add(std::move(plain), nullptr));
      code.given.emplace_back();
      continue;
    }
    const loop::Form form = loop::form_of(plain);
    SharedKernel& kernel = shared_kernel(*role, form);
    auto [at, first] = used.emplace(&kernel, -1);
    if (first && kernel.kernel) {
      at->second = static_cast<int>(code.kernels.size());
      code.kernels.push_back(*kernel.kernel);
    } else if (first) {
      at->second = add(kernel.lifted.none() ? std::move(plain) : loop::lift(plain, kernel.lifted, kernel.scratch), &kernel);
    }
    code.kernel_of.push_back(at->second);
    code.given.push_back(kernel.given(form));
  }
  code.compiled = static_cast<int64_t>(distinct.size());

  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<int64_t> next = 0;
  std::atomic<bool> stop = false;
  int64_t done = 0;
  std::exception_ptr failure;
  auto work = [&] {
    while (!stop) {
      const int64_t i = next++;
      if (i >= static_cast<int64_t>(distinct.size())) return;
      try {
        emit::Blob blob = code_of(distinct[i], options, entry);
        std::lock_guard lock(mutex);
        plan::Kernel& kernel = code.kernels[place[i]];
        kernel.code = std::move(blob.code);
        kernel.entry = blob.entry;
        if (shared[i]) shared[i]->kernel = kernel;
        ++done;
      } catch (...) {
        std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        stop = true;
      }
      changed.notify_one();
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < std::max(1, options.threads); ++t) threads.emplace_back(work);
  auto finish = [&] {
    stop = true;
    for (std::thread& t : threads) t.join();
  };
  const int64_t total = static_cast<int64_t>(distinct.size());
  try {
    for (;;) {
      int64_t now;
      {
        std::unique_lock lock(mutex);
        changed.wait_for(lock, std::chrono::milliseconds(100), [&] { return done == total || failure; });
        now = done;
        if (failure) break;
      }
      if (options.progress) options.progress(now, total);
      if (now == total) break;
    }
  } catch (...) {  // Ctrl-C, through progress
    finish();
    throw;
  }
  finish();
  if (failure) std::rethrow_exception(failure);
  return code;
}

}  // namespace trainc::compiler
