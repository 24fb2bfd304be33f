#include "compiler/lower_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>

#include "compiler/codegen.h"
#include "compiler/framework_calls.h"
#include "compiler/tune.h"
#include "cost/memory.h"
#include "cost/ordering.h"
#include "cost/sums.h"
#include "graph/remarks.h"
#include "graph/text.h"
#include "graph/verify.h"
#include "loop/in_place.h"
#include "loop/offsets.h"
#include "lower/lower.h"
#include "passes/rewrite.h"
#include "passes/rules.h"
#include "schedule/bits.h"
#include "schedule/guards.h"
#include "schedule/order_steps.h"
#include "schedule/pad_products.h"
#include "schedule/prepare.h"
#include "schedule/schedule.h"
#include "support/while_operation.h"

namespace trainc::compiler {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// Of how many operations a contraction goes to the vendor's library; 0: none does.
int64_t vendor_flops(const CompileOptions& options) {
  return options.target.has_vendor_products ? options.vendor_product_flops : 0;
}

constexpr const char* kNoEpilogue =
    "the vendor's library has no algorithm for some products and what is added or summed with them: kernels do that";
constexpr const char* kReadLater = "the operand is read later";

class PlanBuilder {
 public:
  PlanBuilder(const Graph& graph, const std::vector<Type>& output_types, const schedule::Schedule& schedule,
              const ArenaLayout& layout, const schedule::GivenAway& given_away, Remarks& remarks,
              std::set<schedule::ProductShape>& refused)
      : graph_(graph),
        output_types_(output_types),
        schedule_(schedule),
        layout_(layout),
        given_away_(given_away),
        all_remarks_(remarks),
        remarks_(graph, "compiler", &remarks),
        refused_(refused) {}

  LoweredPlan run(const std::string& name, std::vector<std::string> notes, const CompileOptions& options,
                  const Job& job, Timing& timing) {
    plan_.name = name;
    plan_.notes = std::move(notes);
    plan_.cpu = options.target.cpu;
    plan_.device = options.target.device;
    const bool arena_out = layout_.arena_outputs_from >= 0, arena_in = layout_.arena_inputs_from >= 0;
    plan_.input_count = arena_in ? layout_.arena_inputs_from : graph_.input_count;
    plan_.output_count = arena_out ? layout_.arena_outputs_from : static_cast<int64_t>(graph_.outputs.size());
    plan_.saved_bytes = layout_.saved_bytes;
    plan_.overwrites_saved = layout_.overwrites && layout_.saved_bytes > 0;
    for (const Node* n : graph_.live()) read_.insert(n->inputs.begin(), n->inputs.end());
    for (const Output& o : graph_.outputs) read_.insert(o.value);
    place_outputs();

    const double start = now();
    std::vector<std::vector<lower::LoweredKernel>> kernels = lowered(options, job);
    start_in_place(kernels);
    if (options.target.writes_in_place) write_in_place(kernels);
    std::vector<schedule::Guard> guards(kernels.size());
    if (options.target.skips_steps) guards = schedule::find_guards(graph_, schedule_, over_);
    for (size_t g = 0; g < kernels.size(); ++g) {
      const schedule::Group& group = schedule_.groups[g];
      if (group.kind == schedule::GroupKind::Extern) extern_step(group);
      else if (group.kind == schedule::GroupKind::Random && kernels[g].empty()) random_step(group.values[0]);
      else
        for (lower::LoweredKernel& k : kernels[g]) {
          kernel_step(k, options.target.shifts_arguments);
          guard(plan_.steps.back(), guards[g]);
        }
      if (group.kind == schedule::GroupKind::Random && !kernels[g].empty())
        as_draw(plan_.steps.back(), group.values[0]);
    }
    for (auto [value, below] : over_) plan_.buffers[buffer(value)].over = buffer(below);
    plan_.remarks = all_remarks_.take();
    timing.schedule_seconds += now() - start;
    return {std::move(plan_), std::move(nests_)};
  }

 private:
  /// The kernels of each group.
  std::vector<std::vector<lower::LoweredKernel>> lowered(const CompileOptions& options, const Job& job) {
    lower::LoweringOptions lowering{options.target};
    lowering.tf32 = options.target.has_tf32 && options.tf32;
    lowering.vendor_product_flops = vendor_flops(options);
    lowering.library_has = job.library_has;
    lowering.refused = &refused_;
    lowering.float32_in_parts = options.float32_in_parts;
    const bool shared = job.shared && options.target.shares_kernels;
    std::unique_lock<std::mutex> lock;
    if (shared) {
      lock = std::unique_lock(job.shared->impl->mutex);
      lowering.fixed_blockings = &job.shared->impl->roles[plan_.name].blockings;
      lowering.fixed_blockings->next = 0;
    }
    Tuner tuner(graph_, schedule_, lowering, options, job);
    std::vector<std::vector<lower::LoweredKernel>> kernels;
    for (const schedule::Group& g : schedule_.groups) {
      std::vector<lower::LoweredKernel> lowered = lower::lower(graph_, schedule_, g, lowering, &all_remarks_);
      // kernels that plans of several sizes share are not measured for one of these sizes
      kernels.push_back(shared ? std::move(lowered) : tuner.best(g, std::move(lowered)));
    }
    for (std::string& note : tuner.notes()) plan_.notes.push_back(std::move(note));
    return kernels;
  }

  int add(plan::Buffer b) {
    plan_.buffers.push_back(std::move(b));
    return static_cast<int>(plan_.buffers.size()) - 1;
  }

  plan::Buffer describe(const Type& type, Dims strides, plan::MemorySpace space, int64_t index,
                        std::string name) const {
    plan::Buffer b;
    b.name = std::move(name);
    b.space = space;
    b.index = index;
    b.dtype = type.dtype;
    b.shape = type.shape;
    b.strides = strides.empty() ? contiguous_strides(type.shape) : std::move(strides);
    b.bytes = storage_bytes(type, b.strides);
    return b;
  }

  /// The buffer of `n`, row-major.
  plan::Buffer describe(const Node* n, plan::MemorySpace space, int64_t index, std::string name) const {
    plan::Buffer b = describe(n->type, {}, space, index, std::move(name));
    b.bits = schedule_.bits.contains(n);
    if (b.bits) b.bytes = schedule_.bytes(n);
    return b;
  }

  int saved(int64_t slot, const Node* n, const Type& type) {
    plan::Buffer b = describe(n, plan::MemorySpace::Saved, slot, "saved" + std::to_string(slot));
    b.shape = type.shape, b.strides = contiguous_strides(type.shape);
    b.offset = layout_.arena_offsets.at(slot);
    return add(std::move(b));
  }

  void place_outputs() {
    for (size_t i = 0; i < graph_.outputs.size(); ++i) {
      const Output& o = graph_.outputs[i];
      const bool arena = layout_.arena_outputs_from >= 0 && static_cast<int64_t>(i) >= layout_.arena_outputs_from;
      if (arena) {
        const Node* base = schedule::base_of(o.value);
        buffer_of_[base] = saved(static_cast<int64_t>(i) - layout_.arena_outputs_from, base, output_types_[i]);
      } else if (!o.value) {
        plan_.outputs.push_back(-1);
      } else if (o.value->op == Op::Input) {
        plan_.outputs.push_back(buffer(o.value));
      } else {
        const int b = add(describe(output_types_[i], o.strides, plan::MemorySpace::Output, static_cast<int64_t>(i),
                                   "out" + std::to_string(i)));
        buffer_of_[schedule::base_of(o.value)] = b;
        plan_.outputs.push_back(b);
      }
    }
  }

  int buffer(const Node* n) {
    n = schedule::base_of(n);
    auto [it, fresh] = buffer_of_.emplace(n, -1);
    if (!fresh) return it->second;
    if (n->op == Op::Input) {
      const InputAttr& attr = n->as<InputAttr>();
      if (layout_.arena_inputs_from >= 0 && attr.index >= layout_.arena_inputs_from) {
        return it->second = saved(attr.index - layout_.arena_inputs_from, n, n->type);
      }
      return it->second = add(describe(n->type, attr.strides, plan::MemorySpace::Input, attr.index,
                                       "in" + std::to_string(attr.index)));
    }
    const bool foreign = n->op == Op::Result && !schedule::is_started(n->in(0));
    const plan::MemorySpace space = foreign ? plan::MemorySpace::Extern : plan::MemorySpace::Temp;
    return it->second = add(describe(n, space, 0, "t" + std::to_string(n->id)));
  }

  /// Of a value: the last place that touches a view of its memory (a call's result), or -1.
  std::function<int(const Node*)> last_views(const std::unordered_map<const Node*, int>& last_touch) const {
    std::unordered_map<const Node*, int> last;
    const auto of = [&](const auto& places, const Node* n) {
      const auto it = places.find(n);
      return it == places.end() ? -1 : it->second;
    };
    for (size_t g = schedule_.groups.size(); g-- > 0;) {  // backwards: a view may have views
      const schedule::Group& group = schedule_.groups[g];
      if (group.kind != schedule::GroupKind::Extern) continue;
      for (int64_t i : group.values[0]->as<ExternAttr>().aliases) {
        const Node* below = schedule::base_of(group.values[0]->in(i));
        int until = of(last, below);
        for (const Node* view : group.values) until = std::max({until, of(last_touch, view), of(last, view)});
        last[below] = until;
      }
    }
    return [last, of](const Node* n) { return of(last, n); };
  }

  /// Whether a kernel, or the product that stands for it, writes argument `i`.
  static bool writes(const lower::LoweredKernel& k, size_t i) {
    if (!k.product) return k.nest.buffers[i].written;
    const bool sums = k.product->sums_of != plan::SumsOf::None;
    return i == 2 || (sums && i + 1 == k.arguments.size());
  }

  /// Where the kernels and calls of a plan, counted from 1, touch a value.
  struct Touches { std::unordered_map<const Node*, int> first_write, last; };
  Touches touches(const std::vector<std::vector<lower::LoweredKernel>>& kernels) const {
    Touches touches;
    int place = 0;
    for (size_t g = 0; g < kernels.size(); ++g) {
      for (const lower::LoweredKernel& k : kernels[g]) {
        ++place;
        for (size_t i = 0; i < k.arguments.size(); ++i) {
          touches.last[k.arguments[i]] = place;
          if (writes(k, i)) touches.first_write.emplace(k.arguments[i], place);
        }
      }
      if (schedule_.groups[g].kind != schedule::GroupKind::Extern) continue;
      ++place;
      for (const Node* i : schedule_.groups[g].values[0]->inputs) touches.last[schedule::base_of(i)] = place;
    }
    return touches;
  }

  /// Puts what a started call reads where its result is to be, if the call is the last to touch it.
  void start_in_place(const std::vector<std::vector<lower::LoweredKernel>>& kernels) {
    const auto [first_write, last_touch] = touches(kernels);
    const auto viewed_until = last_views(last_touch);
    std::unordered_set<const Node*> outputs;
    for (const Output& o : graph_.outputs)
      if (o.value) outputs.insert(schedule::base_of(o.value));
    int place = 0;
    for (size_t g = 0; g < kernels.size(); ++g) {
      place += static_cast<int>(kernels[g].size());
      const schedule::Group& group = schedule_.groups[g];
      if (group.kind != schedule::GroupKind::Extern) continue;
      ++place;
      const Node* call = group.values[0];
      if (!schedule::is_started(call) || call->inputs.size() < call->as<ExternAttr>().results.size()) continue;
      for (const Node* result : group.values) {
        if (result->op != Op::Result) continue;
        const Node* below = schedule::base_of(call->in(result->as<ResultAttr>().index));
        const bool made_here = first_write.contains(below) && !outputs.contains(below);
        const auto is_below = [&](const Node* i) { return schedule::base_of(i) == below; };
        if (std::ranges::count_if(call->inputs, is_below) > 1) continue;  // it is read beside, or begins two results
        if (!made_here || last_touch.at(below) != place || viewed_until(below) >= place) continue;
        const auto there = buffer_of_.find(result);
        if (there == buffer_of_.end()) {
          buffer_of_[result] = buffer(below);
        } else if (const plan::Buffer& b = plan_.buffers[there->second];
                   b.space == plan::MemorySpace::Output && b.strides == contiguous_strides(b.shape)) {
          buffer_of_[below] = there->second;
          becomes_output_.insert(below);
        }
      }
    }
  }

  /// Results in the memory of inputs that the caller gives away: those that are written once the input was read for the
  /// last time, or by a kernel that may write them in place.
  void give_away(std::vector<std::vector<lower::LoweredKernel>>& kernels) {
    const auto [first_write, last_touch] = touches(kernels);
    for (const auto& [below, value] : given_away_) {
      if (!first_write.contains(value)) continue;
      const auto last = last_touch.find(below);
      const int read = last == last_touch.end() ? 0 : last->second, written = first_write.at(value);
      std::string refused = read > written ? kReadLater : "";
      if (read == written) refused = refuse_or_write(kernels, value, below);
      if (refused.empty()) over_[value] = below;
      else remarks_.missed(missed::kInPlace, refused.c_str(), value, below, schedule_.bytes(value));
    }
  }

  /// Has the kernel that first writes `value` do so over `below`, which it reads; why not, where it may not.
  static std::string refuse_or_write(std::vector<std::vector<lower::LoweredKernel>>& kernels, const Node* value,
                                     const Node* below) {
    for (auto& group : kernels)
      for (lower::LoweredKernel& k : group) {
        const auto place = [&](const Node* n) {
          return static_cast<int>(std::find(k.arguments.begin(), k.arguments.end(), n) - k.arguments.begin());
        };
        const int written = place(value), read = place(below), none = static_cast<int>(k.arguments.size());
        if (written == none) continue;
        if (read == none) return "a call of the framework reads it";
        std::string refused = loop::refuse_in_place(k.nest, written, read);
        if (refused.empty()) k.nest.buffers[written].over = read;
        return refused;
      }
    return "no kernel writes it";
  }

  /// Temporaries, and slots of the arena, that may be written over what the same kernel is the last to read.
  void write_in_place(std::vector<std::vector<lower::LoweredKernel>>& kernels) {
    give_away(kernels);
    const auto [first_write, last_touch] = touches(kernels);
    int place = 0;
    const auto viewed_until = last_views(last_touch);
    std::unordered_set<const Node*> kept, slots;  // what the caller wants; of that, what the handle's arena is to hold
    for (size_t i = 0; i < graph_.outputs.size(); ++i) {
      if (!graph_.outputs[i].value) continue;
      const bool slot = layout_.arena_outputs_from >= 0 && static_cast<int64_t>(i) >= layout_.arena_outputs_from;
      (slot ? slots : kept).insert(schedule::base_of(graph_.outputs[i].value));
    }
    kept.insert(becomes_output_.begin(), becomes_output_.end());
    const auto ours = [&](const Node* n) {  // a temporary, or a slot that is read for the last time
      if (kept.count(n) || slots.count(n) || n->op == Op::Result || n->op == Op::Constant) return false;
      return n->op != Op::Input || (layout_.overwrites && n->as<InputAttr>().index >= layout_.arena_inputs_from);
    };
    // A slot that is written lies over a temporary as another temporary does: then that one is in the slot already.
    const auto may_lie_over = [&](const Node* n) {
      return ours(n) || (slots.count(n) && !kept.count(n) && n->op != Op::Input);
    };
    for (size_t g = 0; g < kernels.size(); ++g) {
      place += schedule_.groups[g].kind == schedule::GroupKind::Extern;
      for (lower::LoweredKernel& k : kernels[g]) {
        ++place;
        for (size_t w = 0; w < k.arguments.size(); ++w) {
          const Node* value = k.arguments[w];
          if (!k.nest.buffers[w].written || first_write.at(value) != place || !may_lie_over(value)) continue;
          std::string refused;  // by what came nearest to it
          const Node* refused_below = nullptr;
          const auto refuse = [&](std::string why, const Node* below) {
            if (!refused_below || why != kReadLater) refused = std::move(why), refused_below = below;
          };
          for (size_t r = 0; r < k.arguments.size(); ++r) {
            const Node* below = k.arguments[r];
            if (k.nest.buffers[r].written || !ours(below) || below->type.bytes() != value->type.bytes()) continue;
            if (last_touch.at(below) != place) {
              refuse(kReadLater, below);
              continue;
            }
            if (viewed_until(below) >= place) {
              refuse("a view of it is read later", below);
              continue;
            }
            if (std::string why = loop::refuse_in_place(k.nest, static_cast<int>(w), static_cast<int>(r));
                !why.empty()) {
              refuse(std::move(why), below);
              continue;
            }
            k.nest.buffers[w].over = static_cast<int>(r);
            over_[value] = below;
            refused_below = nullptr;
            break;
          }
          if (refused_below)
            remarks_.missed(missed::kInPlace, refused.c_str(), value, refused_below, schedule_.bytes(value));
        }
      }
    }
  }

  /// `shifts`: constant offsets become shifts of the arguments, so that kernels which read other parts of a tensor are
  /// one.
  void kernel_step(lower::LoweredKernel& k, bool shifts) {
    plan::Step step;
    step.kind = plan::StepKind::Kernel;
    step.name = k.nest.name;
    step.parallel_extent = k.nest.parallel_extent;
    step.flops = k.nest.flops;
    step.bytes = k.nest.bytes;
    step.origins = k.nest.origins;
    if (k.product) {
      product_step(std::move(step), k);
      return;
    }
    step.kernel = static_cast<int>(nests_.size());
    if (loop::is_copy(k.nest)) step.target = "copy";
    for (size_t i = 0; i < k.arguments.size(); ++i) {
      const int b = k.arguments[i] ? buffer(k.arguments[i]) : draw();
      step.arguments.push_back(b);
      (k.nest.buffers[i].written ? step.writes : step.reads).push_back(b);
      // The second kernel of a scatter updates what the first one wrote.
      if (k.nest.buffers[i].written && written_.count(b)) step.reads.push_back(b);
    }
    for (int b : step.writes) written_.insert(b);
    std::vector<int64_t> last;
    for (size_t i = 0; i < k.arguments.size(); ++i)
      last.push_back(plan_.buffers[step.arguments[i]].bytes / size_of(k.nest.buffers[i].dtype) - 1);
    if (shifts) shift(step, k, loop::take_offsets(k.nest, last));
    plan_.steps.push_back(std::move(step));
    plan_.kernels.push_back(without_code(k.nest));
    nests_.push_back(std::move(k.nest));
  }

  void guard(plan::Step& step, const schedule::Guard& by) {
    if (!by.flag || step.kind != plan::StepKind::Kernel) return;
    step.guard = buffer(by.flag);
    step.guard_value = by.value;
    if (std::find(step.reads.begin(), step.reads.end(), step.guard) == step.reads.end())
      step.reads.push_back(step.guard);
  }

  /// Makes the kernel's arguments begin so many elements further on.
  static void shift(plan::Step& step, const lower::LoweredKernel& k, const std::vector<int64_t>& offsets) {
    if (std::all_of(offsets.begin(), offsets.end(), [](int64_t n) { return n == 0; })) return;
    step.shifts.assign(step.arguments.size(), 0);
    for (size_t i = 0; i < k.arguments.size(); ++i) step.shifts[i] = offsets[i] * size_of(k.nest.buffers[i].dtype);
  }

  void product_step(plan::Step step, const lower::LoweredKernel& k) {
    step.kind = plan::StepKind::Product;
    step.kernel = -1;
    step.product = *k.product;
    const auto [operands, added] = std::pair(std::span(k.arguments).first(3), std::span(k.arguments).subspan(3));
    for (const Node* n : operands) step.arguments.push_back(buffer(n));
    step.arguments.push_back(add(describe({DType::U8, {cost::kVendorWorkspace}}, {}, plan::MemorySpace::Temp, 0,
                                          "workspace" + std::to_string(plan_.steps.size()))));
    for (const Node* n : added) step.arguments.push_back(buffer(n));
    for (size_t i = 0; i < k.arguments.size(); ++i) {
      const int b = step.arguments[i < operands.size() ? i : i + 1];  // the workspace lies between
      if (writes(k, i)) step.writes.push_back(b);
      else if (std::ranges::find(step.reads, b) == step.reads.end()) step.reads.push_back(b);
    }
    step.writes.insert(step.writes.begin() + 1, step.arguments[operands.size()]);
    written_.insert(step.writes.begin(), step.writes.end());
    plan_.steps.push_back(std::move(step));
  }

  int draw() {
    plan::Buffer b =
        describe({DType::I64, {2}}, {}, plan::MemorySpace::Draw, 0, "draw" + std::to_string(plan_.steps.size()));
    return add(std::move(b));
  }

  /// A kernel's step that draws by Philox. The generator moves on by what eager's own kernel would take at most, 4
  /// numbers at a time.
  static void as_draw(plan::Step& step, const Node* n) {
    const RandomAttr& attr = n->as<RandomAttr>();
    step.kind = plan::StepKind::Random;
    step.p = attr.p;
    step.increment = ((n->type.numel() - 1) / (attr.threads * 4) + 1) * 4;
  }

  void random_step(const Node* n) {
    plan::Step step;
    step.kind = plan::StepKind::Random;
    step.name = "random_" + std::to_string(n->as<RandomAttr>().draw);
    step.p = n->as<RandomAttr>().p;
    step.origins = graph_.origins(n);
    if (read_.contains(n)) step.writes = {buffer(n)}, step.bytes = schedule_.bytes(n);
    else step.increment = n->type.numel();
    plan_.steps.push_back(std::move(step));
  }

  void extern_step(const schedule::Group& group) {
    const Node* call = group.values[0];
    const ExternAttr& attr = call->as<ExternAttr>();
    const bool started = schedule::is_started(call);
    plan::Step step;
    step.kind = started ? plan::StepKind::Start : plan::StepKind::Extern;
    step.name = step.target = attr.target;
    step.arguments_json = attr.arguments;
    step.random = attr.random && !started;
    step.may_draw = attr.may_draw && !started;
    step.origins = graph_.origins(call);
    int64_t results_bytes = 0;
    for (const Type& t : attr.results) results_bytes += t.bytes();
    if (!attr.reason.empty() && !started)
      all_remarks_.add("frontend", missed::kCompile, attr.reason, attr.target,
                       step.origins.empty() ? "" : step.origins[0], "", results_bytes);
    for (int64_t i : attr.aliases) step.aliases.push_back(buffer(call->in(i)));
    for (const Node* i : call->inputs) {
      const int b = buffer(i);
      step.arguments.push_back(b);
      if (std::find(step.reads.begin(), step.reads.end(), b) == step.reads.end()) step.reads.push_back(b);  // x x^T
    }
    std::unordered_map<int64_t, const Node*> results;
    for (const Node* n : group.values)
      if (n->op == Op::Result) results[n->as<ResultAttr>().index] = n;
    for (size_t i = 0; i < attr.results.size(); ++i) {
      auto it = results.find(static_cast<int64_t>(i));
      if (it != results.end()) step.writes.push_back(buffer(it->second));
      else
        step.writes.push_back(
            add(describe(attr.results[i], {}, started ? plan::MemorySpace::Temp : plan::MemorySpace::Extern, 0,
                         "unused" + std::to_string(call->id) + "_" + std::to_string(i))));
      step.bytes += attr.results[i].bytes();
    }
    if (started) started_step(std::move(step));
    else plan_.steps.push_back(std::move(step));
  }

  /// The Start that `step` is, and its Wait.
  void started_step(plan::Step step) {
    step.arguments.insert(step.arguments.end(), step.writes.begin(), step.writes.end());
    step.token = tokens_++;
    if (step.target != kWhile)  // which is over when it has begun
      step.seconds = cost::kSecondsAnExchange + static_cast<double>(step.bytes) / cost::kExchangedBytesPerSecond;
    plan::Step wait;
    wait.kind = plan::StepKind::Wait;
    wait.name = "wait for " + step.name;
    wait.origins = step.origins;
    wait.token = step.token;
    wait.reads = step.reads, wait.writes = step.writes;
    plan_.steps.push_back(std::move(step));
    plan_.steps.push_back(std::move(wait));
  }

  const Graph& graph_;
  const std::vector<Type>& output_types_;
  const schedule::Schedule& schedule_;
  const ArenaLayout& layout_;
  const schedule::GivenAway& given_away_;
  Remarks& all_remarks_;
  const NodeRemarks remarks_;
  std::set<schedule::ProductShape>& refused_;  // products with an epilogue that the library has no algorithm for
  plan::Plan plan_;
  std::unordered_map<const Node*, int> buffer_of_;
  std::unordered_set<int> written_;
  int tokens_ = 0;
  std::unordered_set<const Node*> becomes_output_;     // operands whose memory a started call makes a result
  std::unordered_set<const Node*> read_;               // by an operation, or by the caller
  std::unordered_map<const Node*, const Node*> over_;  // value, whose memory it takes
  std::vector<loop::LoopNest> nests_;
};

/// The masks that lie in memory as bits. Those in the handle's arena do so in every plan that shares it: it is decided
/// where the joint graph is cut.
std::unordered_set<const Node*> as_bits(const Graph& graph, const ArenaLayout& layout, const CompileOptions& options) {
  const auto in_arena = [&](int64_t slot) {
    return slot >= 0 && slot < static_cast<int64_t>(layout.arena_bits.size()) && layout.arena_bits[slot];
  };
  std::unordered_set<const Node*> bits;
  if (options.target.masks_as_bits) bits = schedule::masks_as_bits(graph, layout.arena_outputs_from);
  for (size_t i = 0; layout.arena_outputs_from >= 0 && i < graph.outputs.size(); ++i) {
    const int64_t slot = static_cast<int64_t>(i) - layout.arena_outputs_from;
    if (slot < 0) continue;
    const Node* mask = schedule::base_of(graph.outputs[i].value);
    require(!in_arena(slot) || bits.contains(mask), "a mask that the arena has as bits is seen by others than kernels");
    if (!in_arena(slot)) bits.erase(mask);
  }
  for (const Node* n : graph.live())
    if (n->op == Op::Input && layout.arena_inputs_from >= 0 &&
        in_arena(n->as<InputAttr>().index - layout.arena_inputs_from))
      bits.insert(n);
  require(bits.empty() || options.target.masks_as_bits, "masks are no bits on this target");
  return bits;
}

/// The padding that the graph's kernels may pass over, where that is worth it.
std::optional<schedule::PaddingProof> padding_of(const Graph& graph, const ArenaLayout& layout,
                                                 const CompileOptions& options, const Job& job) {
  // a measurement's numbers are no rows
  if (!passes_over_padding(options) || job.tuning) return std::nullopt;
  auto padding = schedule::PaddingProof::find(graph, layout.arena_unread, layout.padded);
  if (padding && padding->flops() < options.skip_hidden_flops) padding.reset();
  return padding;
}

/// Those of the layout whose memory can be a result's: the input is no result itself.
schedule::GivenAway given_away(const Graph& graph, const ArenaLayout& layout) {
  if (layout.given_away.empty()) return {};
  std::unordered_map<int64_t, const Node*> inputs;
  std::unordered_set<const Node*> results;
  for (const Node* n : graph.live())
    if (n->op == Op::Input) inputs[n->as<InputAttr>().index] = n;
  for (const Output& o : graph.outputs)
    if (o.value) results.insert(schedule::base_of(o.value));
  schedule::GivenAway pairs;
  for (const auto& [input, output] : layout.given_away) {
    const auto below = inputs.find(input);
    const Node* value = graph.outputs.at(output).value;
    if (below == inputs.end() || !value || results.contains(below->second)) continue;
    value = schedule::base_of(value);
    if (value->type.bytes() == below->second->type.bytes()) pairs.emplace_back(below->second, value);
  }
  return pairs;
}

}  // namespace

Graph padded(Graph graph, Pipeline& pipeline, int64_t vendor_flops) {
  const auto pad = [&](const Graph& g) {
    std::optional<Graph> longer = schedule::pad_products(g, vendor_flops);
    return longer ? std::move(*longer) : remove_dead(g);
  };
  return pipeline.run("pad_products", pad, std::move(graph));
}

bool passes_over_padding(const CompileOptions& options) { return options.skip_padding && options.target.skips_steps; }

plan::Plan with_memory(plan::Plan plan) {
  plan = schedule::order_steps(std::move(plan));
  plan::plan_memory(plan);
  return plan;
}

plan::Plan finished(plan::Plan plan) {
  plan = with_memory(std::move(plan));
  plan::verify(plan);
  if (dumping("plan")) dump(plan.name + ".plan.txt", plan::print(plan));
  return plan;
}

LoweredPlan lower_graph(Graph graph, Pipeline& pipeline, const ArenaLayout& layout, const CompileOptions& options,
                        const Job& job, Timing* timing) {
  Timing local;
  if (!timing) timing = &local;
  graph = optimize(std::move(graph), pipeline);
  std::vector<std::string> notes;
  Remarks remarks;
  // kernels that plans of several sizes share are not measured for one of these sizes
  if (job.tuning && job.tuning->framework && options.target.measures && !job.shared) {
    const FrameworkCalls calls = framework_calls(graph, layout, options, job, notes, &remarks);
    if (!calls.empty()) {
      graph = pipeline.run(
          "framework_calls", [&](const Graph& g) { return with_framework_calls(g, calls); }, std::move(graph));
      // movements around a call's result may cancel those that were around the contraction's
      graph = pipeline.run("simplify", simplify, std::move(graph));
    }
  }
  std::vector<Type> output_types;
  for (const Output& o : graph.outputs) output_types.push_back(o.value ? o.value->type : Type{});
  const std::vector<Remark> remarks_before = remarks.take();
  schedule::VendorLibrary library{.least_flops = vendor_flops(options)};
  const auto prepare = [&](const Graph& g) {
    return prepared(g, layout, nullptr, library, options.target.multiprocessors * cost::kSumThreads);
  };
  for (;;) {
    Graph ready = pipeline.run_needed("prepare", prepare, graph);
    const double start = now();
    const std::optional<schedule::PaddingProof> padding = padding_of(ready, layout, options, job);
    const schedule::PaddedRows rows = padding ? padding->make(ready) : schedule::PaddedRows();
    const schedule::GivenAway pairs = given_away(ready, layout);
    Remarks remarks;
    remarks.add(remarks_before);
    schedule::Schedule schedule = schedule::make_schedule(ready, options.target.fuses_chains, &remarks, pairs, library);
    schedule.bits = as_bits(ready, layout, options);
    std::vector<std::string> own_notes = notes;
    if (padding) {
      schedule::pass_over_padding(schedule, *padding, rows);
      const auto passing = std::ranges::count_if(
          schedule.groups, [](const schedule::Group& g) { return g.passes != schedule::Passes::Nothing; });
      own_notes.push_back(fmt::format("{} kernels pass over rows of padding", passing));
    }
    timing->schedule_seconds += now() - start;
    std::set<schedule::ProductShape> refused;
    LoweredPlan plan = PlanBuilder(ready, output_types, schedule, layout, pairs, remarks, refused)
                           .run(pipeline.graph_name(), std::move(own_notes), options, job, *timing);
    if (refused.empty()) {
      timing->passes.insert(timing->passes.end(), pipeline.records().begin(), pipeline.records().end());
      if (!library.refused.empty()) plan.plan.notes.push_back(kNoEpilogue);
      return plan;
    }
    // Each round asks it for less: what it has no algorithm for is a kernel of its own.
    library.refused.insert(refused.begin(), refused.end());
  }
}

LoweredPlan lower(Program program, const std::string& name, const CompileOptions& options, const Job& job,
                  Timing* timing, const GivenAway& given_away) {
  Pipeline pipeline(name, options.disabled_passes);
  ArenaLayout layout;
  layout.given_away = given_away;
  if (vendor_flops(options) > 0)
    program.graph = padded(optimize(std::move(program.graph), pipeline), pipeline, vendor_flops(options));
  return lower_graph(std::move(program.graph), pipeline, layout, options, job, timing);
}

plan::Plan compile(Program program, const std::string& name, const CompileOptions& options, const Job& job,
                   Timing* timing, const GivenAway& given_away) {
  return generate(lower(std::move(program), name, options, job, timing, given_away), options, job, timing);
}

}  // namespace trainc::compiler
