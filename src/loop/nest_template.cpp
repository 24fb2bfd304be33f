#include "loop/nest_template.h"

#include <algorithm>
#include <functional>

namespace trainc::loop {
namespace {

// Both template_of and parameterize go through a nest with this: it meets the numbers in the same order, and puts what
// `integer` and `real` give in their places.
class NumberRewriter {
 public:
  struct Numbers {
    std::function<Expr(const Expr&, bool always)> integer;
    std::function<Expr(const Expr&)> real;
  };
  /// Buffers from `first` on move by `added` places; the Parallel loop's extent becomes `parallel`.
  NumberRewriter(const LoopNest& nest, int64_t parallel, int first, int added, Numbers numbers)
      : nest_(nest),
        tiled_(std::any_of(nest.buffers.begin(), nest.buffers.end(),
                           [](const Buffer& b) { return b.space == Space::Register; })),
        parallel_(parallel),
        first_(first),
        added_(added),
        numbers_(std::move(numbers)) {}

  Stmt stmt(const Stmt& s) {
    if (!s) return s;
    auto copy = std::make_shared<StmtNode>(*s);
    copy->buffer = moved(s->buffer), copy->source = moved(s->source), copy->other = moved(s->other);
    switch (s->kind) {
      case StmtKind::For: {
        const bool fixed = s->loop == LoopKind::Unroll || (s->loop == LoopKind::Vector && uses_registers(s->body));
        if (s->loop == LoopKind::Parallel) copy->extent = integer(parallel_);  // the runtime says how many
        else if (s->loop == LoopKind::Serial && s->extent->kind == ExprKind::Int)
          copy->extent = numbers_.integer(s->extent, !tiled_);
        else if (!fixed) copy->extent = expr(s->extent);
        break;
      }
      case StmtKind::Store:
        copy->index = nest_.buffers[s->buffer].space == Space::Register ? fixed(s->index) : expr(s->index);
        copy->value = expr(s->value);
        break;
      case StmtKind::Let:
        copy->value = s->value->kind == ExprKind::Int && s->value->dtype == DType::I64
                          ? numbers_.integer(s->value, true)
                          : expr(s->value);
        break;
      case StmtKind::Reduce:
      case StmtKind::Check: copy->value = expr(s->value); break;
      case StmtKind::Prefetch: copy->index = expr(s->index); break;
      case StmtKind::Transpose: copy->index = expr(s->index), copy->value = expr(s->value); break;
      case StmtKind::TileLoad: copy->value = expr(s->value); break;
      case StmtKind::TileStore: copy->index = expr(s->index); break;
      case StmtKind::TileZero:
      case StmtKind::TileDot:
      case StmtKind::Block:
      case StmtKind::Barrier:
      case StmtKind::WarpReduce:
      case StmtKind::Mma:
      case StmtKind::Copy:
      case StmtKind::CopyAsync:
      case StmtKind::CommitCopies:
      case StmtKind::WaitCopies:
      case StmtKind::LoadMatrix: break;
    }
    for (Stmt& b : copy->body) b = stmt(b);
    return copy;
  }

  Expr expr(const Expr& e) {
    if (e->kind == ExprKind::Int) return e->dtype == DType::I64 ? numbers_.integer(e, false) : e;
    if (e->kind == ExprKind::Float) return e->dtype == DType::F32 || e->dtype == DType::F64 ? numbers_.real(e) : e;
    if (e->kind == ExprKind::Var && e->extent >= 0) {  // what held for these numbers need not hold for others
      auto copy = std::make_shared<ExprNode>(*e);
      copy->extent = -1;
      return copy;
    }
    if (e->args.empty()) return e;
    auto copy = std::make_shared<ExprNode>(*e);
    if (e->kind == ExprKind::Load) {
      copy->id = moved(e->id);
      if (nest_.buffers[e->id].space == Space::Register) {
        for (Expr& a : copy->args) a = fixed(a);
        return copy;
      }
    }
    if (is_sum(e)) {
      std::vector<Expr> terms;
      collect(e, terms);
      std::stable_sort(terms.begin(), terms.end(), [&](const Expr& a, const Expr& b) { return shape(a) < shape(b); });
      Expr sum = expr(terms[0]);
      for (size_t i = 1; i < terms.size(); ++i) {
        auto add = std::make_shared<ExprNode>(*e);
        add->op = Op::Add;
        add->args = {sum, expr(terms[i])};
        sum = add;
      }
      return sum;
    }
    for (Expr& a : copy->args) a = expr(a);
    return copy;
  }

  /// An expression whose numbers stay: of a Register buffer's index.
  static Expr fixed(const Expr& e) {
    auto copy = std::make_shared<ExprNode>(*e);
    if (e->kind == ExprKind::Var) copy->extent = -1;
    for (Expr& a : copy->args) a = fixed(a);
    return copy;
  }

 private:
  bool uses_registers(const std::vector<Stmt>& body) const {
    const auto in_registers = [&](int buffer) { return buffer >= 0 && nest_.buffers[buffer].space == Space::Register; };
    const std::function<bool(const Expr&)> reads = [&](const Expr& e) {
      return e &&
             ((e->kind == ExprKind::Load && in_registers(e->id)) || std::any_of(e->args.begin(), e->args.end(), reads));
    };
    return std::any_of(body.begin(), body.end(), [&](const Stmt& s) {
      return in_registers(s->buffer) || in_registers(s->source) || reads(s->value) || reads(s->second) ||
             uses_registers(s->body);
    });
  }

  static bool is_sum(const Expr& e) { return e->kind == ExprKind::Apply && e->op == Op::Add && e->dtype == DType::I64; }
  static void collect(const Expr& e, std::vector<Expr>& terms) {
    if (!is_sum(e)) return terms.push_back(e);
    for (const Expr& a : e->args) collect(a, terms);
  }
  /// An expression without its numbers, to put terms in order by.
  static std::string shape(const Expr& e) {
    if (e->kind == ExprKind::Int) return "#";
    std::string text = std::to_string(static_cast<int>(e->kind)) + "." + std::to_string(e->id) + "." +
                       std::to_string(static_cast<int>(e->op)) + "(";
    std::vector<std::string> args;
    if (is_sum(e)) {
      std::vector<Expr> terms;
      collect(e, terms);
      for (const Expr& t : terms) args.push_back(shape(t));
      std::sort(args.begin(), args.end());
    } else {
      for (const Expr& a : e->args) args.push_back(shape(a));
    }
    for (const std::string& a : args) text += a + ",";
    return text + ")";
  }

  int moved(int buffer) const { return buffer >= first_ ? buffer + added_ : buffer; }

  const LoopNest& nest_;
  // the generator of contractions names what sizes decide; elsewhere any loop may be as long as they say
  const bool tiled_;
  const int64_t parallel_;
  const int first_, added_;
  const Numbers numbers_;
};

/// The nest without what differs within a template, its statements aside: counts, origins, extents, sizes of arguments.
LoopNest plain(const LoopNest& nest) {
  LoopNest out = nest;
  out.parallel_extent = 1;
  out.bytes = out.flops = 0;
  out.origins.clear();
  for (VarInfo& v : out.vars) v.extent = -1;
  for (Buffer& b : out.buffers)
    if (b.space == Space::Argument) b.numel = 0;
  return out;
}

}  // namespace

bool ParameterMask::none() const {
  const auto in = [](const std::vector<bool>& flags) {
    return std::find(flags.begin(), flags.end(), true) != flags.end();
  };
  return !in(integers) && !in(reals);
}

NestTemplate template_of(const LoopNest& nest) {
  NestTemplate result;
  // The number of a number stands in its place: a sum's terms, once in order, print the same.
  NumberRewriter rewriter(nest, 1, 0, 0,
                          {[&](const Expr& e, bool always) {
                             result.integers.push_back(e->int_value);
                             result.always.push_back(always);
                             return integer(static_cast<int64_t>(result.integers.size()) - 1);
                           },
                           [&](const Expr& e) {
                             result.reals.push_back(e->float_value);
                             return real(static_cast<double>(result.reals.size()) - 1, e->dtype);
                           }});
  LoopNest out = plain(nest);
  out.name = "template";
  out.body = rewriter.stmt(nest.body);
  for (Buffer& b : out.buffers)
    if (b.space == Space::Scratch) result.scratch.push_back(b.numel), b.numel = 1;
  result.text = print(out);
  return result;
}

LoopNest parameterize(const LoopNest& nest, const ParameterMask& parameters, const std::vector<int64_t>& scratch) {
  LoopNest out = plain(nest);
  out.parallel_extent = nest.parallel_extent, out.bytes = nest.bytes, out.flops = nest.flops,
  out.origins = nest.origins;
  const int64_t sizes = std::count(parameters.integers.begin(), parameters.integers.end(), true),
                factors = std::count(parameters.reals.begin(), parameters.reals.end(), true);
  // Arguments come before scratch: buffers behind them move by as many places.
  size_t first = 0;
  while (first < nest.buffers.size() && nest.buffers[first].space == Space::Argument) ++first;
  const int added = (sizes > 0) + (factors > 0), size_buffer = static_cast<int>(first),
            factor_buffer = size_buffer + (sizes > 0);
  std::vector<Buffer> more;
  if (sizes > 0) more.push_back({"sizes", DType::I64, sizes, Space::Argument, false});
  if (factors > 0) more.push_back({"factors", DType::F64, factors, Space::Argument, false});
  out.buffers.insert(out.buffers.begin() + static_cast<std::ptrdiff_t>(first), more.begin(), more.end());
  size_t s = 0;
  for (Buffer& b : out.buffers)
    if (b.space == Space::Scratch) {
      require(scratch.at(s) >= b.numel, "parameterize: scratch does not fit");
      b.numel = scratch[s++];
    }

  size_t i = 0, r = 0;
  int64_t next_size = 0, next_factor = 0;
  NumberRewriter rewriter(nest, nest.parallel_extent, static_cast<int>(first), added,
                          {[&](const Expr& e, bool) {
                             return parameters.integers.at(i++) ? out.load(size_buffer, integer(next_size++)) : e;
                           },
                           [&](const Expr& e) {
                             if (!parameters.reals.at(r++)) return e;
                             const Expr factor = out.load(factor_buffer, integer(next_factor++));
                             return e->dtype == DType::F64 ? factor : cast(factor, e->dtype);
                           }});
  out.body = rewriter.stmt(nest.body);
  // Which buffers may lie over which was found from numbers that are parameters now, so that it cannot be verified
  // again. It is part of the template: each nest of it was looked at with its own numbers.
  LoopNest apart = out;
  for (Buffer& b : apart.buffers) b.over = -1;
  verify(apart);
  return out;
}

}  // namespace trainc::loop
