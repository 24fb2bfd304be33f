#include "schedule/schedule.h"

#include "graph/remarks.h"
#include "schedule/groups.h"

namespace trainc::schedule {
namespace {

/// Values that are outputs, or that another group or the framework reads, or whose kernel can do no else.
void find_stored(const Graph& graph, const std::vector<const Node*>& live, const Groups& groups, Schedule& out) {
  for (const Output& o : graph.outputs)
    if (o.value) out.stored.insert(base_of(o.value));
  out.stored.insert(graph.also_wanted.begin(), graph.also_wanted.end());
  for (const Group& g : out.groups)
    for (const Node* n : g.values) {
      if (g.kind != GroupKind::Rows && n->op != Op::Extern && g.kind != GroupKind::Contract &&
          g.kind != GroupKind::MatmulChain)
        out.stored.insert(n);
      for (const Read& r : groups.read_by(n))
        if (out.values.count(r.value) && out.group_of.at(r.value) != out.group_of.at(n)) out.stored.insert(r.value);
    }
  for (const Node* n : live)
    if (n->op == Op::Extern)
      for (const Node* i : n->inputs) out.stored.insert(base_of(i));
}

}  // namespace

Schedule make_schedule(const Graph& graph, bool fuse_chains, Remarks* remarks, const GivenAway& given_away,
                       const VendorLibrary& library) {
  const NodeRemarks node_remarks(graph, "schedule", remarks);
  std::vector<const Node*> live = graph.live();
  Values values = choose_values(graph, live, library);
  const DrawnBefore drawn_before = order_draws(live);
  Groups groups(node_remarks, values, drawn_before, fuse_chains);
  for (const Node* n : live)
    if (values.nodes.count(n)) groups.place(n);
  groups.merge_columns();
  if (fuse_chains) groups.find_chains();
  groups.remark();

  Schedule out;
  for (int g : order_groups(groups, graph, given_away)) {
    for (const Node* n : groups.all()[static_cast<size_t>(g)].values)
      out.group_of[n] = static_cast<int>(out.groups.size());
    out.groups.push_back(groups.all()[static_cast<size_t>(g)]);
  }
  out.values = std::move(values.nodes);
  out.vendor_epilogues = std::move(values.vendor_epilogues);
  find_stored(graph, live, groups, out);
  return out;
}

}  // namespace trainc::schedule
