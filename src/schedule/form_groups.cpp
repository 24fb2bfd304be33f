#include "schedule/groups.h"

#include <algorithm>
#include <set>

#include "cost/fusion.h"
#include "schedule/guards.h"
#include "schedule/product_order.h"

namespace trainc::schedule {
namespace {

/// Why no value is made in the kernel of such a group that it reads: nullptr for those that take some in.
Refusal closed(GroupKind kind) {
  switch (kind) {
    case GroupKind::Rows:
    case GroupKind::Contract: return nullptr;
    case GroupKind::Columns: return "a sum over leading axes is whole at its kernel's end alone";
    case GroupKind::MatmulChain: return "a matmul chain takes nothing in";
    case GroupKind::Scan: return "a scan is a kernel of its own";
    case GroupKind::Scatter: return "a scatter is a kernel of its own";
    case GroupKind::Concat: return "a concatenation is a kernel of its own";
    case GroupKind::Random: return "a draw is a step of its own";
    case GroupKind::Extern: return "the framework runs what it reads";
  }
  return nullptr;
}

}  // namespace

bool Groups::place_with_product(const Node* n) {
  const auto sums = values_.vendor_sums.find(n);
  if (sums == values_.vendor_sums.end()) return false;
  const VendorEpilogue& epilogue = values_.vendor_epilogues.at(sums->second);
  const int g = group(sums->second);
  // What is written beside the sums has their dtype.
  if (g < 0 || group(epilogue.result) != g) return false;
  if (n == epilogue.reduce() ? dag_.circular({g}, before(n)) : group(epilogue.reduce()) != g) return false;
  groups_[g].values.push_back(n);
  dag_.follow(g, before(n));
  group_of_[n] = g;
  return true;
}

void Groups::place(const Node* n) {
  reads_[n] = reads_of(n, values_.nodes, n->type.numel(), 1);
  if (place_with_product(n)) return;
  switch (n->op) {
    case Op::Contract: group_of_[n] = new_group(GroupKind::Contract, n); return;
    case Op::Scan: group_of_[n] = new_group(GroupKind::Scan, n); return;
    case Op::Scatter: group_of_[n] = new_group(GroupKind::Scatter, n); return;
    case Op::Random: group_of_[n] = new_group(GroupKind::Random, n); return;
    case Op::Extern: group_of_[n] = new_group(GroupKind::Extern, n); return;
    case Op::Result:
      group_of_[n] = group(n->in(0));
      groups_[group_of_[n]].values.push_back(n);
      return;
    case Op::Concat: group_of_[n] = new_group(GroupKind::Concat, n); return;
    case Op::Reduce:
      if (is_sum(n) && !is_trailing_reduce(n)) {
        group_of_[n] = new_group(GroupKind::Columns, n);
        return;
      }
      break;
    default: break;
  }
  place_in_rows(n);
}

void Groups::place_in_rows(const Node* n) {
  const bool sum = is_sum(n);
  const int64_t own_rows = n->type.numel();
  const int64_t own_columns = sum && own_rows ? n->in(0)->type.numel() / own_rows : 1;
  if (n->type.numel() == 0) {
    group_of_[n] = new_group(GroupKind::Rows, n, own_rows, own_columns);
    return;
  }
  // Candidates: groups of what it reads, the latest first; they are the nearest in time and memory.
  std::vector<int> candidates;
  for (const Read& r : reads_[n])
    if (int g = group(r.value); g >= 0 && std::find(candidates.begin(), candidates.end(), g) == candidates.end())
      candidates.push_back(g);
  std::sort(candidates.rbegin(), candidates.rend());
  // A row group is preferred to a contraction's epilogue: it loops over the rows already, and has their sums at hand.
  // But what is chosen by a flag may be passed over with the contraction that makes it.
  const GroupKind preferred = flag_of(n) ? GroupKind::Contract : GroupKind::Rows;
  std::stable_partition(candidates.begin(), candidates.end(), [&](int g) { return groups_[g].kind == preferred; });
  if (const auto of = values_.vendor_results.find(n); of != values_.vendor_results.end())
    std::stable_partition(candidates.begin(), candidates.end(), [&](int g) { return g == group(of->second); });
  int joined = -1;
  for (int g : candidates) {
    if (joined < 0) {
      if (const Refusal why = refuse_join(n, g, sum, own_rows, own_columns)) {
        not_fused(n, g, why);
        continue;
      }
      groups_[g].values.push_back(n);
      work_[g] = work_[g] + work_of(n);
      dag_.follow(g, before(n));
      group_of_[n] = joined = g;
    } else if (g != joined) {
      if (const Refusal why = unite(joined, g)) not_fused(n, g, why);
      else joined = find(joined);
    }
  }
  if (joined < 0) group_of_[n] = new_group(GroupKind::Rows, n, own_rows, own_columns);
}

Refusal Groups::refuse_join(const Node* n, int g, bool sum, int64_t own_rows, int64_t own_columns) {
  Group& to = groups_[g];
  if (const Refusal why = closed(to.kind)) return why;
  const auto result = values_.vendor_results.find(n);
  const Node* product = result == values_.vendor_results.end() ? nullptr : result->second;
  if (to.kind == GroupKind::Contract) {
    if (values_.vendor.count(to.values[0]) && to.values[0] != product)
      return "the vendor's library multiplies, adds and rounds, no more";
    if (sum) return "a sum of a contraction's result is no epilogue";
    if (n->type.numel() != to.values[0]->type.numel()) return kOtherSize;
    const bool in_order = is_copy(n) && product_of(n->in(0)) == to.values[0];
    if (!is_elementwise(n->op) && !in_order) return "a contraction's epilogue is elementwise";
    if (!fits(work_[g] + work_of(n), 1)) return kTooLarge;
    if (!in_order && !aligned(n, g, n->type.numel(), 1)) return kUnaligned;
    return dag_.circular({g}, before(n)) ? kCircle : nullptr;
  }
  Domain domain{to.rows, to.columns};
  const int64_t all = to.rows * to.columns;
  if (sum) {
    if (own_rows * own_columns != all) return kOtherSize;
    if (to.columns == 1) domain = {own_rows, own_columns};
    else if (to.columns != own_columns) return "their rows differ in length";
  } else if (n->type.numel() != all && n->type.numel() != to.rows) {
    return kOtherSize;
  }
  if (!fits(work_[g] + work_of(n), domain.columns)) return kTooLarge;
  if (!few({g}, all, n->type.numel() == all)) return kTooMany;
  if (!aligned(n, g, domain.rows, domain.columns)) return kUnaligned;
  if (domain.columns != to.columns)
    for (const Node* v : to.values)
      if (!aligned(v, g, domain.rows, domain.columns)) return kUnaligned;
  if (dag_.circular({g}, before(n))) return kCircle;
  to.rows = domain.rows, to.columns = domain.columns;
  return nullptr;
}

Refusal Groups::unite(int a, int b) {
  for (int g : {a, b})
    if (const Refusal why = closed(groups_[g].kind)) return why;
  if (groups_[a].kind != GroupKind::Rows || groups_[b].kind != GroupKind::Rows)
    return "a contraction's kernel takes in no other kernel";
  if (groups_[a].rows * groups_[a].columns != groups_[b].rows * groups_[b].columns) return kOtherSize;
  if (groups_[a].rows != groups_[b].rows || groups_[a].columns != groups_[b].columns)
    return "their rows differ in length";
  if (groups_[a].columns == 1) return "they would share nothing but the loop";
  if (!fits(work_[a] + work_[b], groups_[a].columns)) return kTooLarge;
  if (!few({a, b}, groups_[a].rows * groups_[a].columns)) return kTooMany;
  for (int g : {a, b})
    for (const Node* v : groups_[g].values)
      for (int other : {a, b})
        if (!aligned(v, other, groups_[a].rows, groups_[a].columns)) return kUnaligned;
  if (dag_.circular({a, b})) return kCircle;
  join({a, b});
  return nullptr;
}

void Groups::merge_columns() {
  std::vector<int> columns;
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g)
    if (find(g) == g && groups_[g].kind == GroupKind::Columns) columns.push_back(g);
  const auto summed = [](const Node* sum, const Read& r) { return r.value->type.numel() == sum->in(0)->type.numel(); };
  // of a value of the size of what is summed: in ascending order
  std::unordered_map<const Node*, std::vector<int>> readers;
  for (int g : columns)
    for (const Read& r : reads_[groups_[g].values[0]])
      if (auto& of = readers[r.value]; summed(groups_[g].values[0], r) && (of.empty() || of.back() != g))
        of.push_back(g);
  for (int a : columns) {
    if (find(a) != a) continue;
    std::set<int> near;
    for (const Read& r : reads_[groups_[a].values[0]]) {
      const std::vector<int>& of = readers[r.value];
      auto it = std::upper_bound(of.begin(), of.end(), a);
      for (size_t k = 0; k < cost::kNearSums && it != of.end(); ++k, ++it) near.insert(*it);
    }
    for (int b : near) {
      if (find(b) != b) continue;
      const Node *x = groups_[a].values[0], *y = groups_[b].values[0];
      if (x->in(0)->shape() != y->in(0)->shape() || x->as<ReduceAttr>().axes != y->as<ReduceAttr>().axes) {
        not_fused(y, a, "they sum the same tensor over different axes");
        continue;
      }
      if (groups_[a].values.size() >= cost::kMostSums) {
        not_fused(y, a, "a kernel makes four sums over leading axes at most");
        continue;
      }
      bool chained = false;  // chained: the second needs the first one's result
      for (const Node* n : groups_[b].values)
        for (const Read& r : reads_[n]) chained = chained || group(r.value) == a;
      for (const Node* n : groups_[a].values)
        for (const Read& r : reads_[n]) chained = chained || group(r.value) == b;
      if (chained) continue;
      if (!fits(work_[a] + work_[b], 1)) not_fused(y, a, kTooLarge);
      else if (dag_.circular({a, b})) not_fused(y, a, kCircle);
      else join({a, b});
    }
  }
}

}  // namespace trainc::schedule
