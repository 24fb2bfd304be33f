// The text of a nest. A head (what the kernel is called and which buffers it has), then one statement a line, indented:
//
//   kernel row_sum
//     parallel 8
//     argument x: f32[6144]
//     argument out: f32[8] written
//   body:
//     parallel i in 8:
//       let acc: f32 = 0.0
//       vector(16) j in 768:
//         acc = sum(acc, x[i * 768 + j])
//       store out[i] = acc
//
// Names are made unique and readable where they are not; ids do not appear, so that equal nests print equal.
#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <set>

#include "loop/text.h"

namespace trainc::loop {

namespace text {

bool is_reserved(std::string_view word) {
  for (std::string_view w : kWords)
    if (w == word) return true;
  for (const CombineWord& c : kCombines)
    if (c.word == word) return true;
  for (int op = 0; op <= static_cast<int>(Op::Result); ++op)
    if (name_of(static_cast<Op>(op)) == word) return true;
#define X(name, text, bytes, fl) \
  if (word == text) return true;
  TRAINC_DTYPES(X)
#undef X
  return false;
}

}  // namespace text

namespace {

class Printer {
 public:
  explicit Printer(const LoopNest& nest) : nest_(nest) {
    for (const Buffer& b : nest.buffers) buffers_.push_back(name(b.name, "b"));
    for (const VarInfo& v : nest.vars) vars_.push_back(name(v.name, "i"));
    for (const LocalInfo& l : nest.locals) locals_.push_back(name(l.name, "t"));
  }

  std::string run() {
    line(0, "kernel {}", nest_.name.empty() ? "_" : nest_.name);
    if (nest_.parallel_extent != 1) line(1, "parallel {}", nest_.parallel_extent);
    if (nest_.threads != 0) line(1, "threads {}", nest_.threads);
    if (nest_.flops != 0) line(1, "flops {}", nest_.flops);
    if (nest_.bytes != 0) line(1, "bytes {}", nest_.bytes);
    for (const std::string& origin : nest_.origins) line(1, "origin {}", origin);
    for (size_t i = 0; i < nest_.buffers.size(); ++i) {
      const Buffer& b = nest_.buffers[i];
      std::string_view word;
      for (const text::SpaceWord& s : text::kSpaces)
        if (s.space == b.space) word = s.word;
      line(1, "{} {}: {}[{}]{}{}{}", word, buffers_[i], name_of(b.dtype), b.numel == 0 ? "?" : std::to_string(b.numel),
           b.bits ? " bits" : "", b.written ? " written" : "", b.over >= 0 ? " over " + buffer(b.over) : "");
    }
    line(0, "body:");
    if (nest_.body) lines_of(nest_.body, 1);
    return std::move(out_);
  }

 private:
  template <class... A>
  void line(int depth, fmt::format_string<A...> format, A&&... a) {
    out_.append(static_cast<size_t>(depth) * 2, ' ');
    fmt::format_to(std::back_inserter(out_), format, std::forward<A>(a)...);
    out_ += '\n';
  }

  // The name itself where it is a word of its own; else the nearest one that is.
  std::string name(const std::string& wanted, const char* fallback) {
    std::string base;
    for (char c : wanted) base += std::isalnum(static_cast<unsigned char>(c)) || c == '.' ? c : '_';
    if (base.empty()) base = fallback;
    if (std::isdigit(static_cast<unsigned char>(base[0])) || base[0] == '.') base = fallback + base;
    std::string unique = base;
    for (int i = 1; text::is_reserved(unique) || !taken_.insert(unique).second; ++i)
      unique = fmt::format("{}.{}", base, i);
    return unique;
  }

  // The statements of a block are its lines; any other statement is a line (and what is inside it).
  void lines_of(const Stmt& s, int depth) {
    if (s->kind != StmtKind::Block) return statement(*s, depth);
    if (s->body.empty()) line(depth, "pass");
    for (const Stmt& inner : s->body) {
      if (inner->kind == StmtKind::Block) line(depth, "block:");
      lines_of(inner, depth + (inner->kind == StmtKind::Block ? 1 : 0));
    }
  }

  void statement(const StmtNode& s, int depth) {
    switch (s.kind) {
      case StmtKind::Block: break;  // lines_of
      case StmtKind::For: {
        std::string head;
        for (const text::LoopWord& w : text::kLoops)
          if (w.kind == s.loop) head = w.word;
        if (s.loop == LoopKind::Vector) head += fmt::format("({})", s.lanes);
        const int64_t bound = nest_.vars.at(static_cast<size_t>(s.var)).extent;
        const bool stated = bound == (s.extent->kind == ExprKind::Int ? s.extent->int_value : -1);
        line(depth, "{} {} in {}{}:", head, vars_[static_cast<size_t>(s.var)], expr(s.extent),
             stated      ? ""
             : bound < 0 ? " atmost ?"
                         : fmt::format(" atmost {}", bound));
        lines_of(s.body.at(0), depth + 1);
        break;
      }
      case StmtKind::Store: line(depth, "store {}[{}] = {}", buffer(s.buffer), expr(s.index), expr(s.value)); break;
      case StmtKind::Let:
        line(depth, "let {}: {} = {}", local(s.local), name_of(nest_.locals.at(static_cast<size_t>(s.local)).dtype),
             expr(s.value));
        break;
      case StmtKind::Reduce: {
        line(depth, "{} = {}({}, {})", local(s.local), word_of(s.combine), local(s.local), expr(s.value));
        break;
      }
      case StmtKind::Barrier: line(depth, "barrier"); break;
      case StmtKind::WarpReduce:
        line(depth, "warp {} = {}({})", local(s.local), word_of(s.combine), local(s.local));
        break;
      case StmtKind::Mma:
        line(depth, "mma {}[{}] += {} * {}", buffer(s.buffer), expr(s.index), expr(s.value), expr(s.second));
        break;
      case StmtKind::Copy:
        line(depth, "copy({}) {}[{}] = {}[{}]", s.lanes, buffer(s.buffer), expr(s.index), buffer(s.source),
             expr(s.value));
        break;
      case StmtKind::CopyAsync:
        line(depth, "copyasync({}) {}[{}] = {}[{}{}]", s.lanes, buffer(s.buffer), expr(s.index), buffer(s.source),
             expr(s.value), s.second ? " if " + expr(s.second) : "");
        break;
      case StmtKind::CommitCopies: line(depth, "commit"); break;
      case StmtKind::WaitCopies: line(depth, "wait({})", s.code); break;
      case StmtKind::LoadMatrix:
        line(depth, "loadmatrix {}[{}] = {}[{}]{}", buffer(s.buffer), expr(s.index), buffer(s.source), expr(s.value),
             s.transposed ? " transposed" : "");
        break;
      case StmtKind::Check: line(depth, "check({}) {}", s.code, expr(s.value)); break;
      case StmtKind::Transpose:
        line(depth, "transpose({}) {}[{} by {}] = {}[{} by {}]", s.lanes, buffer(s.buffer), expr(s.index), s.pitch,
             buffer(s.source), expr(s.value), s.source_pitch);
        break;
      case StmtKind::TileZero: line(depth, "tilezero {}", buffer(s.buffer)); break;
      case StmtKind::TileLoad:
        line(depth, "tileload {} = {}[{} by {}]", buffer(s.buffer), buffer(s.source), expr(s.value), s.source_pitch);
        break;
      case StmtKind::TileDot:
        line(depth, "tiledot {} += {} * {}", buffer(s.buffer), buffer(s.source), buffer(s.other));
        break;
      case StmtKind::TileStore:
        line(depth, "tilestore {}[{} by {}] = {}", buffer(s.buffer), expr(s.index), s.pitch, buffer(s.source));
        break;
      case StmtKind::Prefetch: line(depth, "prefetch({}) {}[{}]", s.level, buffer(s.buffer), expr(s.index)); break;
    }
  }

  static std::string_view word_of(ReduceKind kind) {
    for (const text::CombineWord& c : text::kCombines)
      if (c.kind == kind) return c.word;
    return "?";
  }
  const std::string& buffer(int id) const { return buffers_.at(static_cast<size_t>(id)); }
  const std::string& local(int id) const { return locals_.at(static_cast<size_t>(id)); }

  static std::string number(double v, DType dtype) {
    std::string s;
    if (std::isnan(v)) s = "nan";
    else if (std::isinf(v)) s = v < 0 ? "-inf" : "inf";
    else {
      s = dtype == DType::F32 ? fmt::format("{}", static_cast<float>(v)) : fmt::format("{}", v);
      if (s.find_first_of(".e") == std::string::npos) s += ".0";
    }
    return dtype == DType::F32 ? s : fmt::format("{}:{}", s, name_of(dtype));
  }

  std::string list(const std::vector<Expr>& args) const {
    std::string s;
    for (const Expr& a : args) s += (s.empty() ? "" : ", ") + expr(a);
    return s;
  }

  // `level`: how tightly what stands around binds; a looser operator gets parentheses.
  std::string expr(const Expr& e, int level = 0) const {
    if (!e) return "?";
    switch (e->kind) {
      case ExprKind::Int:
        if (e->dtype == DType::Bool) return e->int_value ? "true" : "false";
        return e->dtype == DType::I64 ? std::to_string(e->int_value)
                                      : fmt::format("{}:{}", e->int_value, name_of(e->dtype));
      case ExprKind::Float: return number(e->float_value, e->dtype);
      case ExprKind::Var: return vars_.at(static_cast<size_t>(e->id));
      case ExprKind::Local: return local(e->id);
      case ExprKind::Load: {
        const std::string guard = e->args.size() > 1 ? " if " + expr(e->args[1]) : "";
        return fmt::format("{}[{}{}]", buffer(e->id), expr(e->args[0]), guard);
      }
      case ExprKind::Fma: return fmt::format("fma({})", list(e->args));
      case ExprKind::Pair: return fmt::format("pair({})", list(e->args));
      case ExprKind::Dot: return fmt::format("dot({})", list(e->args));
      case ExprKind::Apply: break;
    }
    if (e->op == Op::Cast || e->op == Op::Bitcast)
      return fmt::format("{}<{}>({})", name_of(e->op), name_of(e->dtype), expr(e->args[0]));
    const bool number_on_the_right = e->args.size() == 2 && e->args[1]->kind == ExprKind::Int && e->dtype == DType::I64;
    for (const text::Infix& infix : text::kInfix) {
      if (infix.op != e->op) continue;
      if (e->op == Op::Sub && number_on_the_right) break;  // `i - 3` is what i + -3 is written as
      const int left = infix.level + (infix.level == text::kComparison ? 1 : 0);
      const bool minus =
          e->op == Op::Add && number_on_the_right && e->args[1]->int_value < 0 && e->args[1]->int_value > INT64_MIN;
      std::string s = fmt::format("{} {} {}", expr(e->args[0], left), minus ? "-" : infix.sign,
                                  minus ? std::to_string(-e->args[1]->int_value) : expr(e->args[1], infix.level + 1));
      return infix.level < level ? "(" + s + ")" : s;
    }
    return fmt::format("{}({})", name_of(e->op), list(e->args));
  }

  const LoopNest& nest_;
  std::set<std::string> taken_;
  std::vector<std::string> buffers_, vars_, locals_;
  std::string out_;
};

}  // namespace

std::string print(const LoopNest& nest) { return Printer(nest).run(); }

}  // namespace trainc::loop
