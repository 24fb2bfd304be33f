#include "schedule/vendor_epilogue.h"

#include <algorithm>

#include "schedule/schedule.h"
#include "schedule/vendor_operands.h"

namespace trainc::schedule {
namespace {

bool is_half(DType d) { return d == DType::BF16 || d == DType::F16; }

bool in_memory(const Node* source) { return class_of(source->op) != OpClass::Leaf || source->op == Op::Input; }

/// Whether the library gives this dtype for these operands.
bool gives(const Node* contract, DType result) {
  const DType lhs = vendor_source(contract->in(0))->dtype(), rhs = vendor_source(contract->in(1))->dtype();
  return lhs == rhs && (result == lhs || (is_half(lhs) && result == DType::F32));
}

ProductShape shape_of(const Node* contract, const VendorEpilogue& e) {
  const Dims& shape = contract->shape();
  return {shape[0],
          shape[1],
          shape[2],
          contract->in(0)->shape()[2],
          vendor_source(contract->in(0))->dtype(),
          e.result->dtype(),
          e.bias != nullptr,
          e.addend != nullptr,
          e.sums != nullptr};
}

}  // namespace

const Node* VendorEpilogue::reduce() const {
  const Node* n = sums;
  while (n && n->op != Op::Reduce) n = n->in(0);
  return n;
}

void VendorEpilogues::begin(const Node* contract) {
  ending_at_[contract] = chains_.size();
  chains_.push_back({contract});
}

void VendorEpilogues::sum(const Node* reduce) {
  const Node* x = reduce->in(0);
  if (!are_leading(x->shape(), reduce->as<ReduceAttr>().axes)) return;
  const int64_t rows = reduce->type.numel();
  if (rows < 2 || x->type.numel() == 0 || reduce->as<ReduceAttr>().kind != ReduceKind::Sum) return;
  const Node* source = vendor_source(x);
  const std::optional<Dims> strides = strides_without_offset(x, {x->type.numel() / rows, rows});
  if (!strides || !in_memory(source)) return;
  for (size_t i = chains_.size(); i-- > 0;) {
    Chain& chain = chains_[i];
    const Dims& shape = chain.contract->shape();
    const int64_t k = chain.contract->in(0)->shape()[2];
    if (chain.reduce || shape[0] != 1 || k < 2 || k * rows != x->type.numel()) continue;
    for (int which = 0; which < 2; ++which) {
      const Node* operand = chain.contract->in(which);
      if (operand->shape()[1] != rows || vendor_source(operand) != source) continue;
      // The library sums what has its rows (in the contraction's terms) side by side.
      const std::optional<Dims> of = strides_without_offset(operand, {rows, k});
      if (!of || (*of)[1] != (*strides)[0] || (*of)[0] != 1 || (*strides)[1] != 1) continue;
      if (!has_plain_matrices(chain.contract->in(0)) || !has_plain_matrices(chain.contract->in(1))) continue;
      chain.reduce = chain.sums = reduce;
      chain.of_lhs = which == 0;
      sums_at_[reduce] = i;
      return;
    }
  }
}

/// Of the dtype that the result has; else they stay a kernel.
void VendorEpilogues::take_sums(const Chain& chain, VendorEpilogue& epilogue) const {
  const DType dtype = epilogue.result->dtype();
  if (!chain.reduce || epilogue.bias || !gives(chain.contract, dtype) || dtype == DType::F64) return;
  for (const Node* sums : {chain.sums, chain.reduce})
    if (sums->dtype() == dtype && !epilogue.sums) epilogue.sums = sums, epilogue.of_lhs = chain.of_lhs;
  if (refused_.contains(shape_of(chain.contract, epilogue))) epilogue.sums = nullptr;
}

VendorEpilogues::Chain* VendorEpilogues::chain_of(const Node* read) {
  const auto it = ending_at_.find(read);
  return it == ending_at_.end() || uses_.at(read) != 1 ? nullptr : &chains_[it->second];
}

bool VendorEpilogues::add(Chain& chain, const Node* sum, const Node* other) const {
  if (chain.rounded || chain.contract->dtype() != DType::F32) return false;
  VendorEpilogue stage = chain.stages.empty() ? VendorEpilogue{chain.contract} : chain.stages.back();
  stage.result = sum;
  const Node* source = vendor_source(other);
  if (!in_memory(source)) return false;
  const Dims& shape = chain.contract->shape();
  const int64_t rows = shape[0] * shape[1], columns = shape[2];
  const std::optional<Dims> strides = strides_without_offset(other, {rows, columns});
  if (!strides) return false;
  const bool columns_lie = columns == 1 || (*strides)[1] == 1;
  if (columns_lie && !stage.bias && rows > 1 && (*strides)[0] == 0) stage.bias = source;
  else if (columns_lie && !stage.addend && (rows == 1 || (*strides)[0] == columns)) stage.addend = source;
  else return false;
  chain.stages.push_back(stage);
  return true;
}

void VendorEpilogues::extend(const Node* n) {
  const auto longer = [&](const Node* read) { ending_at_[n] = ending_at_.at(read); };
  if (n->op == Op::Reduce) return sum(n);
  if (n->op == Op::Reshape || n->op == Op::Cast) {
    const auto at = sums_at_.find(n->in(0));
    if (at != sums_at_.end() && uses_.at(n->in(0)) == 1) {
      Chain& chain = chains_[at->second];
      if (n->op == Op::Reshape) sums_at_[n] = at->second;
      else if (is_half(n->dtype()) && chain.sums == chain.reduce && chain.reduce->dtype() == DType::F32) chain.sums = n;
      return;
    }
  }
  if (n->op == Op::Reshape) {
    if (chain_of(n->in(0))) longer(n->in(0));
  } else if (n->op == Op::Cast) {
    Chain* chain = chain_of(n->in(0));
    if (!chain || chain->rounded || !is_half(n->dtype()) || n->in(0)->dtype() != DType::F32) return;
    VendorEpilogue stage = chain->stages.empty() ? VendorEpilogue{chain->contract} : chain->stages.back();
    stage.result = n;
    chain->stages.push_back(stage);
    chain->rounded = true;
    longer(n->in(0));
  } else if (n->op == Op::Add && n->in(0) != n->in(1)) {
    // Of two products the later one adds the earlier one.
    Chain *first = chain_of(n->in(0)), *second = chain_of(n->in(1));
    const bool swapped = first && (!second || first->contract->id > second->contract->id);
    if (!first && !second) return;
    if (add(swapped ? *first : *second, n, n->in(swapped ? 1 : 0))) longer(n->in(swapped ? 0 : 1));
  }
}

std::unordered_map<const Node*, VendorEpilogue> VendorEpilogues::found(
    const std::unordered_set<const Node*>& made) const {
  std::unordered_map<const Node*, VendorEpilogue> epilogues;
  std::unordered_set<const Node*> results;  // of products: they are in memory, and what is added may be one of them
  for (const Chain& chain : chains_) {
    const auto there = [&](const Node* source) {
      return source->op == Op::Input || source->op == Op::Result || made.count(source) || results.count(source);
    };
    VendorEpilogue longest{chain.contract};
    for (const VendorEpilogue& stage : chain.stages) {
      const DType dtype = stage.result->dtype();
      const bool added = stage.bias || stage.addend;
      const bool fits = gives(chain.contract, dtype) && (!stage.bias || stage.bias->dtype() == dtype) &&
                        (!stage.addend || (stage.addend->dtype() == dtype && there(stage.addend))) &&
                        (!added || dtype != DType::F64) && !refused_.contains(shape_of(chain.contract, stage));
      if (fits) longest = stage;
      if (made.count(stage.result)) break;
    }
    take_sums(chain, longest);
    if (longest.result != chain.contract || longest.sums) epilogues[chain.contract] = longest;
    results.insert(longest.result);
  }
  return epilogues;
}

std::unordered_set<const Node*> sums_of_operands(const Graph& graph, const VendorLibrary& library) {
  if (library.least_flops == 0) return {};
  const std::vector<const Node*> live = graph.live();
  std::unordered_map<const Node*, int> uses;
  for (const Node* n : live)
    for (const Node* i : n->inputs) ++uses[i];
  for (const Output& o : graph.outputs)
    if (o.value) ++uses[o.value];
  VendorEpilogues epilogues(uses, library.refused);
  for (const Node* n : live) {
    if (for_vendor(n, library.least_flops)) epilogues.begin(n);
    else epilogues.extend(n);
  }
  std::unordered_set<const Node*> sums;
  for (const auto& [contract, epilogue] : epilogues.found({}))
    if (epilogue.sums) sums.insert(epilogue.reduce());
  return sums;
}

}  // namespace trainc::schedule
