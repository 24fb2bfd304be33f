#include "schedule/groups.h"

#include <algorithm>
#include <set>

#include "cost/fusion.h"
#include "cost/loops.h"
#include "schedule/product_order.h"

namespace trainc::schedule {

int Groups::new_group(GroupKind kind, const Node* n, int64_t rows, int64_t columns) {
  groups_.push_back({kind, {n}, rows, columns});
  // a product's operands are packed by loops of their own
  work_.push_back({kind == GroupKind::Contract ? 0 : values_.work.at(n), is_sum(n)});
  return dag_.add(before(n));
}

Groups::Work Groups::work_of(const Node* n) const { return {values_.work.at(n), is_sum(n)}; }

bool Groups::fits(const Work& work, int64_t columns) const {
  const bool again =
      columns * size_of(DType::F32) > (fuse_chains_ ? cost::kScratchRow : cost::kSharedRows / cost::kShareOfSharedRows);
  return work.operations * (again ? std::max<int64_t>(1, work.sums) : 1) <= cost::kLargestKernel;
}

bool Groups::few(std::initializer_list<int> groups, int64_t elements, int64_t more) const {
  if (fuse_chains_) return true;  // a CPU's
  for (int g : groups)
    more += std::ranges::count_if(groups_[g].values, [&](const Node* v) { return v->type.numel() == elements; });
  return more <= cost::kMostMade;
}

std::vector<int> Groups::before(const Node* n) const {
  std::vector<int> groups;
  for (const Read& r : reads_.at(n))
    if (int g = group(r.value); g >= 0) groups.push_back(g);
  if (auto it = drawn_before_.find(n); it != drawn_before_.end()) groups.push_back(group(it->second));
  return groups;
}

int Groups::group(const Node* n) const {
  auto it = group_of_.find(n);
  return it == group_of_.end() ? -1 : find(it->second);
}

bool Groups::aligned(const Node* n, int g, int64_t rows, int64_t columns) const {
  const std::vector<Read>& any = reads_.at(n);
  if (std::none_of(any.begin(), any.end(), [&](const Read& r) { return group(r.value) == g; })) return true;
  for (const Read& r : reads_of(n, values_.nodes, rows, columns)) {
    if (group(r.value) != g) continue;
    if (r.access == Access::Other) return false;
    // Its elements are at other places than the contraction's.
    if (groups_[g].kind == GroupKind::Contract && is_written_in_order(r.value)) return false;
    const int64_t elements = r.access == Access::Row && columns > 1 ? rows : rows * columns;
    if (r.value->type.numel() != elements) return false;
  }
  return true;
}

int Groups::join(std::vector<int> groups) {
  std::sort(groups.begin(), groups.end());
  dag_.merge(groups);
  auto& values = groups_[groups[0]].values;
  for (size_t i = 1; i < groups.size(); ++i) {
    values.insert(values.end(), groups_[groups[i]].values.begin(), groups_[groups[i]].values.end());
    groups_[groups[i]].values.clear();
    work_[groups[0]] = work_[groups[0]] + work_[groups[i]];
  }
  std::sort(values.begin(), values.end(), [](const Node* x, const Node* y) { return x->id < y->id; });
  return groups[0];
}

void Groups::not_fused(const Node* n, int g, Refusal why) {
  if (remarks_) not_fused_.push_back({n, groups_[g].values[0], why});
}

void Groups::remark() const {
  std::set<std::pair<int, int>> reported;
  for (const auto& [n, other, why] : not_fused_) {
    const int g = group(n), p = group(other);
    if (g == p || !reported.emplace(std::min(g, p), std::max(g, p)).second) continue;
    // What lies in memory between the two.
    const Node* largest = nullptr;
    int64_t bytes = 0;
    for (const Read& r : reads_.at(n))
      if (group(r.value) == p) {
        bytes += r.value->type.bytes();
        if (!largest || r.value->type.bytes() > largest->type.bytes()) largest = r.value;
      }
    // Sums over leading axes have an input in common instead.
    remarks_.missed(missed::kFuse, why, n, largest ? largest : other,
                    largest || n->inputs.empty() ? bytes : n->in(0)->type.bytes());
  }
}

}  // namespace trainc::schedule
