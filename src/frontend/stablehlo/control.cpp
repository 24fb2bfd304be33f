// Calls, loops and choices: functions are inlined, loops unrolled where their trips are known, and not too many.
#include <unordered_set>

#include "cost/unrolling.h"
#include "frontend/stablehlo/table.h"

namespace trainc::frontend::stablehlo {
namespace {

Values call(const Call& c, const char* attr) { return c.importer.run(c.importer.function(c.text(attr)), c.in); }

/// A loop is unrolled as long as its condition is known, which is counted with integers that depend on no argument; one
/// that asks an argument whether it goes on, or makes too many trips, runs in the plan.
Values loop(const Call& c) {
  Values carried = c.in, first;
  const size_t before = c.b.graph.nodes().size();
  for (;;) {
    const auto made = static_cast<int64_t>(c.b.graph.nodes().size() - before);
    if (made > cost::kMostUnrolled) return c.importer.loop(c, first[0], made);
    const Values condition = c.importer.run(c.region(0), carried);
    c.need(condition.size() == 1, "its condition is not one value");
    if (first.empty()) first = condition;
    const auto goes_on = c.known.integer(condition[0].node);
    if (!goes_on) return c.importer.loop(c, first[0], 0);
    if (!*goes_on) return carried;
    carried = c.importer.run(c.region(1), carried);
    for (Value& v : carried)
      if (v.node->type.shape.empty() && v.node->op != Op::Constant)
        if (const auto value = c.known.integer(v.node)) v = {&c.b, c.b.constant_int(v.dtype(), *value)};
  }
}

/// The branch of a known index is taken; else all are computed, and the results chosen between: but for loops of
/// branches that are not taken. An index outside is the last one's.
Values choice(const Call& c) {
  const Value index = c.operand(0);
  const auto count = static_cast<int64_t>(c.regions.size());
  c.need(count > 0, "has no branches");
  const auto last = [&](int64_t i) { return i < 0 || i >= count ? count - 1 : i; };
  // Of `if` the first branch is that of true.
  const bool truth = index.dtype() == DType::Bool;
  if (const auto known = c.known.integer(index.node))
    return c.importer.run(c.region(static_cast<size_t>(truth ? !*known : last(*known))), {});
  std::vector<Value> taken;
  Value others;  // whether one before the last is
  for (int64_t i = 0; i < count - 1; ++i) {
    taken.push_back(truth ? index : index == static_cast<double>(i));
    others = others.node ? others | taken.back() : taken.back();
  }
  taken.push_back(others.node ? !others : Value{&c.b, c.b.constant_int(DType::Bool, 1)});
  const auto branch = [&](int64_t i) {
    return c.importer.branch(c.region(static_cast<size_t>(i)), taken[static_cast<size_t>(i)]);
  };
  Values results = branch(count - 1);
  for (int64_t i = count - 2; i >= 0; --i) {
    const Values here = branch(i);
    for (size_t k = 0; k < results.size(); ++k)
      results[k] = formulas::where(taken[static_cast<size_t>(i)], here.at(k), results[k]);
  }
  return results;
}

Values same(const Call& c) { return c.in; }

/// TensorFlow says the size of what could have another one; where it could not, nothing is said.
Values set_dimension_size(const Call& c) {
  const auto size = c.known.integer(c.operand(1).node);
  c.need(size && *size == c.operand(0).size(c.integer("dimension")),
         "the size of its result is known at run time alone");
  return {c.operand(0)};
}

/// Calls that say where values are to lie.
Values custom_call(const Call& c) {
  static const std::unordered_set<std::string> identities = {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape",
                                                             "annotate_device_placement", "LayoutConstraint"};
  const std::string target = c.text("call_target_name");
  if (!identities.contains(target)) c.fail("trainc has nothing for the call of '" + target + "'");
  return same(c);
}

}  // namespace

void add_control(Table& t) {
  t.add({"func.call"}, [](const Call& c) { return call(c, "callee"); });
  t.add({"stablehlo.composite"}, [](const Call& c) { return call(c, "decomposition"); });
  t.add({"stablehlo.while"}, loop);
  t.add({"stablehlo.case", "stablehlo.if"}, choice);
  // mhlo.copy: XLA's own modules have it where a result has memory of its own.
  t.add({"stablehlo.optimization_barrier", "sdy.sharding_constraint", "mhlo.copy"}, same);
  t.add({"stablehlo.custom_call"}, custom_call);
  t.add({"stablehlo.set_dimension_size"}, set_dimension_size);
}

}  // namespace trainc::frontend::stablehlo
