// Contractions: operands read through their movements, epilogue values stored from the tile.
#include <algorithm>
#include <numeric>

#include "cost/blocking.h"
#include "cost/memory.h"
#include "loop/substitute.h"
#include "lower/contract.h"
#include "lower/device_contraction.h"
#include "lower/domain.h"
#include "lower/kernels.h"
#include "schedule/product_order.h"
#include "schedule/vendor_product.h"
#include "support/division.h"

namespace trainc::lower {

using loop::block;

namespace {

bool is_widened(const Expr& e) {
  return e->kind == loop::ExprKind::Apply && e->op == Op::Cast && e->dtype == DType::F32 &&
         e->args[0]->dtype == DType::BF16;
}

// The bf16 expression that an f32 one was made from: its value is one of bf16.
Expr in_bf16(const Expr& e) { return is_widened(e) ? e->args[0] : loop::cast(e, DType::BF16); }

bool is_division(const Expr& e) {
  return e->kind == loop::ExprKind::Apply && (e->op == Op::FloorDiv || e->op == Op::Mod) &&
         e->args[1]->kind == loop::ExprKind::Int;
}
bool mentions_undivided(const Expr& e, int var) {
  if (is_division(e)) return e->op == Op::Mod && mentions_undivided(e->args[0], var);
  return (e->kind == loop::ExprKind::Var && e->id == var) ||
         std::any_of(e->args.begin(), e->args.end(), [&](const Expr& a) { return mentions_undivided(a, var); });
}
/// The greatest common divisor of what `var` is divided by within `e`; 0 where it is not. A quotient's own division
/// counts for what is made of it: of (k / 64) % 3, the 64.
int64_t divided_by(const Expr& e, int var) {
  int64_t d = 0;
  if (is_division(e) && mentions_undivided(e->args[0], var)) d = e->args[1]->int_value;
  for (const Expr& a : e->args) d = std::gcd(d, divided_by(a, var));
  return d;
}

/// Where a value of a contraction's epilogue lies whose element is made with the contraction's at `position`.
Expr place_of(const Node* value, const Expr& position) {
  if (!schedule::is_written_in_order(value)) return position;
  const Node* permute = value->in(0);
  Index from = Index::at_position(permute->in(0)->shape(), position);
  std::vector<Expr> axes;
  for (int64_t axis : permute->as<AxesAttr>().axes) axes.push_back(from.coordinates()[static_cast<size_t>(axis)]);
  return Index::at_axes(permute->shape(), std::move(axes)).linear();
}

/// Whether this is x . x^T. By FMAs it has the same bits on both sides of its diagonal, as eager's has; in parts, whose
/// order is not its own mirror image, it would not.
bool mirrored(const ContractionSpec& spec) {
  const auto element = [](const auto& operand) {
    return operand(loop::integer(0), loop::integer(1), loop::integer(2));
  };
  return spec.m == spec.n && spec.m > 1 && spec.k > 2 && loop::same(element(spec.lhs), element(spec.rhs));
}

}  // namespace

ContractExpressions::ContractExpressions(Expressions& e, const Node* contract, const LoweringOptions& options)
    : e_(e), c_(contract) {
  loop::LoopNest& nest = e.nest();
  const Dims& out = c_->shape();
  spec.batch = out[0], spec.m = out[1], spec.n = out[2], spec.k = c_->in(0)->shape()[2];
  b_ = nest.add_var("b", spec.batch), m_ = nest.add_var("m", spec.m), n_ = nest.add_var("n", spec.n),
  k_ = nest.add_var("k", spec.k);
  const int b = b_, m = m_, n = n_, k = k_;
  auto operand = [&](int which, int row) {
    const Node* x = c_->in(which);
    e.out = nullptr;
    return e.value(x, Index::at_axes(x->shape(), {nest.var(b), nest.var(row), nest.var(k)}));
  };
  Expr lhs = operand(0, m), rhs = operand(1, n);
  auto nearer = [&](const Expr& x, int row) {
    const int64_t along_k = std::abs(loop::stride_of(x, k, row)), along_row = std::abs(loop::stride_of(x, row, k));
    if (along_k == 1 || along_row == 0) return true;
    return along_row != 1 && along_k <= along_row && along_k != 0;
  };
  spec.lhs_k_contiguous = nearer(lhs, m);
  spec.rhs_in_panels = in_panels(e, rhs);
  spec.rhs_k_contiguous = !spec.rhs_in_panels && nearer(rhs, n);
  // Operands in bf16 stay it where the target multiplies it; else they are multiplied as the f32 that they are
  // exactly.
  const auto of_bf16 = [&](int which, const Expr& x) { return c_->in(which)->dtype() == DType::BF16 || is_widened(x); };
  const bool pairs = of_bf16(0, lhs) && of_bf16(1, rhs) && options.target.has_bf16_dot;
  const auto multiplied = [=](const Expr& x) { return pairs ? in_bf16(x) : x; };
  lhs = multiplied(lhs), rhs = multiplied(rhs);
  // Along the contiguous direction, an operand may come in runs: there its coordinate is written as major * run +
  // minor.
  const auto in_runs = [&](int which, int row, int along, int64_t extent, const Expr& whole, int64_t& run,
                           auto& element) {
    const int64_t length = divided_by(whole, along);
    if (length < cost::kShortestRun || extent % length != 0) return;
    const int major = nest.add_var("major", extent / length), minor = nest.add_var("minor", length);
    const Expr at = nest.var(major) * length + nest.var(minor);
    const Node* x = c_->in(which);
    const Expr split = multiplied(e.value(x, Index::at_axes(x->shape(), {nest.var(b), along == row ? at : nest.var(row),
                                                                         along == k ? at : nest.var(k)})));
    if (divided_by(split, minor) != 0) return;
    run = length;
    const int other = along == k ? row : k;
    element = [=](Expr bb, Expr oo, Expr jj, Expr ii) {
      return substitute(split, {{b, bb}, {other, oo}, {major, jj}, {minor, ii}});
    };
  };
  if (spec.lhs_k_contiguous) in_runs(0, m, k, spec.k, lhs, spec.lhs_run, spec.lhs_in_run);
  else in_runs(0, m, m, spec.m, lhs, spec.lhs_run, spec.lhs_in_run);
  if (spec.rhs_k_contiguous) in_runs(1, n, k, spec.k, rhs, spec.rhs_k_run, spec.rhs_in_k_run);
  else if (!spec.rhs_in_panels) in_runs(1, n, n, spec.n, rhs, spec.rhs_run, spec.rhs_in_run);
  // Where the lhs is memory as it lies: both its coordinates in runs, with a fixed stride within each.
  const auto unpacked_of = [&](const Expr& whole) -> lower::ContractionSpec::UnpackedOperand {
    const auto is_load = [](const Expr& x) { return x->kind == loop::ExprKind::Load && x->args.size() == 1; };
    const int64_t rows = divided_by(whole, m), depth = divided_by(whole, k);
    if (!is_load(whole) || (!spec.lhs_k_contiguous && rows == 0 && depth == 0)) return {};
    lower::ContractionSpec::UnpackedOperand p{whole->id, rows ? rows : spec.m, 0, depth ? depth : spec.k, 0, nullptr};
    if (spec.m % p.row_run != 0 || spec.k % p.k_run != 0 || (pairs && p.k_run % 2 != 0)) return {};
    const int i = nest.add_var("row_run", spec.m / p.row_run), row = nest.add_var("row", p.row_run),
              j = nest.add_var("k_run", spec.k / p.k_run), depth_in = nest.add_var("k", p.k_run);
    const Expr split = multiplied(
        e.value(c_->in(0), Index::at_axes(c_->in(0)->shape(), {nest.var(b), nest.var(i) * p.row_run + nest.var(row),
                                                               nest.var(j) * p.k_run + nest.var(depth_in)})));
    if (!is_load(split) || divided_by(split, row) != 0 || divided_by(split, depth_in) != 0) return {};
    p.row_stride = stride_of(split, row, -1), p.k_stride = stride_of(split, depth_in, -1);
    if (pairs && p.k_stride != 1) return {};
    const Expr first = substitute(split->args[0], {{row, loop::integer(0)}, {depth_in, loop::integer(0)}});
    p.first = [=](Expr bb, Expr ii, Expr jj) { return substitute(first, {{b, bb}, {i, ii}, {j, jj}}); };
    return p;
  };
  if (!options.target.launches_blocks) spec.lhs_unpacked = unpacked_of(lhs);
  spec.lhs = [=](Expr bb, Expr row, Expr kk) { return substitute(lhs, {{b, bb}, {m, row}, {k, kk}}); };
  spec.rhs = [=](Expr bb, Expr row, Expr kk) { return substitute(rhs, {{b, bb}, {n, row}, {k, kk}}); };
}

bool ContractExpressions::in_panels(Expressions& e, const Expr& rhs) {
  const int64_t panel = cost::kCacheLine / size_of(c_->in(1)->dtype());
  if (divided_by(rhs, n_) != panel) return false;
  loop::LoopNest& nest = e.nest();
  const int major = nest.add_var("major", ceil_div(spec.n, panel)), minor = nest.add_var("minor", panel);
  const Node* x = c_->in(1);
  const Expr at = nest.var(major) * panel + nest.var(minor);
  const Expr split = e.value(x, Index::at_axes(x->shape(), {nest.var(b_), at, nest.var(k_)}));
  return divided_by(split, minor) == 0 && loop::stride_of(split, minor, k_) == 1 &&
         loop::stride_of(split, k_, minor) == panel;
}

Stmt ContractExpressions::epilogue(const Schedule& schedule, const std::vector<const Node*>& values, const Expr& bb,
                                   const Expr& mm, const Expr& nn, const Expr& sum,
                                   const std::function<Stmt(const Expr&)>& also) {
  loop::LoopNest& nest = e_.nest();
  std::vector<Stmt> body;
  e_.out = &body;
  e_.bound.clear();
  Expr kept = sum;
  if (arithmetic_dtype(c_->dtype()) != sum->dtype) kept = loop::cast(sum, arithmetic_dtype(c_->dtype()));
  e_.bind(c_, arithmetic(c_->dtype(), kept));
  if (also) body.push_back(also(e_.bound.at(c_)));
  const int64_t m = c_->shape()[1], n = c_->shape()[2];
  const Expr position = (nest.var(b_) * (m * n)) + (nest.var(m_) * n) + nest.var(n_);
  for (const Node* v : values) {
    // What is written in another order is made where the contraction has it.
    const Node* made = schedule::made_as(v);
    Expr x = e_.value(made, Index::at_position(made->shape(), position));
    if (schedule.stored.count(v)) body.push_back(e_.store(v, place_of(v, position), x));
  }
  e_.out = nullptr;
  e_.bound.clear();
  return substitute(block(std::move(body)), {{b_, bb}, {m_, mm}, {n_, nn}});
}

/// Makes `kernel` a product of the vendor's library, where the contraction is large enough for one and it can compute
/// the group.
static bool as_vendor_product(LoweredKernel& kernel, const lower::ContractionSpec& spec, const Schedule& schedule,
                              const Group& group, const LoweringOptions& options, const NodeRemarks& remarks) {
  const int64_t flops = 2 * spec.batch * spec.m * spec.n * spec.k;
  if (spec.k == 0) return false;
  const auto refused = [&](const char* why) {
    remarks.missed(missed::kVendorProduct, why, group.values[0], nullptr, group.values[0]->type.bytes());
    return false;
  };
  if (flops < options.vendor_product_flops) return refused("it is too small for a launch of its own");
  loop::LoopNest& nest = kernel.nest;
  const int b = nest.add_var("b", spec.batch), m = nest.add_var("m", spec.m), n = nest.add_var("n", spec.n),
            k = nest.add_var("k", spec.k);
  const Expr lhs = spec.lhs(nest.var(b), nest.var(m), nest.var(k)),
             rhs = spec.rhs(nest.var(b), nest.var(n), nest.var(k));
  const auto found =
      vendor_product({spec.batch, spec.m, spec.n, spec.k, lhs, rhs, b, m, n, k}, nest, schedule, group, options.tf32);
  if (!found) {
    require(
        std::ranges::none_of(group.values, [](const Node* v) { return v->op == Op::Reduce; }),
        std::string("sums of a product's operand were left to the library, which does not multiply: ") + found.why());
    return refused(found.why());
  }
  if (options.library_has && !options.library_has(found->product, cost::kVendorWorkspace)) {
    const schedule::ProductShape shape = schedule::shape_of(found->product);
    if (!shape.has_epilogue()) return refused("the vendor's library has no algorithm for it");
    options.refused->insert(shape);  // the plan is made again, without it
  }
  kernel.product = found->product;
  kernel.arguments = {kernel.arguments[static_cast<size_t>(found->lhs)],
                      kernel.arguments[static_cast<size_t>(found->rhs)], found->stored};
  for (const Node* n : {found->bias, found->addend, found->sums})
    if (n) kernel.arguments.push_back(n);
  nest.name += "_vendor";
  nest.flops = flops;
  return true;
}

/// Has a contraction pass over rows of padding.
static void pass_over_rows(ContractionSpec& spec, const Schedule& schedule, const Group& group, Expressions& e) {
  spec.listed.order = e.argument(schedule.padded.order), spec.listed.count = e.argument(schedule.padded.count);
  spec.listed.terms = group.passes == schedule::Passes::Terms;
  // What is listed comes in no runs.
  spec.lhs_unpacked = {};
  if (spec.lhs_k_contiguous == spec.listed.terms) spec.lhs_run = 0;
  if (spec.listed.terms) spec.rhs_k_run = 0;
  spec.listed.zeros = [&schedule, &group, &e](const Expr& m, const Expr& n) {
    std::vector<Stmt> zeros;
    for (const Node* v : group.values)
      if (schedule.stored.count(v))
        zeros.push_back(
            e.store(v, place_of(v, m * group.values[0]->shape()[2] + n), loop::real(0, arithmetic_dtype(v->dtype()))));
    return block(std::move(zeros));
  };
}

LoweredKernel lower_contract(const Schedule& schedule, const Group& group, const LoweringOptions& options,
                             const NodeRemarks& remarks) {
  LoweredKernel kernel;
  loop::LoopNest& nest = kernel.nest;
  nest.name = kernel_name(group);
  Expressions e(schedule, kernel);
  const Node* c = group.values[0];
  ContractExpressions contract(e, c, options);
  if (options.vendor_product_flops > 0 && as_vendor_product(kernel, contract.spec, schedule, group, options, remarks))
    return kernel;

  for (const Node* v : group.values)  // declared before the generator adds its own buffers: arguments come first
    if (schedule.stored.count(v)) e.argument(v, true);
  for (const Node* v : group.values)
    for (const Read& r : reads_of(v, schedule.values, v->type.numel(), 1)) {
      if (r.value->type.numel() == 0) continue;
      if (!schedule.group_of.count(r.value) || schedule.group_of.at(r.value) != schedule.group_of.at(c))
        e.argument(r.value);
    }

  e.own.insert(group.values.begin(), group.values.end());
  e.own_value = [&](const Node* v, Index& index) { return e.bind(v, e.definition(v, index)); };
  contract.spec.epilogue = [&](Expr bb, Expr mm, Expr nn, Expr sum) {
    return contract.epilogue(schedule, group.values, bb, mm, nn, sum);
  };
  contract.spec.f32_in_parts = options.float32_in_parts && !mirrored(contract.spec);
  if (group.passes != schedule::Passes::Nothing) pass_over_rows(contract.spec, schedule, group, e);
  if (options.target.launches_blocks)
    lower::build_device_contraction(nest, contract.spec, options.target, options.tf32);
  else {
    contract.spec.fixed_blocking = next_of(options.fixed_blockings);
    lower::build_contraction(nest, contract.spec, options.target, options.blocking);
  }
  return kernel;
}

}  // namespace trainc::lower
