#include "compiler/codegen.h"
#include "compiler/lower_plan.h"
#include "compiler/step.h"
#include "passes/drop_undefined_inputs.h"
#include "passes/rewrite.h"
#include "schedule/cut.h"

namespace trainc::compiler {

struct JointGraph::Impl {
  std::string name;
  schedule::Cut cut;
  Homes forward, backward, deferred;
  int64_t primals = 0, tangents = 0;
};

JointGraph::JointGraph(frontend::Imported joint, int64_t primals, int64_t forward_outputs, const std::string& name, int64_t deferred_bytes,
                       bool streams)
    : impl_(std::make_unique<Impl>()) {
  impl_->name = name;
  impl_->primals = primals;
  impl_->tangents = joint.graph.input_count - primals;
  // Cut after the algebra: what the two halves share is one node by then.
  Pipeline pipeline(name + "_joint");
  Graph graph = joint.must_recompute.empty() ? optimize(std::move(joint.graph), pipeline) : std::move(joint.graph);
  impl_->cut = schedule::cut_joint(graph, primals, forward_outputs, joint.must_recompute, deferred_bytes, streams);
  Homes& homes = impl_->forward;
  for (const Type& t : impl_->cut.saved) {
    homes.arena_offsets.push_back(homes.saved_bytes);
    homes.saved_bytes += (t.bytes() + 63) / 64 * 64;
  }
  impl_->backward = impl_->deferred = homes;
  impl_->deferred.arena_inputs_from = 0;
  homes.arena_outputs_from = forward_outputs;
  impl_->backward.arena_inputs_from = static_cast<int64_t>(impl_->cut.saved_inputs.size()) + impl_->tangents;
}
JointGraph::~JointGraph() = default;

namespace {

plan::Plan forward_plan(const JointGraph::Impl& impl, const Homes& homes, const Options& options, Timing* timing) {
  return compile_graph(remove_dead(impl.cut.forward), impl.name + "_forward", homes, options, timing);
}

plan::Plan backward_plan(const JointGraph::Impl& impl, const Homes& homes, const std::vector<bool>& defined, const Options& options, Timing* timing) {
  require(static_cast<int64_t>(defined.size()) == impl.tangents, "backward: one flag a tangent is wanted");
  std::vector<int64_t> undefined;
  std::string name = impl.name + "_backward";
  for (size_t i = 0; i < defined.size(); ++i) {
    if (defined[i]) continue;
    undefined.push_back(static_cast<int64_t>(impl.cut.saved_inputs.size() + i));
    // A run of them is named by its ends: the name is a file's too.
    if (i > 0 && !defined[i - 1]) continue;
    size_t last = i;
    while (last + 1 < defined.size() && !defined[last + 1]) ++last;
    name += "_without" + std::to_string(i) + (last > i ? "to" + std::to_string(last) : "");
  }
  Graph graph = undefined.empty() ? remove_dead(impl.cut.backward) : drop_undefined_inputs(impl.cut.backward, undefined);
  return compile_graph(std::move(graph), name, homes, options, timing);
}

}  // namespace

plan::Plan JointGraph::forward(const Options& options, Timing* timing) const {
  return forward_plan(*impl_, impl_->forward, options, timing);
}
const std::vector<int64_t>& JointGraph::saved_inputs() const { return impl_->cut.saved_inputs; }
int64_t JointGraph::saved_bytes() const { return impl_->forward.saved_bytes; }

const std::vector<int64_t>& JointGraph::deferred_outputs() const { return impl_->cut.deferred_outputs; }
plan::Plan JointGraph::deferred(const Options& options, Timing* timing) const {
  return compile_graph(remove_dead(impl_->cut.deferred), impl_->name + "_deferred", impl_->deferred, options, timing);
}

plan::Plan JointGraph::backward(const std::vector<bool>& defined, const Options& options, Timing* timing) const {
  return backward_plan(*impl_, impl_->backward, defined, options, timing);
}

plan::Plan JointGraph::step(const std::vector<bool>& defined, const std::vector<plan::Foreach>& formulas, const std::vector<Update>& updates,
                            const Options& options, Timing* timing) const {
  require(impl_->cut.deferred_outputs.empty(), "a step defers nothing");
  Homes early = impl_->forward, late = impl_->backward;
  early.copies = late.copies = true;
  const plan::Plan first = forward_plan(*impl_, early, options, timing), second = backward_plan(*impl_, late, defined, options, timing);
  plan::Plan plan = join_step(first, second, impl_->cut.saved_inputs, impl_->primals, formulas, updates);
  plan.name = impl_->name + "_step";
  plan::plan_memory(plan);
  plan::verify(plan);
  if (dumping("plan")) dump(plan.name + ".plan.txt", plan::print(plan));
  return plan;
}

}  // namespace trainc::compiler
