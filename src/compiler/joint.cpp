#include <algorithm>
#include <cmath>
#include <limits>

#include "compiler/lower_plan.h"
#include "compiler/step.h"
#include "cost/cutting.h"
#include "passes/drop_undefined_inputs.h"
#include "passes/join_products.h"
#include "passes/rewrite.h"
#include "plan/live.h"
#include "schedule/chunk.h"
#include "schedule/cut.h"

namespace trainc::compiler {

namespace {
int64_t contraction_flops(const Graph& graph) {
  int64_t flops = 0;
  for (const Node* n : graph.live())
    if (n->op == Op::Contract) flops += schedule::flops_of(n);
  return flops;
}

/// Primals of more than `most` bytes, and those that are multiplied, are read where they are, now and late, which is
/// the same then.
Graph without_large_late(const Graph& graph, int64_t most) {
  const std::unordered_set<int64_t> multiplied = schedule::multiplied_inputs(graph);
  return rewrite(graph, [&](Builder& b, const Node* from, const std::vector<const Node*>& inputs) {
    const bool late = from->op == Op::Input && from->as<InputAttr>().late;
    if (!late || (from->type.bytes() <= most && !multiplied.contains(from->as<InputAttr>().index)))
      return with_inputs(b, from, inputs);
    return b.input(from->as<InputAttr>().index, from->type, from->as<InputAttr>().strides);
  });
}
}  // namespace

struct JointGraph::Impl {
  std::string name;
  Graph graph;
  std::vector<const Node*> must_recompute;
  int64_t late_draws_from = 0;
  int64_t forward_outputs = 0, deferred_bytes = 0, vendor_flops = 0, copied_bytes = 0;
  bool fuse_chains = true, masks_as_bits = true, chunked = false;
  double price = 0;
  std::optional<schedule::PaddingProof> padding;
  schedule::Cut cut;
  ArenaLayout forward, backward, deferred;
  int64_t primals = 0, tangents = 0;
  int64_t free_flops = 0;       // of both halves as they are first cut
  std::vector<Remark> remarks;  // of the joint graph: reported with the forward plan's
  std::vector<Pipeline::Record> passes;

  int64_t flops() const { return contraction_flops(cut.forward) + contraction_flops(cut.backward); }
  void cut_at(double at) {
    price = at;
    cut = schedule::cut_joint(graph, primals, forward_outputs, must_recompute, deferred_bytes, fuse_chains,
                              masks_as_bits, price, late_draws_from, vendor_flops, copied_bytes);
    ArenaLayout layout;
    layout.arena_bits = cut.saved_as_bits;
    for (size_t i = 0; i < cut.saved.size(); ++i) {
      const Type& t = cut.saved[i];
      layout.arena_offsets.push_back(layout.saved_bytes);
      layout.saved_bytes += plan::aligned(cut.saved_as_bits[i] ? bytes_of_bits(t.numel()) : t.bytes());
    }
    forward = backward = deferred = layout;
    deferred.arena_inputs_from = 0;
    forward.arena_outputs_from = forward_outputs;
    // What the backward computes again from rows of zeros is another number than what the forward took a maximum of.
    const bool tell = padding && price == 0;
    for (const Node* n : cut.saved_nodes)
      forward.arena_unread.push_back(tell ? padding->unread(n) : schedule::Unread());
    if (padding) forward.padded.samples = padding->samples(), forward.padded.tokens = padding->tokens();
    backward.arena_inputs_from = static_cast<int64_t>(cut.saved_inputs.size()) + tangents;
  }
};

JointGraph::JointGraph(Program joint, int64_t primals, int64_t forward_outputs, const std::string& name,
                       const CompileOptions& options, int64_t deferred_bytes, bool one_plan,
                       const std::vector<int64_t>& undefined)
    : impl_(std::make_unique<Impl>()) {
  impl_->name = name;
  impl_->primals = primals;
  impl_->forward_outputs = forward_outputs;
  impl_->deferred_bytes = deferred_bytes;
  impl_->copied_bytes = one_plan ? 0 : cost::kCopiedPrimal;  // of one plan, nobody writes in between
  impl_->fuse_chains = options.target.fuses_chains;
  impl_->masks_as_bits = options.target.masks_as_bits;
  impl_->vendor_flops = options.target.has_vendor_products ? options.vendor_product_flops : 0;
  impl_->tangents = joint.graph.input_count - primals;
  if (joint.must_recompute.empty()) joint.graph = without_large_late(joint.graph, impl_->copied_bytes);
  // Cut after the algebra: what the two halves share is one node by then.
  Pipeline pipeline(name + "_joint", options.disabled_passes);
  require(undefined.empty() || joint.must_recompute.empty(), "tangents are dropped of a graph with checkpoints");
  if (!undefined.empty())
    joint.graph = pipeline.run_needed(
        "drop_undefined_inputs", [&](const Graph& g) { return drop_undefined_inputs(g, undefined); }, joint.graph);
  impl_->must_recompute = joint.must_recompute;
  impl_->late_draws_from = joint.late_draws_from;
  // With checkpoints of the user's the graph is cut as it is: passes might merge away the nodes that he marked.
  impl_->graph = joint.must_recompute.empty() ? optimize(std::move(joint.graph), pipeline) : std::move(joint.graph);
  // Here alone: a loss in chunks of rows has a product for each of them, which are to stay apart.
  if (joint.must_recompute.empty())
    impl_->graph =
        pipeline.run("join_products", [](const Graph& g) { return join_products(g); }, std::move(impl_->graph));
  const schedule::Chunks chunks{
      .rows = options.loss_chunk_rows,
      .worth = options.loss_chunk_bytes,
      .skip_flops = options.target.skips_steps ? options.skip_hidden_flops : std::numeric_limits<int64_t>::max(),
      .one_plan = one_plan};
  if (options.target.chunks_losses && joint.must_recompute.empty()) {
    Remarks remarks;
    impl_->graph = pipeline.run(
        "chunk_rows",
        [&](const Graph& g) {
          std::optional<Graph> cut = schedule::chunk_rows(g, primals, chunks, &remarks);
          impl_->chunked = cut.has_value();
          return cut ? std::move(*cut) : remove_dead(g);
        },
        std::move(impl_->graph));
    impl_->remarks = remarks.take();
  }
  if (impl_->vendor_flops > 0 && joint.must_recompute.empty())
    impl_->graph = padded(std::move(impl_->graph), pipeline, impl_->vendor_flops);
  if (passes_over_padding(options) && joint.must_recompute.empty())
    impl_->padding = schedule::PaddingProof::find(impl_->graph);
  if (impl_->padding && !impl_->padding->only_one()) impl_->padding.reset();
  impl_->passes = pipeline.records();
  impl_->cut_at(0);
  impl_->free_flops = impl_->flops();
}
JointGraph::~JointGraph() = default;

namespace {

LoweredPlan forward_of(const JointGraph::Impl& impl, const ArenaLayout& layout, const CompileOptions& options,
                       const Job& job, Timing* timing) {
  Pipeline pipeline(impl.name + "_forward", options.disabled_passes);
  LoweredPlan lowered = lower_graph(pipeline.run_needed("remove_dead", remove_dead, impl.cut.forward), pipeline, layout,
                                    options, job, timing);
  lowered.plan.remarks = together(impl.remarks, lowered.plan.remarks);
  if (timing) timing->passes.insert(timing->passes.begin(), impl.passes.begin(), impl.passes.end());
  return lowered;
}

LoweredPlan backward_of(const JointGraph::Impl& impl, const ArenaLayout& layout, const std::vector<bool>& defined,
                        const std::vector<int64_t>& unmade, const CompileOptions& options, const Job& job,
                        Timing* timing, const std::string& kind = "backward") {
  require(static_cast<int64_t>(defined.size()) == impl.tangents, "backward: one flag a tangent is wanted");
  std::vector<int64_t> undefined;
  std::string name = impl.name + "_" + kind;
  for (size_t i = 0; i < defined.size(); ++i) {
    if (defined[i]) continue;
    undefined.push_back(static_cast<int64_t>(impl.cut.saved_inputs.size() + i));
    // A run of them is named by its ends: the name is a file's too.
    if (i > 0 && !defined[i - 1]) continue;
    size_t last = i;
    while (last + 1 < defined.size() && !defined[last + 1]) ++last;
    name += "_without" + std::to_string(i) + (last > i ? "to" + std::to_string(last) : "");
  }
  Pipeline pipeline(name, options.disabled_passes);
  Graph graph = pipeline.run_needed(
      "drop_undefined_inputs", [&](const Graph& g) { return drop_undefined_inputs(g, undefined); }, impl.cut.backward);
  for (int64_t gradient : unmade) graph.outputs.at(gradient).value = nullptr;
  return lower_graph(std::move(graph), pipeline, layout, options, job, timing);
}

int64_t results_of(const plan::Plan& plan) {
  int64_t bytes = 0;
  for (int b : plan.outputs)
    if (b >= 0 && plan.buffers[b].space == plan::MemorySpace::Output) bytes += plan.buffers[b].bytes;
  return bytes;
}

/// What both halves do more than where no price is paid (what matmul chains compute again anyway is not counted).
int64_t again(const JointGraph::Impl& impl) { return impl.flops() - impl.free_flops; }

Footprint footprint_of(const JointGraph::Impl& impl, const plan::Plan& forward, const plan::Plan& backward,
                       int workers) {
  const int64_t scratch = workers * std::max(plan::scratch_bytes(forward), plan::scratch_bytes(backward));
  return {.saved = forward.saved_bytes,
          .temporary = std::max(forward.temp_bytes, backward.temp_bytes) + scratch,
          .results = results_of(forward),
          .again_flops = again(impl)};
}

/// Which tangents to take for defined: those of losses (outputs that are a number) where there are some, else all.
std::vector<bool> of_a_loss(const JointGraph::Impl& impl) {
  std::vector<bool> loss(impl.tangents, false);
  for (const Node* n : impl.graph.live())
    if (n->op == Op::Input && n->as<InputAttr>().index >= impl.primals)
      loss[n->as<InputAttr>().index - impl.primals] = n->type.numel() == 1;
  return std::find(loss.begin(), loss.end(), true) == loss.end() ? std::vector<bool>(impl.tangents, true) : loss;
}

/// Forward and backward (`JointGraph::lower_parts_of_step`) and the updates as one plan.
plan::Plan joined(const JointGraph::Impl& impl, const plan::Plan& forward, const plan::Plan& backward,
                  const std::vector<plan::Foreach>& formulas, const std::vector<Update>& updates) {
  plan::Plan plan = join(forward, backward, impl.cut.saved_inputs, impl.primals);
  plan.name = impl.name + "_step";
  return consume(std::move(plan), forward.output_count, formulas, updates);
}

/// The backward (`JointGraph::lower_backward_of_step`) and the updates as one plan.
plan::Plan with_updates(const JointGraph::Impl& impl, plan::Plan plan, const std::vector<plan::Foreach>& formulas,
                        const std::vector<Update>& updates) {
  const int64_t primals = impl.primals, held = static_cast<int64_t>(impl.cut.saved_inputs.size());
  for (plan::Buffer& b : plan.buffers) {
    if (b.space != plan::MemorySpace::Input) continue;
    const int64_t from = b.index < held ? impl.cut.saved_inputs[b.index] : -1;  // -1: a tangent
    b.index = from < 0 ? primals + b.index - held : from < primals ? from : impl.tangents + from;
    b.name = "in" + std::to_string(b.index);
  }
  plan.input_count = primals + impl.tangents + impl.forward_outputs;
  return consume(std::move(plan), 0, formulas, updates);
}

/// Finds a cut with few FLOPs done again whose footprint fits, by lowering the price; where none fits, the one with the
/// least footprint. More FLOPs do not always mean less memory: what is computed again in one piece is in memory
/// together.
template <class F> class Search {
 public:
  Search(JointGraph::Impl& impl, int64_t budget, const F& footprint)
      : impl_(impl), budget_(budget), footprint_(footprint) {}

  Footprint run() {
    impl_.cut_at(0);
    best_ = footprint_();
    // At prices above `dearest` no contraction is cheap enough to be computed again; below `cheapest` every one is, and
    // so is what it reads.
    double dearest = 0, cheapest = 1;
    for (const Node* n : impl_.graph.live()) {
      if (n->op != Op::Contract || schedule::flops_of(n) == 0) continue;
      const double ratio =
          static_cast<double>(n->type.bytes() + plan::kAlignment) / static_cast<double>(schedule::flops_of(n));
      dearest = std::max(dearest, cost::kDearest * ratio), cheapest = std::min(cheapest, ratio / cost::kCheapest);
    }
    if (best_.total() > budget_ && dearest > 0) {
      const int64_t most = impl_.forward.saved_bytes, least = saved_at(cheapest);
      if (between(dearest, most, cheapest, least, cost::kPriceStep, budget_)) raise();
      else between(dearest, most, cheapest, least, cost::kFinePriceStep, std::numeric_limits<int64_t>::max());
    }
    impl_.cut_at(price_);
    return best_;
  }

 private:
  int64_t saved_at(double price) {
    impl_.cut_at(price);
    return impl_.forward.saved_bytes;
  }

  /// Looks at the cuts from the dearer price to the cheaper, in steps of a factor, but for those that save more than
  /// `at_most`: true where one fits.
  bool between(double high, int64_t saved_high, double low, int64_t saved_low, double step, int64_t at_most) {
    if (saved_high == saved_low) return false;
    if (high / low < step) {
      if (saved_low > at_most || saved_low >= best_.total()) return false;
      impl_.cut_at(low);
      const Footprint found = footprint_();
      if (found.total() < best_.total()) best_ = found, price_ = low, too_dear_ = high;
      return best_.total() <= budget_;
    }
    const double middle = std::sqrt(high * low);
    const int64_t saved = saved_at(middle);
    return between(high, saved_high, middle, saved, step, at_most) ||
           between(middle, saved, low, saved_low, step, at_most);
  }

  /// The price that was found, as high as it still fits: fewer FLOPs are done again so.
  void raise() {
    for (int i = 0; i < 4; ++i) {
      const double middle = std::sqrt(price_ * too_dear_);
      impl_.cut_at(middle);
      const Footprint found =
          impl_.forward.saved_bytes > budget_ ? Footprint{.saved = impl_.forward.saved_bytes} : footprint_();
      if (found.total() <= budget_) best_ = found, price_ = middle;
      else too_dear_ = middle;
    }
  }

  JointGraph::Impl& impl_;
  const int64_t budget_;
  const F& footprint_;
  Footprint best_;
  double price_ = 0, too_dear_ = 0;
};

}  // namespace

double JointGraph::price() const { return impl_->price; }
bool JointGraph::chunked() const { return impl_->chunked; }
int64_t JointGraph::again_flops() const { return again(*impl_); }
void JointGraph::cut(double price) { impl_->cut_at(price); }

Footprint JointGraph::footprint(const CompileOptions& options, const std::vector<plan::Foreach>& formulas,
                                const std::vector<Update>& updates) const {
  const std::vector<bool> defined = of_a_loss(*impl_);
  plan::Plan late = updates.empty() ? lower_backward(defined, options).plan
                                    : with_updates(*impl_, with_memory(lower_backward_of_step(defined, options).plan),
                                                   formulas, updates);
  return footprint_of(*impl_, with_memory(lower_forward(options).plan), with_memory(std::move(late)), options.workers);
}

Footprint JointGraph::fit(int64_t budget, const CompileOptions& options, const std::vector<plan::Foreach>& formulas,
                          const std::vector<Update>& updates) {
  const auto now = [&] { return footprint(options, formulas, updates); };
  return Search(*impl_, budget, now).run();
}

Footprint JointGraph::fit_step(int64_t budget, const std::vector<bool>& defined,
                               const std::vector<plan::Foreach>& formulas, const std::vector<Update>& updates,
                               const CompileOptions& options) {
  const auto now = [&] {
    std::vector<LoweredPlan> parts = lower_parts_of_step(defined, options);
    const plan::Plan plan = with_memory(joined(*impl_, with_memory(std::move(parts[0].plan)),
                                               with_memory(std::move(parts[1].plan)), formulas, updates));
    Footprint f;
    f.temporary = plan.temp_bytes + options.workers * plan::scratch_bytes(plan);
    f.results = results_of(plan);
    f.again_flops = again(*impl_);
    return f;
  };
  return Search(*impl_, budget, now).run();
}

const std::vector<int64_t>& JointGraph::saved_inputs() const { return impl_->cut.saved_inputs; }
int64_t JointGraph::saved_bytes() const { return impl_->forward.saved_bytes; }
const std::vector<int64_t>& JointGraph::deferred_outputs() const { return impl_->cut.deferred_outputs; }

LoweredPlan JointGraph::lower_forward(const CompileOptions& options, const Job& job, Timing* timing) const {
  return forward_of(*impl_, impl_->forward, options, job, timing);
}
plan::Plan JointGraph::forward(const CompileOptions& options, const Job& job, Timing* timing) const {
  return generate(lower_forward(options, job, timing), options, job, timing);
}

LoweredPlan JointGraph::lower_deferred(const CompileOptions& options, const Job& job, Timing* timing) const {
  Pipeline pipeline(impl_->name + "_deferred", options.disabled_passes);
  return lower_graph(pipeline.run_needed("remove_dead", remove_dead, impl_->cut.deferred), pipeline, impl_->deferred,
                     options, job, timing);
}
plan::Plan JointGraph::deferred(const CompileOptions& options, const Job& job, Timing* timing) const {
  return generate(lower_deferred(options, job, timing), options, job, timing);
}

LoweredPlan JointGraph::lower_backward(const std::vector<bool>& defined, const CompileOptions& options, const Job& job,
                                       Timing* timing, bool overwrites, const std::vector<int64_t>& unmade) const {
  ArenaLayout layout = impl_->backward;
  layout.overwrites = overwrites;
  return backward_of(*impl_, layout, defined, unmade, options, job, timing);
}
plan::Plan JointGraph::backward(const std::vector<bool>& defined, const CompileOptions& options, const Job& job,
                                Timing* timing, bool overwrites, const std::vector<int64_t>& unmade) const {
  return generate(lower_backward(defined, options, job, timing, overwrites, unmade), options, job, timing);
}

std::vector<LoweredPlan> JointGraph::lower_parts_of_step(const std::vector<bool>& defined,
                                                         const CompileOptions& options, const Job& job,
                                                         Timing* timing) const {
  require(impl_->cut.deferred_outputs.empty(), "a step defers nothing");
  ArenaLayout early = impl_->forward, late = impl_->backward;
  early.copies = late.copies = late.overwrites = true;
  std::vector<LoweredPlan> parts;
  parts.push_back(forward_of(*impl_, early, options, job, timing));
  parts.push_back(backward_of(*impl_, late, defined, {}, options, job, timing));
  return parts;
}
plan::Plan JointGraph::step(const std::vector<bool>& defined, const std::vector<plan::Foreach>& formulas,
                            const std::vector<Update>& updates, const CompileOptions& options, const Job& job,
                            Timing* timing) const {
  std::vector<LoweredPlan> parts = lower_parts_of_step(defined, options, job, timing);
  const plan::Plan first = generate(std::move(parts[0]), options, job, timing),
                   second = generate(std::move(parts[1]), options, job, timing);
  return finished(joined(*impl_, first, second, formulas, updates));
}

LoweredPlan JointGraph::lower_backward_of_step(const std::vector<bool>& defined, const CompileOptions& options,
                                               const Job& job, Timing* timing, bool overwrites,
                                               const std::vector<int64_t>& unmade) const {
  ArenaLayout late = impl_->backward;
  late.copies = true;
  late.overwrites = overwrites;
  return backward_of(*impl_, late, defined, unmade, options, job, timing, "backward_step");
}
plan::Plan JointGraph::backward_step(const std::vector<bool>& defined, const std::vector<plan::Foreach>& formulas,
                                     const std::vector<Update>& updates, const CompileOptions& options, const Job& job,
                                     Timing* timing, bool overwrites, const std::vector<int64_t>& unmade) const {
  plan::Plan backward =
      generate(lower_backward_of_step(defined, options, job, timing, overwrites, unmade), options, job, timing);
  return finished(with_updates(*impl_, std::move(backward), formulas, updates));
}

}  // namespace trainc::compiler
