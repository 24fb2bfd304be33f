// The whole way from a program, of whichever front end, to a plan: passes, schedule, loops, code. The one place that
// names all stages.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compiler/code_generator.h"
#include "compiler/options.h"
#include "cost/cutting.h"
#include "graph/program.h"
#include "loop/loop.h"
#include "passes/pipeline.h"
#include "plan/plan.h"
#include "schedule/cut.h"

namespace trainc::compiler {

struct LoweredPlan;

/// Kernels that the plans of one graph for different sizes share; each plan stays exact: its memory, its order, the
/// order of its sums. A kernel is code for the template of a nest; the numbers in which the nests of
/// different sizes differ are its parameters. For CPUs; safe between threads.
class SharedKernels {
 public:
  SharedKernels();
  ~SharedKernels();
  /// Notes the numbers of a sample's nests: those of a plan for other sizes, lowered with these kernels as the job's
  /// `shared`.
  void learn(const LoweredPlan&);
  struct Impl;
  const std::unique_ptr<Impl> impl;
};

/// A contraction's kernel, and the same with a call of the framework's own operator in the contraction's place.
struct FrameworkCandidate {
  std::string text;                             // both, as graphs
  std::string call;                             // "framework.convolution"
  std::function<plan::Plan()> ours, framework;  // what both read are their inputs; they give the same values
  std::function<plan::Plan()> tuned;            // ours, in the best of its variants
  // our contraction, of the operands that the call has, in the shape of its result
  std::function<plan::Plan()> alone;
};

/// tune="max": what measures, and who decides by it. The compiler itself runs nothing.
struct Tuning {
  /// Seconds of a kernel over all its iterations, on this machine's threads; `arguments`: bytes of each argument.
  std::function<double(const plan::Kernel&, int64_t extent, const std::vector<int64_t>& arguments)> seconds;
  /// Which of `variants` ways to make the kernel with this text (as variant 0 has it); `measure(variant)` gives its
  /// seconds, infinity for a repetition.
  std::function<int(const std::string& text, int variants, const std::function<double(int variant)>& measure)> choose;
  /// The library's algorithms for a product, and seconds of a product by the one that it names; `bytes`: of memory that
  /// it may use. Null: none is measured.
  std::function<std::vector<std::string>(const plan::Product&, int64_t bytes)> algorithms = {};
  std::function<double(const plan::Product&, int64_t bytes)> product_seconds = {};
  /// Which of these ways to compute what `text` says; "" where none could be measured.
  std::function<std::string(const std::string& text, const std::vector<std::string>& ways,
                            const std::function<double(int way)>& measure)>
      choose_way = {};
  /// Whether the framework's operator is to be called: a line for the plan's notes where it is, else "". Null: no
  /// calls.
  std::function<std::string(const FrameworkCandidate&)> framework = {};
};

/// Who helps a compile along. But for measured choices and shared kernels, nothing of it shows in a plan.
struct Job {
  int threads = 2;                  // kernels are compiled on so many
  SharedKernels* shared = nullptr;  // null: a kernel is made for this plan's sizes alone
  std::optional<Tuning> tuning = {};
  /// Whether the vendor's library has an algorithm for a product, epilogue included, that needs no more memory
  /// beside than so many bytes. Null: for each.
  std::function<bool(const plan::Product&, int64_t bytes)> library_has = {};
  /// Called with kernels done and kernels in all, from the calling thread; may throw to interrupt.
  std::function<void(int64_t done, int64_t total)> progress = {};
};

/// What compiling took, for explain.
struct Timing {
  std::vector<Pipeline::Record> passes;
  double schedule_seconds = 0, code_seconds = 0;  // scheduling and lowering; code generation
  // steps; kernels of the plan; of these, those that code was generated for
  int64_t kernels = 0, distinct_kernels = 0, compiled_kernels = 0;
};

/// A plan before there is code: what it computes and what memory it needs are known.
struct LoweredPlan {
  // its kernels: one without code a nest, step.kernel being the nest's number. Memory is not laid out yet
  plan::Plan plan;
  std::vector<loop::LoopNest> nests;
};

/// Pairs of an input that the caller gives away and an output of its dtype and shape, which may take its memory.
using GivenAway = std::vector<std::pair<int64_t, int64_t>>;

/// One graph (an inference graph, an optimizer's step), lowered.
LoweredPlan lower(Program, const std::string& name, const CompileOptions&, const Job& = {}, Timing* = nullptr,
                  const GivenAway& = {});
/// The plan with its kernels' code and its memory laid out, verified.
plan::Plan generate(LoweredPlan, const CompileOptions&, const Job& = {}, Timing* = nullptr);
/// `lower`, then `generate`.
plan::Plan compile(Program, const std::string& name, const CompileOptions&, const Job& = {}, Timing* = nullptr,
                   const GivenAway& = {});

/// An elementwise update over many tensors (an optimizer's step): inputs of shape [n] are taken tensor by tensor with
/// any number of elements, inputs of shape [] are scalars shared by all. Output i is written over input in_place[i]. On
/// a device: entered as a plan's kernel where it becomes part of one (step).
struct LoweredForeach {
  plan::Foreach foreach;  // its kernel has no code
  loop::LoopNest nest;
};
LoweredForeach lower_foreach(Program, const std::vector<int64_t>& in_place, const std::string& name,
                             const CompileOptions&);
plan::Foreach compile_foreach(Program, const std::vector<int64_t>& in_place, const std::string& name,
                              const CompileOptions&, Entry = Entry::Foreach);

/// The update of one parameter within a step.
struct Update {
  int64_t formula = 0;   // which of the formulas
  int64_t gradient = 0;  // which result of the backward it takes in
  // the formula's inputs as inputs of the plan; -1: the gradient. Those in place are overwritten
  std::vector<int64_t> inputs;
};

/// Bytes that a forward and a backward need beside what their caller holds: inputs and gradients.
struct Footprint {
  int64_t saved = 0;        // the arena between them; of a step none
  int64_t temporary = 0;    // the larger of the two plans' own arenas, which are one memory, and the threads' scratch
  int64_t results = 0;      // what the forward gives (deferred outputs aside) and, of a step, gradients that stay
  int64_t again_flops = 0;  // done again in the backward for want of memory
  int64_t total() const { return saved + temporary + results; }
};

/// A joint graph cut into a forward and a backward plan. Inputs: primals, then tangents, in the order of the program's.
/// Outputs: `forward_outputs` of the forward, then a gradient (or none) per primal.
/// Each plan can be had lowered or compiled; `step` as it is compiled only, of parts that can be had lowered.
class JointGraph {
 public:
  /// `one_plan`: forward and backward will be steps of one plan. `undefined`: inputs, tangents among them, that no
  /// backward will have; not of a graph with checkpoints.
  JointGraph(Program, int64_t primals, int64_t forward_outputs, const std::string& name, const CompileOptions&,
             int64_t deferred_bytes = cost::kDeferredBytes, bool one_plan = false,
             const std::vector<int64_t>& undefined = {});
  ~JointGraph();
  /// Cuts again, so that the footprint is at most `budget` with the fewest FLOPs done again; where none is, the one
  /// with the least footprint. The losses and gradients are the same to the bit. Gives the footprint. Before any plan
  /// is asked for.
  Footprint fit(int64_t budget, const CompileOptions&, const std::vector<plan::Foreach>& = {},
                const std::vector<Update>& = {});
  /// The same for `step`.
  Footprint fit_step(int64_t budget, const std::vector<bool>& defined, const std::vector<plan::Foreach>&,
                     const std::vector<Update>&, const CompileOptions&);
  /// What `fit` chose, as a number to give to `cut`; 0: nothing is done again for want of memory.
  double price() const;
  /// Whether a loss is made in chunks of rows (schedule/chunk.h).
  bool chunked() const;
  int64_t again_flops() const;
  void cut(double price);
  /// Of forward and backward as they are cut; tangents of anything but a loss, where there is one, count as undefined.
  /// With updates: of forward and `backward_step`. Of formulas, code is not looked at.
  Footprint footprint(const CompileOptions&, const std::vector<plan::Foreach>& = {},
                      const std::vector<Update>& = {}) const;

  LoweredPlan lower_forward(const CompileOptions&, const Job& = {}, Timing* = nullptr) const;
  plan::Plan forward(const CompileOptions&, const Job& = {}, Timing* = nullptr) const;
  const std::vector<int64_t>& saved_inputs() const;
  int64_t saved_bytes() const;

  /// Forward outputs that the forward plan leaves out (it gives none there), and the plan that computes all of them
  /// from the saved memory.
  const std::vector<int64_t>& deferred_outputs() const;
  LoweredPlan lower_deferred(const CompileOptions&, const Job& = {}, Timing* = nullptr) const;
  plan::Plan deferred(const CompileOptions&, const Job& = {}, Timing* = nullptr) const;

  /// The backward plan where tangents with defined[i] == false are zero without being read. Inputs: saved_inputs'
  /// tensors, then all tangents (undefined ones: nullptr). Outputs: a gradient per primal.
  /// `overwrites`: it may overwrite the arena, which is read for the last time then (it needs less memory so).
  /// `unmade`: gradients that are none, for no defined tangent leads to them.
  LoweredPlan lower_backward(const std::vector<bool>& defined, const CompileOptions&, const Job& = {},
                             Timing* = nullptr, bool overwrites = true, const std::vector<int64_t>& unmade = {}) const;
  plan::Plan backward(const std::vector<bool>& defined, const CompileOptions&, const Job& = {}, Timing* = nullptr,
                      bool overwrites = true, const std::vector<int64_t>& unmade = {}) const;

  /// Forward, backward and updates as one plan, which keeps nothing between calls. Inputs: the primals, all tangents,
  /// then the updates' own.
  /// Outputs: the forward's, then the backward's, of which consumed gradients are none.
  plan::Plan step(const std::vector<bool>& defined, const std::vector<plan::Foreach>& formulas,
                  const std::vector<Update>&, const CompileOptions&, const Job& = {}, Timing* = nullptr) const;
  /// Its forward and its backward.
  std::vector<LoweredPlan> lower_parts_of_step(const std::vector<bool>& defined, const CompileOptions&, const Job& = {},
                                               Timing* = nullptr) const;

  /// The backward and the updates as one plan, for who keeps forward and backward apart. Inputs: the primals, all
  /// tangents and the forward's outputs (nullptr for those that are not read), then the updates' own. Outputs: as the
  /// backward's; consumed gradients are none.
  plan::Plan backward_step(const std::vector<bool>& defined, const std::vector<plan::Foreach>& formulas,
                           const std::vector<Update>&, const CompileOptions&, const Job& = {}, Timing* = nullptr,
                           bool overwrites = true, const std::vector<int64_t>& unmade = {}) const;
  /// Its backward.
  LoweredPlan lower_backward_of_step(const std::vector<bool>& defined, const CompileOptions&, const Job& = {},
                                     Timing* = nullptr, bool overwrites = true,
                                     const std::vector<int64_t>& unmade = {}) const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainc::compiler
