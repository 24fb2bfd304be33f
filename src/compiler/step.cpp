#include "compiler/step.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "plan/live.h"

namespace trainc::compiler {
namespace {

using plan::Buffer;
using plan::MemorySpace;

/// Axes of size 1 aside.
bool same_layout(const Buffer& a, const Buffer& b) {
  if (a.shape != b.shape) return false;
  for (size_t i = 0; i < a.shape.size(); ++i)
    if (a.shape[i] != 1 && a.strides[i] != b.strides[i]) return false;
  return true;
}

class PlanJoiner {
 public:
  PlanJoiner(const plan::Plan& forward, const plan::Plan& backward, const std::vector<int64_t>& saved_inputs,
             int64_t primals)
      : forward_(forward), backward_(backward), saved_inputs_(saved_inputs), primals_(primals) {
    plan_.cpu = forward.cpu;
    plan_.device = forward.device;
    plan_.output_count = forward.output_count + backward.output_count;
    plan_.input_count = primals + backward.input_count - static_cast<int64_t>(saved_inputs.size());
  }

  plan::Plan run() {
    require(forward_.bodies.empty() && backward_.bodies.empty(), "a loop in a step that is joined");
    const std::vector<int> of_forward = add_buffers(forward_, [&](Buffer& b) { return from_forward(b); });
    add_steps(forward_, of_forward);
    for (int b : forward_.outputs) plan_.outputs.push_back(b < 0 ? -1 : of_forward[b]);
    const std::vector<int> of_backward = add_buffers(backward_, [&](Buffer& b) { return from_backward(b); });
    add_steps(backward_, of_backward);
    for (int b : backward_.outputs) plan_.outputs.push_back(b < 0 ? -1 : of_backward[b]);
    for (const std::vector<std::string>& notes : {forward_.notes, backward_.notes})
      plan_.notes.insert(plan_.notes.end(), notes.begin(), notes.end());
    plan_.remarks = together(forward_.remarks, backward_.remarks);
    return std::move(plan_);
  }

 private:
  /// Copies the buffers of `from` into this plan, and gives their numbers here. `known(buffer)` gives the number of one
  /// that is here already; else it edits the copy, and gives -1.
  template <class F> std::vector<int> add_buffers(const plan::Plan& from, const F& known) {
    const int64_t constants = plan::aligned(static_cast<int64_t>(plan_.constants.size()));
    plan_.constants.resize(constants);
    plan_.constants.insert(plan_.constants.end(), from.constants.begin(), from.constants.end());
    std::vector<int> numbers;
    for (Buffer b : from.buffers) {
      if (b.space == MemorySpace::Constant) b.offset += constants;
      if (b.space == MemorySpace::Saved && b.index < 0) b.space = MemorySpace::Temp;
      const int there = known(b);
      numbers.push_back(there >= 0 ? there : add(std::move(b)));
    }
    for (size_t i = 0; i < numbers.size(); ++i)
      if (from.buffers[i].over >= 0) plan_.buffers[numbers[i]].over = numbers[from.buffers[i].over];
    return numbers;
  }

  int add(Buffer b) {
    plan_.buffers.push_back(std::move(b));
    return static_cast<int>(plan_.buffers.size()) - 1;
  }
  int next() const { return static_cast<int>(plan_.buffers.size()); }

  int input(int64_t index, Buffer& b) {
    auto [it, fresh] = inputs_.emplace(index, next());
    b.index = index;
    b.name = "in" + std::to_string(index);
    return fresh ? -1 : it->second;
  }
  int saved(Buffer& b) {
    auto [it, fresh] = saved_.emplace(b.index, next());
    b.space = MemorySpace::Temp;
    return fresh ? -1 : it->second;
  }
  int from_forward(Buffer& b) {
    if (b.space == MemorySpace::Input) return input(b.index, b);
    if (b.space == MemorySpace::Saved) return saved(b);
    if (b.space == MemorySpace::Output) results_[b.index] = next();
    return -1;
  }
  int from_backward(Buffer& b) {
    const int64_t held = static_cast<int64_t>(saved_inputs_.size());
    if (b.space == MemorySpace::Saved) return saved(b);
    if (b.space == MemorySpace::Output) {
      b.index += forward_.output_count;
      b.name = "out" + std::to_string(b.index);
    }
    if (b.space == MemorySpace::Temp || b.space == MemorySpace::Output) b.offset = 0;
    if (b.space != MemorySpace::Input) return -1;
    if (b.index >= held) return input(primals_ + b.index - held, b);
    const int64_t from = saved_inputs_[b.index];
    if (from < primals_) return input(from, b);
    return results_.at(from - primals_);
  }

  void add_steps(const plan::Plan& from, const std::vector<int>& numbers) {
    const int kernels = static_cast<int>(plan_.kernels.size());
    const auto starts = static_cast<int>(std::ranges::count(plan_.steps, plan::StepKind::Start, &plan::Step::kind));
    plan_.kernels.insert(plan_.kernels.end(), from.kernels.begin(), from.kernels.end());
    for (plan::Step s : from.steps) {
      for (std::vector<int>* list : {&s.arguments, &s.reads, &s.writes, &s.aliases})
        for (int& b : *list) b = numbers[b];
      if (s.guard >= 0) s.guard = numbers[s.guard];
      if (s.kernel >= 0) s.kernel += kernels;
      if (s.token >= 0) s.token += starts;
      plan_.steps.push_back(std::move(s));
    }
  }

  const plan::Plan &forward_, &backward_;
  const std::vector<int64_t>& saved_inputs_;
  const int64_t primals_;
  plan::Plan plan_;
  std::map<int64_t, int> inputs_, saved_, results_;  // by index: buffers
};

class Updater {
 public:
  explicit Updater(plan::Plan plan) : plan_(std::move(plan)) {
    for (size_t b = 0; b < plan_.buffers.size(); ++b)
      if (plan_.buffers[b].space == MemorySpace::Input) inputs_.emplace(plan_.buffers[b].index, static_cast<int>(b));
  }

  plan::Plan run(int64_t gradients, const std::vector<plan::Foreach>& formulas, const std::vector<Update>& updates) {
    for (const plan::Foreach& f : formulas) {
      kernel_of_.push_back(static_cast<int>(plan_.kernels.size()));
      plan_.kernels.push_back(f.kernel);
    }
    for (const Update& u : updates)
      update(formulas.at(u.formula), kernel_of_[u.formula], u, gradient(gradients, u.gradient));
    return std::move(plan_);
  }

 private:
  /// The buffer of an output, which it is no more.
  int gradient(int64_t gradients, int64_t index) {
    const int b = std::exchange(plan_.outputs.at(gradients + index), -1);
    require(b >= 0, "an update without a gradient, or a gradient with two updates");
    Buffer& buffer = plan_.buffers[b];
    require(buffer.space == MemorySpace::Output, "an update of a gradient that is no memory of the plan's");
    buffer.space = MemorySpace::Temp;
    buffer.name = "gradient" + std::to_string(index);
    buffer.index = buffer.offset = 0;
    return b;
  }

  int add(Buffer b) {
    plan_.buffers.push_back(std::move(b));
    return static_cast<int>(plan_.buffers.size()) - 1;
  }

  void update(const plan::Foreach& formula, int kernel, const Update& u, int gradient) {
    const Buffer like = plan_.buffers[gradient];
    int64_t numel = 1;
    for (int64_t d : like.shape) numel *= d;
    require(like.bytes == numel * size_of(like.dtype), "the gradient of an update has gaps");
    if (numel == 0) return;
    plan::Step s;
    s.kind = plan::StepKind::Kernel;
    s.name = formula.kernel.name;
    s.kernel = kernel;
    s.parallel_extent = (numel + formula.chunk - 1) / formula.chunk;
    s.origins = formula.origins;
    require(u.inputs.size() == formula.inputs.size(), "an update has other inputs than its formula");
    for (size_t i = 0; i < u.inputs.size(); ++i) {
      const plan::ForeachInput& type = formula.inputs[i];
      int b = gradient;
      if (u.inputs[i] >= 0) {
        plan_.input_count = std::max(plan_.input_count, u.inputs[i] + 1);
        Buffer in = like;
        in.space = MemorySpace::Input, in.offset = 0, in.dtype = type.dtype;
        if (type.scalar) in.shape = in.strides = {};
        in.bytes = (type.scalar ? 1 : numel) * size_of(type.dtype);
        b = input(u.inputs[i], std::move(in));
        require(type.scalar || same_layout(plan_.buffers[b], like), "an update's tensors are laid out differently");
      }
      s.arguments.push_back(b);
      if (std::find(s.reads.begin(), s.reads.end(), b) == s.reads.end())
        s.reads.push_back(b), s.bytes += plan_.buffers[b].bytes;
    }
    for (size_t i = 0; i < formula.inputs.size(); ++i) {
      if (!formula.inputs[i].written) continue;
      const int b = s.arguments[i];
      require(plan_.buffers[b].space == MemorySpace::Input, "an update writes what is no input");
      plan_.buffers[b].updated = true;
      s.writes.push_back(b);
      s.bytes += plan_.buffers[b].bytes;
    }
    s.arguments.push_back(constant(numel));
    s.reads.push_back(s.arguments.back());

    // As early as it can: the gradient is there, and what is overwritten was read for the last time.
    int place = 0;
    for (int i = 0; i < static_cast<int>(plan_.steps.size()); ++i) {
      const std::vector<int>& written = plan_.steps[i].writes;
      if (std::find(written.begin(), written.end(), gradient) != written.end()) place = i + 1;
    }
    const std::vector<plan::LiveRange> live = plan::live_ranges(plan_);
    for (int b : s.writes) place = std::max(place, live[b].last + 1);
    plan_.steps.insert(plan_.steps.begin() + place, std::move(s));
  }

  int input(int64_t index, Buffer in) {
    auto [it, fresh] = inputs_.emplace(index, static_cast<int>(plan_.buffers.size()));
    if (!fresh) return it->second;
    in.index = index;
    in.name = "in" + std::to_string(index);
    return add(std::move(in));
  }

  /// A 64-bit number among the constants.
  int constant(int64_t value) {
    auto [it, fresh] = numbers_.emplace(value, static_cast<int>(plan_.buffers.size()));
    if (!fresh) return it->second;
    const int64_t offset = plan::aligned(static_cast<int64_t>(plan_.constants.size()));
    plan_.constants.resize(offset + sizeof value);
    std::memcpy(plan_.constants.data() + offset, &value, sizeof value);
    Buffer b;
    b.name = "numel" + std::to_string(value);
    b.space = MemorySpace::Constant;
    b.offset = offset;
    b.dtype = DType::I64;
    b.bytes = sizeof value;
    return add(std::move(b));
  }

  plan::Plan plan_;
  std::map<int64_t, int> inputs_, numbers_;  // by index, and by number: buffers
  std::vector<int> kernel_of_;               // by formula
};

}  // namespace

plan::Plan join(const plan::Plan& forward, const plan::Plan& backward, const std::vector<int64_t>& saved_inputs,
                int64_t primals) {
  return PlanJoiner(forward, backward, saved_inputs, primals).run();
}

plan::Plan consume(plan::Plan plan, int64_t gradients, const std::vector<plan::Foreach>& formulas,
                   const std::vector<Update>& updates) {
  return Updater(std::move(plan)).run(gradients, formulas, updates);
}

}  // namespace trainc::compiler
